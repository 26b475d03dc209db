"""Marks: which replica uses which objects of a bucket that several logs share, told by nodes in Keeper."""
