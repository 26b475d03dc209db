"""A table's replica on this machine: how it comes, what it takes in, what it does with the others, how it goes."""
