"""Answers of verbs as JSON and as text: writes to the output alone."""
