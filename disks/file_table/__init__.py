"""What a log says, kept in SQLite: path -> object, size, digest; and which commits touched what. Writes its own files
only, never the bucket."""
