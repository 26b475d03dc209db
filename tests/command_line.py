"""Frostline's command line, run inside the tests' process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tiering.cli import main as cli


class Frostline:
    """Runs command lines in this process and gives back what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        out, actual = self.any(*arguments)
        assert actual == code, f"exit {actual}: {out}\n{self.error}"
        return out

    def any(self, *arguments: str) -> tuple[str, int]:
        """What it printed and its exit code, whichever that is."""
        self._capsys.readouterr()
        actual = cli.run(arguments)
        captured = self._capsys.readouterr()
        self.error = captured.err
        return captured.out, actual

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))
