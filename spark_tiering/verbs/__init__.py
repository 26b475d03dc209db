"""What the command line asks of Spark: a runner for verbs that take `--spark`, and the verbs that are Spark's own."""
