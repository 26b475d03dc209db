"""Data files of parts: rows to bytes and back, in files that the caller names."""
