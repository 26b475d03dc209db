"""What a table and a part are: formats and meanings, no I/O."""
