"""Data frames and streams into tables: what tasks upload, and the one commit of it.

Knows nothing of Spark's data source, and can be run without Spark.
"""
