"""The command line with an input that is wrong: its answer, and that nothing changed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiering.cli.main import run

TABLE = "demo.events"
JANUARY, FEBRUARY = "202601", "202602"
HEADER = "ts,key,text"
GOOD = [f"2026-{month:02}-0{day}T00:00:00Z,{month * 100 + day},row {day}" for month in (1, 2) for day in (1, 2, 3, 4)]


@dataclass(slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err.splitlines()[-1])["error"]


@dataclass(slots=True)
class Cli:
    """The command line on one store."""

    home: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Answer:
        self.capture.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self.capture.readouterr()
        assert "Traceback" not in out + err, out + err
        return Answer(code, out, err)

    def ok(self, *arguments: str | Path) -> Answer:
        answer = self(*arguments)
        assert answer.code == 0, answer
        return answer

    def fails(self, code: int, *arguments: str | Path, says: tuple[str, ...]) -> Answer:
        """The command fails with this code, and its error contains these words; the same as JSON."""
        answer = self(*arguments)
        assert answer.code == code, answer
        for word in says:
            assert word in answer.err, answer.err
        return answer

    def rows(self) -> int:
        """How many rows a query sees, in all tiers."""
        rows = self.ok("--json", "query", f"select count(*), count(distinct key) from {TABLE}").document["rows"]
        assert rows[0][0] == rows[0][1], "a row is there twice"
        return int(rows[0][0])

    def parts(self) -> dict[str, str]:
        return {part["part"]: part["disk"] for part in self.ok("--json", "parts", TABLE).document["parts"]}

    def is_sound(self) -> None:
        answer = self("--json", "fsck", "--read-data")
        assert (answer.code, answer.document["problems"]) == (0, []), answer


def create(cli: Cli) -> None:
    cli.ok(
        *("table", "create", TABLE, "--column", "ts:timestamp[us, UTC]", "--column", "key:int64"),
        *("--column", "text:string", "--order-by", "key", "--partition-by", "month(ts)"),
    )


def csv(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A store with January in the bucket and February on the SSD."""
    for name in [name for name in os.environ if name.startswith("FROSTLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path / "home", capsys)
    create(cli)
    cli.ok("insert", TABLE, csv(tmp_path / "good.csv", *GOOD))
    cli.ok("move", TABLE, "--partition", JANUARY, "--to-volume", "cold")
    return cli
