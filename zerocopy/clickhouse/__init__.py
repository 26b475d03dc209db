"""Zero-copy replication of ClickHouse servers, seen from outside: marks, metadata, bucket. It only reads."""
