"""Reading a small file that somebody names: a configuration, a plan. It may be a pipe, a device, or of any size."""

from __future__ import annotations

import errno
import os
from pathlib import Path

MOST_BYTES = 256 * 1024 * 1024
CONFIGURATION_BYTES = 16 * 1024 * 1024


def text_of(path: str | Path, most_bytes: int = MOST_BYTES) -> str:
    """The file as text. Raises `OSError`, also for one that has more bytes or no end, and `UnicodeDecodeError`. A pipe
    that nobody writes to is empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data.decode("utf-8")
