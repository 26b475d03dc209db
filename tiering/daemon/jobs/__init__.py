"""The daemon's jobs: which there are, when they are due, how they ran. Starts processes; touches no disk."""
