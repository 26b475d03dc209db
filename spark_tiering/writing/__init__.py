"""Data frames and streams into tables: their options, and the store that they are committed in.

Knows nothing of Spark's data source, and can be run without Spark.
"""
