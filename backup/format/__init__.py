"""What a repository's objects are called and what their bytes mean. No I/O; what is read is hostile until checked."""
