"""Which disk is which: ids, stamps, and what is wrong with a disk that is not the one it should be."""
