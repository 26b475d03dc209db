"""The dashboard: what a store holds, what moves and why, in a terminal. Acts by the engine's calls that verbs make."""
