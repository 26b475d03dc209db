"""A disk with ClickHouse's log: reads and writes a bucket as a ClickHouse server of that layout does."""
