"""ClickHouse's formats: log, directory, checksums. Bytes to values and back, no I/O."""
