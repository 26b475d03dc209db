"""Replicated tables: coordinated by ZooKeeper, fetched between machines, cold parts in one bucket."""
