"""Python's own garbage collector, in processes that make many objects and free few."""

import gc

_OBJECTS_BETWEEN_WALKS = 20_000
_OBJECTS_OF_A_START = 250_000
"""More than are made until a verb has its store: 160,000 by imports."""


def collect_seldom() -> None:
    """Have the collector walk seldom. The usual 700 makes it walk over all that is imported, and over the files and
    commits of a rebuild, again and again, and find nothing."""
    gc.set_threshold(_OBJECTS_BETWEEN_WALKS)


def collect_after_start() -> None:
    """Have the collector wait until the process has imported what it needs, of which nothing is garbage: each walk
    over it takes a millisecond. `end_start` ends the wait; so do many more objects."""
    gc.set_threshold(_OBJECTS_OF_A_START)


def end_start() -> None:
    """After `collect_after_start`: have the collector walk seldom from now on. Nothing where that was not called."""
    if gc.get_threshold()[0] == _OBJECTS_OF_A_START:
        collect_seldom()
