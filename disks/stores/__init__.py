"""Object stores: a bucket's verbs over S3, a directory or memory, and the wrappers around them."""
