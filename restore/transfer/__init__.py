"""Another bucket's files into this disk: copies objects, then commits."""
