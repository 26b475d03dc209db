"""A plain table becomes a replicated one, and back: no part changes, only who gives the numbers and who may write."""
