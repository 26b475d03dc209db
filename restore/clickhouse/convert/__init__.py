"""Rows of a MergeTree table into a table of ours: ClickHouse itself, as chdb, reads the parts on a copy."""
