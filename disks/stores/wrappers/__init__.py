"""What is put around a store: limits, meters, retries, read-only, faults. Each touches only the store it wraps."""
