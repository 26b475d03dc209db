"""A file below the state directory in which the daemon keeps what it knows, and what is said when it cannot."""

from __future__ import annotations

import logging
from pathlib import Path

from disks import effects
from oplog.errors import FrostlineError

log = logging.getLogger("frostline.daemon")


class StateFile:
    """Replaced whenever there is something new to say. For one thread at a time."""

    def __init__(self, path: Path, description: str) -> None:
        """`description` names the contents in the log."""
        self._path, self._description = path, description
        self.problem = ""
        """Why what is there is not the last; empty when it is."""

    def replace(self, data: bytes) -> None:
        """Put it there, durably. Never raises: a full state disk is no reason to stop moving data off it. It is said
        when it begins and when it is over, and not each time between."""
        try:
            effects.replace_file(self._path, data)
        except (FrostlineError, OSError) as error:
            if not self.problem:
                log.warning("%s is not written down now: %s", self._description, error)
            self.problem = str(error)
            return
        if self.problem:
            log.warning("%s is written down again: %s", self._description, self._path)
        self.problem = ""
