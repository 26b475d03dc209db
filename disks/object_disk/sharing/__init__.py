"""Several logs on one prefix: which prefix it is, and which machine writes which log."""
