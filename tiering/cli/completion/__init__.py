"""Words for the shell's completion key, in the time of a key press: imports next to nothing and asks no bucket."""
