"""Python's own garbage collector, in processes that make many objects and free few."""

import gc

_OBJECTS_BETWEEN_WALKS = 20_000


def collect_seldom() -> None:
    """Have the collector walk seldom. The usual 700 makes it walk over all that is imported, and over the files and
    commits of a rebuild, again and again, and find nothing."""
    gc.set_threshold(_OBJECTS_BETWEEN_WALKS)
