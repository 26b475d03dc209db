"""What a query reads: planned in the driver, opened and read in the executors."""
