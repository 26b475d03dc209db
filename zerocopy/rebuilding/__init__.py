"""Putting the nodes of a replicated table back into Keeper, out of what its replicas have."""
