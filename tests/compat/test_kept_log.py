"""A log whose kinds have no types, as 0.1 wrote it: log, blame, diff, undo, restore and recovery answer as 0.1 did.

Guards I7 (the past is what it was), P47. What differs on purpose is listed here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compat.kept_log import ANSWERS, CHANGES, HERE, Machine, questions
from tiering.cli import main as cli

SAID: dict[str, Any] = json.loads(ANSWERS.read_text())
REFUSED = "undo s3 42 --dry-run"
"""That entry is of a kind that is not known. 0.1 would have undone it; now it is refused."""

BEGUN_BY_A_READ = "restore s3 --apply --yes; fsck"
"""In between 0.1 let `parts` write `table.json` to an SSD that nobody had written to; no reading verb does that now."""
BEGUN = {"files": 1, "bytes": 418}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("kept") / "machine", lambda words: cli.run(words))


@pytest.mark.parametrize("question", [question for question in questions() if question != REFUSED])
def test_the_answer_is_what_it_was(machine: Machine, question: str) -> None:
    assert machine.ask(question) == SAID[question]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_a_change_does_what_it_did(tmp_path: Path, change: tuple[str, ...]) -> None:
    machine = Machine(tmp_path / "machine", lambda words: cli.run(words))
    for question in change:
        said = f"{change[0]}; {question}"
        answered = machine.ask(question)
        if said == BEGUN_BY_A_READ:
            for what, more in BEGUN.items():
                answered["answer"]["checked"][what] += more
        assert answered == SAID[said]


def test_a_lost_journal_is_made_good_by_the_log(tmp_path: Path) -> None:
    """I1: the commit says where a part came from, and which ones were to stay there."""
    machine = Machine(tmp_path / "machine", lambda words: cli.run(words), left=True)
    assert machine.ask("parts --all") == SAID["left; parts --all"]


def test_a_kind_that_is_not_known_is_shown_and_not_undone(machine: Machine) -> None:
    assert SAID[REFUSED]["exit"] == 0
    refused = machine.ask(REFUSED)
    assert refused["exit"] == 13
    assert "is of the kind freeze, which this version does not know" in refused["answer"]["error"]["message"]
    shown = {found["revision"]: found["kind"] for found in machine.ask("log s3")["answer"]["entries"]}
    assert shown[42] == "freeze"


def test_every_kind_is_in_the_kept_log() -> None:
    from typing import get_args

    from oplog.kinds import KnownKind

    words = {found["kind"] for found in SAID["log s3"]["answer"]["entries"]}
    assert words == {kind.__struct_config__.tag for kind in get_args(KnownKind)} | {"freeze"}


def test_it_is_small_and_says_nothing_of_where_it_was_made() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        assert not any(word in path.read_bytes() for word in (b"/home/", b"/tmp/", b"/work", b"root@")), path
