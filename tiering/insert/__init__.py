"""Rows into new parts: reads input, writes parts by one transaction a disk."""
