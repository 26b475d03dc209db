"""Seeded mistakes in when the dashboard reads and draws, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.seeding import replaced

_IDLE = "tests/tui/test_idle.py"


def _as_written_down(state_directory: Path, *, answer_seconds: float = 0.0) -> Any:
    from tiering.daemon.jobs import record
    from tiering.daemon.status import read_status

    return read_status(state_directory), record.read(state_directory)


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "dashboard: by the clock",
        "all is read anew each minute, whether it has changed or not",
        f"{_IDLE}::test_what_is_idle_is_neither_read_nor_drawn",
        replaced("tui.screens.list_view:ListView", "each_minute", True),
    ),
    (
        "dashboard: what is due",
        "a part whose time has come is not shown before something else changes",
        f"{_IDLE}::test_what_is_due_is_shown_when_its_time_has_come[policy]",
        replaced("tui.screens.list_view:ListView", "aged", lambda self: lambda store: False),
    ),
    (
        "dashboard: ages stand still",
        "ages are drawn only when the parts are read",
        f"{_IDLE}::test_ages_go_on_without_reading_the_parts",
        replaced("tui.screens.storage:Parts", "draw_ages", lambda self: None),
    ),
    (
        "dashboard: a daemon's file",
        "top and status show what a daemon wrote down some time ago, though it answers",
        "tests/tui/test_top.py::test_the_daemon_is_asked_or_else_what_it_wrote_is_shown",
        replaced("tiering.daemon.live", "live_status", _as_written_down),
    ),
)
