"""Proving a backup: everything is there with its size, and as much of it as is asked for is what was written. What was
found is kept in the repository."""
