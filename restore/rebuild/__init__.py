"""A disk's local state from its bucket, at any retained revision: writes the cache, or one commit."""
