"""What is done from the screens is what verbs do: it asks first, shows the command line, and refuses as they do."""

from __future__ import annotations

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE
from tests.tui.pilot import Driver, drive


@pytest.mark.in_turn
def test_planned_moves_are_shown_and_carried_out(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("5", "a")
        await driver.sees(f"$ frostline move d.events --part {DUE} --to-disk s3")
        await driver.press("n")
        await driver.is_told()
        await driver.press("a", "y")
        await driver.until(lambda: driver.told[0].startswith("1 part moved"))
        await driver.until(lambda: f"$ frostline move d.events --part {DUE} --to-disk s3" in driver.told[0])
        await driver.lists([], lambda rows: rows)
        await driver.press("4")
        await driver.lists([(DUE, "done")], lambda rows: [(row["part"], row["state"]) for row in rows])

    drive(home, story)
    assert {part["part"]: part["disk"] for part in home.json("parts")["parts"]}[DUE] == "s3"
    assert home.json("moves", "list")["moves"][0]["actor"] == "somebody@here"


@pytest.mark.in_turn
def test_what_is_no_longer_so_is_said_as_what_went_wrong(home: Home) -> None:
    """Somebody else was faster: the plan that was approved moves nothing."""

    async def story(driver: Driver) -> None:
        await driver.press("5", "a")
        await driver.sees(f"$ frostline move d.events --part {DUE} --to-disk s3")
        driver.beside(home, "move", "d.events", "--part", DUE, "--to-disk", "s3")
        failures: list[Exception] = []
        tell_error = driver.app.tell_error
        driver.app.tell_error = lambda error: (failures.append(error), tell_error(error))[1]  # type: ignore[method-assign]
        await driver.press("y")
        await driver.until(lambda: len(driver.told) == 1)
        assert driver.told[0].startswith(f"No part moved, 1 skipped; {DUE}: ")
        assert len(failures) == 1

    drive(home, story)


@pytest.mark.in_turn
def test_marked_parts_are_moved_pinned_and_unpinned(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "asterisk", "p")
        assert len(driver.beside(home, "status")["pins"]) == 3
        await driver.press("u")
        assert driver.beside(home, "status")["pins"] == []
        await driver.press("m", "down", "enter")
        await driver.sees("Move 3 parts to volume cold_s3?")
        await driver.press("y")
        await driver.lists({"s3"}, lambda rows: {row["disk"] for row in rows})
        await driver.sees("+")

    drive(home, story)
    assert {part["disk"] for part in home.json("parts")["parts"]} == {"s3"}


@pytest.mark.in_turn
def test_what_destroys_wants_its_name(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("2", "D")
        await driver.sees("$ frostline table drop d.events", "Restore cannot bring back the 2 on local disks.")
        await driver.lacks("preview: ")  # that has ended
        await driver.press("y", "enter")
        await driver.sees("No match")
        assert len(driver.beside(home, "table", "list")["tables"]) == 2
        await driver.press("backspace")
        await driver.write("d.events")
        await driver.press("enter")
        await driver.is_told("Dropped d.events.\n$ frostline table drop d.events")

    drive(home, story)
    assert home.tables() == ["d.small"]


@pytest.mark.in_turn
def test_an_undo_shows_what_it_would_do(home: Home) -> None:
    home.to_bucket(table="d.small")
    moved = home.head()
    home.insert(4, table="d.small")

    async def story(driver: Driver) -> None:
        await driver.press("7", "d")
        await driver.sees(f"frostline diff s3 {moved - 1} {moved}", "all_1_1_0")
        await driver.press("escape", "z")
        await driver.sees(f"Undo revision {moved} of disk s3: nothing to do", "REFUSED: ", "all_1_1_0")
        await driver.write(str(moved))
        await driver.press("enter", "escape")
        await driver.press("down", "z")
        await driver.sees(f"Undo revision {moved - 1} of disk s3")
        await driver.press("escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1)

    drive(home, story)
    assert home.head() == moved


@pytest.mark.in_turn
def test_what_would_do_nothing_is_not_asked(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "m", "enter")
        await driver.sees("to volume hot: nothing to do", "Nothing to move: all parts are there.")
        await driver.press("y", "escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1)
        await driver.is_told()

    drive(home, story)


@pytest.mark.in_turn
def test_merges_pauses_and_cancelled_moves(home: Home) -> None:
    home.insert(4, table="d.small")

    async def story(driver: Driver) -> None:
        await driver.press("2", "down", "P")
        await driver.is_told("paused moves, merges and gc of d.small.\n$ frostline pause d.small")
        await driver.press("U")
        assert driver.beside(home, "status")["pauses"] == []
        await driver.press("m")
        await driver.sees("Merge d.small: nothing to do", "Nothing to merge now.", "Escape closes")
        await driver.press("n", "4", "c")
        await driver.sees("No moves or merges yet.")

    drive(home, story)


@pytest.mark.in_turn
def test_read_only_changes_nothing(home: Home) -> None:
    before = home.json("parts")

    async def story(driver: Driver) -> None:
        for keys in (("1", "T"), ("2", "D"), ("3", "m"), ("3", "p"), ("5", "a"), ("7", "z"), ("9", "P")):
            await driver.press(*keys)
            await driver.until(lambda: len(driver.app.screen_stack) == 1)
        await driver.until(lambda: all("only reads" in told for told in driver.told))
        await driver.press("3", "b")
        await driver.sees(f"frostline blame d.events {DUE}")

    drive(home, story, read_only=True)
    assert home.json("parts") == before
    assert home.json("status")["pins"] == []
