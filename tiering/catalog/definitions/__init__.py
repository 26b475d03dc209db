"""Definitions of tables: names, copies in the buckets, and those that cannot be read."""
