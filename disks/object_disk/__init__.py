"""A disk whose truth is the log in its bucket: writes blobs and commits, and a cache that may be lost."""
