"""What an insert reads: files, globs, objects, web servers and standard input, decoded to Arrow."""
