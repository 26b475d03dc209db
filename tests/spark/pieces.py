"""Pieces of work that the tests hand to a runner: importable wherever a task runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from oplog.errors import Damaged, Retained, Transient


@dataclass(frozen=True)
class Attempt:
    """What a piece does, and a directory where it notes its attempts."""

    notes: Path
    number: int = 0
    what: str = "work"

    def count(self) -> int:
        """How many attempts there were, this one among them."""
        self.notes.mkdir(parents=True, exist_ok=True)
        (self.notes / f"{self.number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return len(list(self.notes.glob(f"{self.number}-*")))


def work(item: Attempt) -> tuple[int, int]:
    """(number, attempts), after whatever the item asks for on its first attempt, or on all."""
    attempts = item.count()
    match item.what:
        case "die once" if attempts == 1:
            os._exit(9)
        case "die":
            os._exit(9)
        case "transient once" if attempts == 1:
            raise Transient("the store asks for patience")
        case "transient":
            raise Transient("the store asks for patience", hint="try again later")
        case "damaged":
            raise Damaged("part 1_1_1_0 is not what was written", hint="run 'frostline fsck'")
        case "retained":
            raise Retained("locked", until=None)
        case "mistake":
            raise ZeroDivisionError("a mistake of ours")
        case "sleep":
            time.sleep(60)
    return item.number, attempts


def nap(seconds: float) -> float:
    """Takes its time."""
    time.sleep(seconds)
    return seconds


def whereabouts(item: int) -> tuple[str, int]:
    """(the file our code came from, the process)."""
    import disks.base

    return str(disks.base.__file__), os.getpid()


class Secret:
    """Credentials inside an item: its text never shows them."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return "Secret()"


def length(item: Secret) -> int:
    return len(item.word)
