"""Rebuild a disk from its bucket, at any retained revision, and check that what is stored is what was written."""
