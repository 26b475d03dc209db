"""This machine: locks, processes, scratch files. Knows nothing of disks or buckets."""
