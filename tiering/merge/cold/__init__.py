"""Merges in the bucket, cut into shards that run anywhere; one commit, made here."""
