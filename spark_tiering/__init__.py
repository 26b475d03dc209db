"""Spark: where large work runs, and a data source for tables. Nothing else in Frostline imports pyspark."""
