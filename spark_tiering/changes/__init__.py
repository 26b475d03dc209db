"""Rows that came into a table since a revision, by the log of its bucket: for one read, or batch after batch.

What merges and moves make of them is not seen: each row comes once, in the order of the commits that brought them.
"""
