"""Buckets and disks of ClickHouse servers: inspect, adopt, rebuild, export. Changes no bucket that it reads."""
