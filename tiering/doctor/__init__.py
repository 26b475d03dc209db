"""What might be wrong with a store, a bucket, a machine: looks at everything, changes nothing."""
