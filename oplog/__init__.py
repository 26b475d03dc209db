"""The operations log: numbered commits in the bucket, the truth of an object disk."""
