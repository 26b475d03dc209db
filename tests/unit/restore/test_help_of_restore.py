"""The help of `restore` says what a second run takes away."""

from __future__ import annotations

import pytest

from tiering.cli import main as cli


def test_the_help_says_what_a_second_run_removes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["restore", "--help"]) == 0
    assert "removes what came here" in " ".join(capsys.readouterr().out.split())
