"""What nothing names: the only place that deletes objects of a bucket."""
