"""What long work tells whoever watches it. The command line draws a bar; the library stays silent by default."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from worker threads; implementations are thread-safe and never raise."""

    def start(self, what: str, *, total_bytes: int | None = None, total_items: int | None = None) -> None:
        """A new piece of work begins, such as `moving 12 parts`."""

    def advance(self, *, size_bytes: int = 0, items: int = 0) -> None:
        """That much more is done."""

    def finish(self) -> None:
        """The piece of work ended, well or not."""


class Silent:
    """Says nothing."""

    def start(self, what: str, *, total_bytes: int | None = None, total_items: int | None = None) -> None:
        return

    def advance(self, *, size_bytes: int = 0, items: int = 0) -> None:
        return

    def finish(self) -> None:
        return
