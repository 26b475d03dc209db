"""One sound store a module, brought back for each test: always at the same place, for the state knows where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line import Frostline
from tests.hostile.forge import Forged, build


def cached_store(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forged:
    """The store below `place`, as it was built."""
    home, kept = place / "home", place / "kept"
    monkeypatch.setenv("FROSTLINE_CONFIG", str(home / "frostline.yaml"))
    frostline = Frostline(capsys)
    if not kept.exists():
        build(home, frostline)
        shutil.copytree(home, kept)
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    return Forged(home, frostline)
