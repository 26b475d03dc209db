"""Copies of parts: where each came from, which count, and which are set aside."""
