"""`frostline demo`: the main job on real data, in a directory of its own."""
