"""Where pieces of work run, and how far they are: threads, processes, elsewhere. Touches no disk itself."""
