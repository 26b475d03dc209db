"""Each action of each screen: which verb it is, and which test compares what it did with that verb's `--json`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE
from tests.tui.pilot import Driver, drive
from tui.app import VIEWS

_ACTING, _KEEPING = "tests/tui/test_acting.py", "tests/tui/test_keeping.py"
_REPLICAS = "tests/replicas/zero_copy/test_screens.py"
_HERE = "tests/tui/test_every_action.py"

PROVED_BY: dict[str, tuple[str, str, str]] = {
    "overview.tick": ("tick", _KEEPING, "test_a_pass_shows_what_is_due_and_does_it"),
    "overview.pause": ("pause", _HERE, "test_all_automatic_work_is_paused_and_resumed"),
    "overview.resume": ("resume", _HERE, "test_all_automatic_work_is_paused_and_resumed"),
    "tables.partitions": ("du", _HERE, "test_a_partition_is_listed_and_merged"),
    "tables.merge": ("merge", _HERE, "test_a_partition_is_listed_and_merged"),
    "tables.pause": ("pause", _ACTING, "test_merges_pauses_and_cancelled_moves"),
    "tables.resume": ("resume", _ACTING, "test_merges_pauses_and_cancelled_moves"),
    "tables.drop": ("table drop", _ACTING, "test_what_destroys_wants_its_name"),
    "parts.move": ("move", _ACTING, "test_marked_parts_are_moved_pinned_and_unpinned"),
    "parts.pin": ("pin", _ACTING, "test_marked_parts_are_moved_pinned_and_unpinned"),
    "parts.unpin": ("unpin", _ACTING, "test_marked_parts_are_moved_pinned_and_unpinned"),
    "parts.blame": ("blame", _HERE, "test_what_blame_and_diff_say_is_shown"),
    "moves.cancel": ("moves cancel", _KEEPING, "test_a_move_that_waits_is_asked_to_stop"),
    "policy.approve": ("apply", _ACTING, "test_planned_moves_are_shown_and_carried_out"),
    "policy.at": ("plan", _HERE, "test_the_plan_of_another_time_is_that_of_the_verb"),
    "policy.tick": ("tick", _HERE, "test_a_pass_is_done_from_the_plan_and_from_the_jobs"),
    "disks.gc": ("gc", _KEEPING, "test_a_collection_shows_its_deletes_and_asks_the_disk_s_name"),
    "disks.snapshot": ("snapshot", _KEEPING, "test_a_snapshot_is_written"),
    "disks.audit": ("replica audit", _REPLICAS, "test_marks_are_compared_and_put_back_before_gc_may_collect"),
    "log.diff": ("diff", _HERE, "test_what_blame_and_diff_say_is_shown"),
    "log.undo": ("undo", _HERE, "test_a_commit_is_undone"),
    "backups.create": ("backup create", _KEEPING, "test_backups_are_made_verified_and_restored"),
    "backups.verify": ("backup verify", _KEEPING, "test_backups_are_made_verified_and_restored"),
    "backups.restore": ("backup restore", _KEEPING, "test_backups_are_made_verified_and_restored"),
    "jobs.tick": ("tick", _HERE, "test_a_pass_is_done_from_the_plan_and_from_the_jobs"),
    "jobs.pause": ("pause", _HERE, "test_all_automatic_work_is_paused_and_resumed"),
    "jobs.resume": ("resume", _HERE, "test_all_automatic_work_is_paused_and_resumed"),
    "replicas.waiting": ("replica queue", _REPLICAS, "test_what_waits_is_shown_and_taken_in"),
    "replicas.sync": ("replica sync", _REPLICAS, "test_what_waits_is_shown_and_taken_in"),
}
"""Id of an action -> verb, file and test."""


def test_each_action_is_a_verb_and_has_its_test(home: Home) -> None:
    assert {choice.id for _, view in VIEWS for choice in view.choices} == PROVED_BY.keys()
    root = Path(__file__).parents[2]
    for verb, file, test in PROVED_BY.values():
        home(*verb.split(), "--help")
        tests = {node.name for node in ast.parse((root / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert test in tests, (verb, file)


@pytest.mark.in_turn
@pytest.mark.parametrize("screen", ["1", "9"], ids=["overview", "jobs"])
def test_all_automatic_work_is_paused_and_resumed(home: Home, screen: str) -> None:
    home("pause")
    expected = [(one["table"], one["kind"]) for one in home.json("status")["pauses"]]
    home("resume")

    async def story(driver: Driver) -> None:
        await driver.press(screen, "P")
        await driver.is_told("paused moves, merges and gc of all tables.\n$ frostline pause")
        paused = driver.beside(home, "status")["pauses"]
        assert [(one["table"], one["kind"]) for one in paused] == expected
        await driver.press("1")
        await driver.sees("moves of all tables are paused  [frostline resume]")
        await driver.press(screen, "U")
        await driver.until(lambda: driver.told[-1].endswith("$ frostline resume"))
        assert driver.beside(home, "status")["pauses"] == []
        await driver.press("1")
        await driver.lacks("paused  [")

    drive(home, story)


@pytest.mark.in_turn
def test_a_partition_is_listed_and_merged(home: Home) -> None:
    for key in range(4, 9):
        home.insert(key, table="d.small")

    async def story(driver: Driver) -> None:
        await driver.press("2", "p")
        await driver.lists(driver.beside(home, "du")["usage"], lambda rows: rows)
        tables = [row["table"] for row in driver.rows]
        await driver.press("home", *["down"] * tables.index("d.small"), "m")
        expected = driver.beside(home, "-n", "merge", "d.small", "--partition", "all")
        await driver.sees("Merge d.small, partition all?", "all: 6 parts into one")
        await driver.sees("$ frostline merge d.small --partition all")
        assert [len(one["inputs"]) for one in expected["merges"]] == [6]
        await driver.press("y")
        await driver.is_told(
            "1 merge of d.small, 6 parts merged.\n$ frostline merge d.small --partition all",
        )
        await driver.lists(driver.beside(home, "du")["usage"], lambda rows: rows)

    drive(home, story)
    assert [part["part"] for part in home.json("parts", "d.small")["parts"]] == ["all_1_6_1"]


@pytest.mark.in_turn
def test_what_blame_and_diff_say_is_shown(home: Home) -> None:
    home.to_bucket(table="d.small")
    head = home.head()
    deeds = home.json("blame", "d.small", "all_1_1_0")["deeds"]
    diff = home.json("diff", "s3", str(head - 1), str(head))
    assert [part["part"] for part in diff["parts"]] == ["all_1_1_0"]
    assert len(deeds) == 2

    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.until(lambda: driver.rows)
        await driver.press("home", *["down"] * [row["table"] for row in driver.rows].index("d.small"), "b")
        await driver.sees("frostline blame d.small all_1_1_0", "part all_1_1_0 of d.small: on disk s3")
        shown = [line for line in driver.text.splitlines() if " all_1_1_0 " in line and "│" in line]
        for deed in deeds:
            when = deed["time"][:16].replace("T", " ")
            assert any(when in line and deed["what"] in line for line in shown), (deed, shown)
        await driver.press("escape", "7", "home", "d")
        await driver.sees(f"frostline diff s3 {head - 1} {head}", "all_1_1_0", f"{diff['files']['added']} files added")

    drive(home, story, size=(160, 40))


@pytest.mark.in_turn
@pytest.mark.parametrize("time", ["2099-06-01", "2098-01-01T12:00:00Z"])
def test_the_plan_of_another_time_is_that_of_the_verb(home: Home, time: str) -> None:
    planned = home.json("plan", "--at", time)["moves"]
    assert len(planned) == (2 if time.startswith("2099") else 1)

    async def story(driver: Driver) -> None:
        await driver.press("5", "t")
        await driver.write(time)
        await driver.press("enter")
        await driver.sees(f"at {time[:10]} ")
        await driver.lists(planned, lambda rows: rows)
        await driver.press("a")
        await driver.is_told("this is a plan for another time\nt and an empty line show the current plan")
        await driver.press("t", *["backspace"] * 20, "enter")
        await driver.lists([DUE], lambda rows: [row["part"] for row in rows])

    drive(home, story)


@pytest.mark.in_turn
@pytest.mark.parametrize("screen", ["5", "9"], ids=["policy", "jobs"])
def test_a_pass_is_done_from_the_plan_and_from_the_jobs(home: Home, screen: str) -> None:
    planned = [(move["part"], move["to"]) for move in home.json("plan")["moves"]]

    async def story(driver: Driver) -> None:
        await driver.press(screen, "T")
        await driver.sees("Run one daemon pass now?", "$ frostline tick", DUE)
        await driver.press("y")
        await driver.until(lambda: "1 part moved" in driver.told[0])

    drive(home, story)
    assert [(move["part"], move["to"]) for move in home.json("moves", "list")["moves"]] == planned
    assert home.json("plan")["moves"] == []


@pytest.mark.in_turn
def test_a_commit_is_undone(home: Home) -> None:
    home("move", "d.small", "--partition", "all", "--to-disk", "s3", "--keep-source")
    moved = home.head()
    before = home.keys("d.small")

    async def story(driver: Driver) -> None:
        await driver.press("7", "home", "z")
        await driver.sees(f"Undo revision {moved} of disk s3?", f"$ frostline undo s3 {moved}")
        await driver.write(str(moved))
        await driver.press("enter")
        await driver.is_told(f"Undone by revision {moved + 1}.\n$ frostline undo s3 {moved}")
        await driver.press("r")
        await driver.lists(moved + 1, lambda rows: rows[0]["revision"])

    drive(home, story)
    entry = home.json("log", "s3")["entries"][-1]
    assert (entry["revision"], entry["kind"]) == (moved + 1, "undo")
    assert home.keys("d.small") == before
