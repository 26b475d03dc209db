"""What can be done from the screens: each an engine call that a verb has too, and that verb's command line."""
