"""What is chosen of many rows: some of several moves, the entries of a log that a filter leaves; and what a list says
where it is empty."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE
from tests.tui.pilot import Driver, drive
from tiering.cli.frame.output import encode

MANY = "d.many"


def _several_due(home: Home) -> list[str]:
    """Three parts more that a rule has made due, of a table of their own."""
    home(
        *("table", "create", MANY, "--column", "ts:timestamp[ms]", "--column", "k:int64", "--order-by", "ts"),
        *("--partition-by", "month(ts)"),
    )
    rows = home.path / "many.csv"
    rows.write_text("ts,k\n" + "".join(f"2020-0{month}-10T00:00:00,{month}\n" for month in (1, 2, 3)))
    home("insert", MANY, str(rows))
    home("table", "alter", MANY, "--ttl", "30d on ts to volume cold_s3")
    parts: list[str] = [part["part"] for part in home.json("parts", MANY)["parts"]]
    assert len(parts) == 3
    return sorted(parts)


def _moves(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((row["table"], row["part"]) for row in rows)


@pytest.mark.in_turn
def test_some_of_several_planned_moves_are_approved(home: Home) -> None:
    """The marked ones are carried out, in the order of the plan and as it says; the others are due as before."""
    several = _several_due(home)
    planned = home.json("plan")["moves"]
    assert _moves(planned) == [("d.events", DUE), *((MANY, part) for part in several)]
    wanted, left = {several[0], several[2]}, [("d.events", DUE), (MANY, several[1])]

    async def story(driver: Driver) -> None:
        await driver.press("5")
        await driver.lists(_moves(planned), _moves)
        for part in sorted(wanted):
            at = next(n for n, row in enumerate(driver.rows) if (row["table"], row["part"]) == (MANY, part))
            await driver.press("home", *["down"] * at, "space")
        await driver.press("a")
        await driver.sees("Carry out 2 planned moves?", *(f"$ frostline move {MANY} --part {part}" for part in wanted))
        await driver.lacks(f"$ frostline move {MANY} --part {several[1]}", "$ frostline move d.events")
        await driver.press("n")
        await driver.lists(_moves(planned), _moves)
        assert _moves(driver.beside(home, "plan")["moves"]) == _moves(planned), "a no leaves all as it was"
        await driver.press("a", "y")
        await driver.until(lambda: driver.told[0].startswith("2 parts moved"))
        await driver.lists(left, _moves)
        assert _moves(driver.beside(home, "plan")["moves"]) == left

    drive(home, story, size=(140, 40))
    at = {(part["table"], part["part"]): part["disk"] for part in home.json("parts")["parts"]}
    assert {part for (table, part), disk in at.items() if table == MANY and disk == "s3"} == wanted
    assert at["d.events", DUE] == "ssd"
    done = home.json("moves", "list")["moves"]
    assert {(move["part"], move["to"], move["state"]) for move in done} == {(part, "s3", "done") for part in wanted}
    by_part = {(move["table"], move["part"]): move for move in planned}
    for move in done:
        told = by_part[move["table"], move["part"]]
        assert (move["from"], move["bytes"]) == (told["from"], told["bytes"])


@pytest.mark.in_turn
def test_the_log_is_filtered(home: Home) -> None:
    """By column, as `log --json` has the entries; without a filter all are back."""
    home.to_bucket(table="d.small")
    home("move", "d.events", "--part", DUE, "--to-disk", "s3")
    home("table", "drop", "d.small")
    entries = home.json("log", "s3")["entries"]
    kinds = {entry["kind"] for entry in entries}
    assert len(kinds) > 1

    async def story(driver: Driver) -> None:
        await driver.press("7")
        await driver.lists(_revisions(entries), _revisions)
        for kind in sorted(kinds):
            await driver.press("slash")
            await driver.write(f"kind={kind}")
            await driver.lists(_revisions([one for one in entries if one["kind"] == kind]), _revisions)
            await driver.press("escape", "escape")
            await driver.lists(_revisions(entries), _revisions)
        await driver.press("slash")
        await driver.write("-disk:s3")
        await driver.lists([], _revisions)

    drive(home, story, size=(140, 40))


def _revisions(entries: list[dict[str, Any]]) -> list[int]:
    return sorted(entry["revision"] for entry in entries)


@pytest.mark.in_turn
def test_a_plan_says_which_disk_cannot_be_asked(home: Home) -> None:
    """Nothing is due of what is seen; whether something is on the disk that is away, nobody knows."""
    home("table", "drop", "d.events")
    bucket = home.path.parent / "s3"
    seen = "Nothing seems due; disk s3 is unavailable: 'frostline doctor'"

    async def story(driver: Driver) -> None:
        await driver.press("5")
        await driver.sees("Nothing is due")
        bucket.rename(bucket.with_name("away"))
        await driver.press("r")
        await driver.sees(seen)
        driver.beside(home, "plan")
        assert seen in home.error, "and the verb says the same"
        bucket.with_name("away").rename(bucket)
        await driver.press("r")
        await driver.lacks("cannot be asked")
        await driver.sees("Nothing is due")

    drive(home, story, size=(140, 40))


@pytest.mark.in_turn
def test_a_backup_that_was_drilled_says_so(home: Home) -> None:
    """When, and what was found, as `backup list --json` has it."""
    repository = (home.path / "backups").as_uri()
    with home.configuration.open("a") as file:
        file.write(f"backup: {{repository: {repository!r}}}\n")
    home("backup", "init", repository)
    home("backup", "create", "one")

    async def story(driver: Driver) -> None:
        await driver.press("8")
        await driver.lists([None], lambda rows: [row["drilled"] for row in rows])
        assert driver.text.count("never") == 2, "neither verified nor drilled"
        driver.beside(home, "backup", "drill", "one")
        (drilled,) = driver.beside(home, "backup", "list")["backups"]
        assert drilled["drilled"]["ok"]
        await driver.press("r")
        await driver.lists([drilled], lambda rows: json.loads(encode(rows)))
        when = drilled["drilled"]["time"][:16].replace("T", " ")
        await driver.sees(f"ok {when}")
        assert driver.text.count("never") == 1

    drive(home, story, size=(160, 40))
