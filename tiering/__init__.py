"""Tables, parts, storage policies and moves: the engine and its command line."""
