"""Tests that run in a real Spark session or a real standalone cluster."""
