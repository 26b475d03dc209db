"""Work that lasts, for a program that is not a test."""

from __future__ import annotations

import os
import time
from pathlib import Path


def linger(pid_file: str) -> None:
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(60)
