"""Random histories of two machines that share a bucket, each compared with a plain list of rows after every step."""
