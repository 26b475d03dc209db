"""Path -> object, size, digest, in SQLite: touches its own file only, never the bucket."""
