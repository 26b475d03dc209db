"""Sessions of Spark, and what runs in them for verbs."""
