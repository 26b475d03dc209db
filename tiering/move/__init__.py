"""Parts from disk to disk: copies, commits on the target, then takes off the source."""
