"""An insert into a replicated table: its bytes durable here, its word in Keeper, how many replicas have it."""
