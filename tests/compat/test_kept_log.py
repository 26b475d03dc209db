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
DEFINED_BY_A_MARK, MARKED_BYTES = "undo s3 43 --yes; diff s3 44 45", 429
"""The mark of a version holds its definition; that of 0.1 held nothing."""
BEGUN = {"files": 1, "bytes": 418}

NAMES_KEPT = {
    1: (3, -4, 4),
    5: (4, -5, 5),
    9: (4, -5, 5),
    13: (3, -5, 5),
    17: (1, -5, 5),
    21: (2, -2, 2),
    22: (2, -2, 2),
    25: (2, -2, 2),
    29: (2, -2, 2),
    33: (2, -2, 2),
    37: (1, -1, 1),
    41: (1, -1, 1),
}
"""By revision: how many files more a restore to it creates, removes and leaves. 0.1 took back versions of definitions,
which other disks then did not believe, and block numbers and levels of parts, which were then given again; now they
stay taken, and a table that goes leaves a tombstone."""
DEFINITIONS_FREE = {
    "undo s3 2 --dry-run": "store/000/00000002-0000-4000-8000-000000000000 was rewritten (merge) since, by revision 35",
    "undo s3 36 --dry-run": "store/000/00000009-0000-4000-8000-000000000000 was dropped since, by revision 44",
}
"""What 0.1 objected to: a later commit that wrote a `table.json`; and that what a restore brought could not be taken
back."""


UNDO_FIRST = {
    3: "undo revision 6 first: frostline undo s3 6",
    4: "undo revision 6 first: frostline undo s3 6",
    5: "undo revisions 31, 30 and 29 first, the newest first: frostline undo s3 31",
    6: "undo revision 35 first: frostline undo s3 35",
    7: "undo revisions 11, 10 and 9 first, the newest first: frostline undo s3 11",
    10: "undo revision 11 first: frostline undo s3 11",
    28: "undo revision 29 first: frostline undo s3 29",
    30: "undo revision 31 first: frostline undo s3 31",
    32: "undo revision 35 first: frostline undo s3 35",
    36: "undo revision 44 first: frostline undo s3 44",
    38: "undo revision 39 first: frostline undo s3 39",
}
"""By revision: what a refused undo advises. 0.1 said "the later commits", and not which."""

NAMED_IN_RESTORES = {
    "store/000/00000001-0000-4000-8000-000000000000/202602_3_3_0": "202602_3_3_0 of demo.events",
    "store/000/00000001-0000-4000-8000-000000000000/202605_4_4_0": "202605_4_4_0 of demo.events",
}
"""0.1 gave a part's path, which tells nobody the table."""

REWORDED = {
    "Only what lay on disk s3 comes back, not what lay on other disks.": (
        "Only what was on disk s3 is restored, not what was on other disks."
    ),
    "1 of the 1 objects it needs are gone": "1 of the 1 object it needs are gone",
}
"""Sentences that say the same in other words."""

SET_ASIDE = [
    {"table": "demo.imported", "disk": "s3", "part": "202602_1000001_1000001_0", "reason": "missing", "rows": 3}
]
"""What 0.1 set aside without a word of it in its answers."""


def said(question: str, key: str = "") -> Any:
    """What 0.1 said, with what differs on purpose."""
    answer = json.loads(json.dumps(SAID[key or question]))
    if question.startswith("restore s3 --revision "):
        counts = NAMES_KEPT[int(question.split()[3])]
        for what, more in zip(("created", "removed", "unchanged"), counts, strict=True):
            answer["answer"][what] += more
    if question.startswith("restore s3") and "error" not in answer["answer"]:
        answer["answer"]["left_out"] = []  # 0.1 did not ask whether rows are there already
    if question == "fsck" and "error" not in answer["answer"]:
        answer["answer"]["attachable"] = []  # 0.1 did not say what can be attached again
    if question.startswith("undo s3 ") and int(question.split()[2]) in UNDO_FIRST:
        answer["answer"]["error"]["hint"] = UNDO_FIRST[int(question.split()[2])]
    if question == "parts --all" and "--revision 22" not in key:  # it was set aside later
        answer["answer"] |= {"parts_set_aside": SET_ASIDE}
    if question in DEFINITIONS_FREE:
        error = answer["answer"]["error"]
        error["message"] = error["message"].replace(f"{DEFINITIONS_FREE[question]}\n  - ", "")
        error["message"] = error["message"].replace(f"\n  - {DEFINITIONS_FREE[question]}", "")
        if question == "undo s3 2 --dry-run":
            error["hint"] = "'frostline table drop demo.archive' drops the table from all disks"
        else:
            error["message"] = error["message"].partition("\n  - it brought the definition")[0]
    if question.startswith("undo s3 ") and "error" in answer["answer"]:
        error = answer["answer"]["error"]
        error["message"] = error["message"].replace("\n  - ", "; ")  # a line end is shown as an escape
    words = json.dumps(answer)
    for before, after in REWORDED.items():
        words = words.replace(before, after)
    for path, part in NAMED_IN_RESTORES.items():
        words = words.replace(f"such as {path}.", f"such as {part}.")
    return json.loads(words)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("kept") / "machine", lambda words: cli.run(words))


@pytest.mark.in_turn
@pytest.mark.parametrize("question", [question for question in questions() if question != REFUSED])
def test_the_answer_is_what_it_was(machine: Machine, question: str) -> None:
    assert machine.ask(question) == said(question)


@pytest.mark.in_turn
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_a_change_does_what_it_did(tmp_path: Path, change: tuple[str, ...]) -> None:
    machine = Machine(tmp_path / "machine", lambda words: cli.run(words))
    for question in change:
        key = f"{change[0]}; {question}"
        answered = machine.ask(question)
        expected = said(question, key)
        if key == DEFINED_BY_A_MARK:
            answered["answer"]["files"]["added_bytes"] -= MARKED_BYTES
        if key == BEGUN_BY_A_READ:
            for what, more in BEGUN.items():
                answered["answer"]["checked"][what] += more
        assert answered == expected


def test_a_lost_journal_is_made_good_by_the_log(tmp_path: Path) -> None:
    """I1: the commit says where a part came from, and which ones were to stay there."""
    machine = Machine(tmp_path / "machine", lambda words: cli.run(words), left=True)
    assert machine.ask("parts --all") == said("parts --all", "left; parts --all")


def test_a_kind_that_is_not_known_is_shown_and_not_undone(machine: Machine) -> None:
    assert SAID[REFUSED]["exit"] == 0
    refused = machine.ask(REFUSED)
    assert refused["exit"] == 13
    assert "of the kind freeze" in refused["answer"]["error"]["message"]
    shown = {found["revision"]: found["kind"] for found in machine.ask("log s3")["answer"]["entries"]}
    assert shown[42] == "freeze"


def test_every_kind_is_in_the_kept_log() -> None:
    from typing import get_args

    from oplog.kinds import KnownKind

    words = {found["kind"] for found in SAID["log s3"]["answer"]["entries"]}
    later = {"fence", "give_up"}
    assert words == {kind.__struct_config__.tag for kind in get_args(KnownKind)} - later | {"freeze"}


def test_it_is_small_and_says_nothing_of_where_it_was_made() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        assert not any(word in path.read_bytes() for word in (b"/home/", b"/tmp/", b"/work", b"root@")), path
