"""What moves where, and why: decides, and does no I/O."""
