"""fsck: reads everything, changes nothing but what a repair sets aside."""
