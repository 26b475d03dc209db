"""What happened, and taking it back: reads logs; an undo is one new commit."""
