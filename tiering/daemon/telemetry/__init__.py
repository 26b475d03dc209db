"""What a daemon shows of itself to systems that watch it: its metrics guarded, and spans of what it does."""
