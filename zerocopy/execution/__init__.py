"""What a replica does by the replicated log: its queue, merges, moves, cleaning, and how it is made whole again."""
