"""Restoring from a backup: what goes where is planned purely, the bytes are compared on the way, and a table appears
with all of its parts or not at all."""
