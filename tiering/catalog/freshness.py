"""How fresh an answer has to be: what is asked of the buckets, and of the files on the disks."""

from __future__ import annotations

from enum import IntEnum


class Freshness(IntEnum):
    """From the cheapest to the most thorough. Who deletes something needs the last."""

    LAST_ANSWER = 0
    """A bucket is asked for other writers' commits only when no process of this machine has asked within its
    `look_seconds`."""
    CHANGES = 1
    """Each bucket is asked. A table's directory that shows no change since it was last scanned is believed."""
    EVERY_FILE = 2
    """Each bucket is asked, and each part's file is compared: this also notices a file that another program changed."""
