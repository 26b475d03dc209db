"""Passes by schedule: calls the engine, touches nothing itself but its lock and its status file."""
