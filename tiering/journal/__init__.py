"""The record of this machine's work: touches the state directory, no disk."""
