"""What brings back, proves or collects data, done from the screens: collections, snapshots, passes, merges, backups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from disks.stores.wrappers.limit import Limiter
from oplog.errors import Refused
from tests.homes import Home
from tests.tui.conftest import DUE, due_move
from tests.tui.pilot import Driver, drive, opener
from tiering.config.reading import load
from tiering.engine.store import Store
from tui import verbs
from tui.source import Work

if TYPE_CHECKING:
    from tiering.cli.frame.session import Session


async def _go_to(driver: Driver, column: str, value: object) -> None:
    """The cursor to that row."""
    await driver.until(lambda: any(row[column] == value for row in driver.rows))
    steps = [row[column] for row in driver.rows].index(value)
    await driver.press("home", *["down"] * steps)


@pytest.mark.in_turn
def test_a_collection_shows_its_deletes_and_asks_the_disk_s_name(home: Home) -> None:
    home.to_bucket(table="d.small")
    before = home.json("gc", "s3")
    seen: list[str] = []

    async def story(driver: Driver) -> None:
        await driver.press("6")
        await _go_to(driver, "name", "s3")
        await driver.press("c")
        await driver.sees("Delete unreferenced objects on disk s3?", "$ frostline gc s3 --delete")
        await driver.sees(f"referenced  {before['referenced']:,}", f"orphaned    {before['orphaned']:,}")
        await driver.write("ssd")
        await driver.press("enter")
        await driver.sees("No match")
        await driver.press("backspace", "backspace", "backspace")
        await driver.write("s3")
        await driver.press("enter")
        await driver.until(lambda: driver.told)
        seen.extend(driver.told)

    drive(home, story)
    assert seen[0].startswith("gc of s3: ")
    assert seen[0].endswith("\n$ frostline gc s3 --delete")
    assert {**home.json("gc", "s3"), "pending": 0} == {**before, "pending": 0}


def test_a_collection_of_a_local_disk_is_refused_as_by_the_verb(home: Home) -> None:
    home("gc", "ssd", code=2)
    words = home.error.splitlines()[0].removeprefix("frostline: ")

    async def story(driver: Driver) -> None:
        await driver.press("6")
        await _go_to(driver, "name", "ssd")
        await driver.press("c")
        await driver.until(lambda: any(words in told for told in driver.told))
        await driver.until(lambda: len(driver.app.screen_stack) == 1)

    drive(home, story)


@pytest.mark.in_turn
def test_a_snapshot_is_written(home: Home) -> None:
    home.to_bucket(table="d.small")
    head = home.head()

    async def story(driver: Driver) -> None:
        await driver.press("6")
        await _go_to(driver, "name", "s3")
        await driver.press("w")
        await driver.is_told(f"Wrote a snapshot of s3 at revision {head}.\n$ frostline snapshot s3")

    drive(home, story)
    assert list((home.path.parent / "s3").rglob("*snapshot*"))


def test_a_pass_shows_what_is_due_and_does_it(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("T")
        await driver.sees("Run one daemon pass now?", f"d.events {DUE}  ssd -> s3", "$ frostline tick")
        await driver.press("y")
        await driver.until(lambda: "1 part moved" in driver.told[0])
        await driver.press("5")
        await driver.lists([], lambda rows: rows)

    drive(home, story)
    assert {part["part"]: part["disk"] for part in home.json("parts")["parts"]}[DUE] == "s3"
    assert home.json("plan")["moves"] == []


@pytest.mark.in_turn
def test_a_merge_is_carried_out(home: Home) -> None:
    for key in range(4, 9):
        home.insert(key, table="d.small")

    async def story(driver: Driver) -> None:
        await driver.press("2")
        await _go_to(driver, "table", "d.small")
        await driver.press("m")
        await driver.sees("Merge d.small?", "all: 6 parts into one", "$ frostline merge d.small")
        await driver.press("y")
        await driver.until(lambda: "1 merge of d.small, 6 parts merged." in driver.told[0])
        await driver.press("4")
        await driver.lists(["done"], lambda rows: [row["state"] for row in rows])

    drive(home, story)
    assert [part["part"] for part in home.json("parts", "d.small")["parts"]] == ["all_1_6_1"]
    assert home.keys("d.small") == list(range(1, 9))


def test_a_move_that_waits_is_asked_to_stop(home: Home) -> None:
    with Store.open(load(home.configuration), actor="another@there") as store:
        (number,) = store.context.journal.work.plan_moves([due_move(store)])

        async def story(driver: Driver) -> None:
            await driver.press("4")
            await driver.lists(["planned"], lambda rows: [row["state"] for row in rows])
            await driver.press("c")
            await driver.is_told(f"1 move asked to stop.\n$ frostline moves cancel {number}")

        drive(home, story)
        assert store.context.journal.work.cancel_requests() == {number}


def _with_repository(home: Home) -> None:
    repository = (home.path / "backups").as_uri()
    home("backup", "init", repository)
    with home.configuration.open("a") as file:
        file.write(f"backup: {{repository: {repository!r}}}\n")


@pytest.mark.in_turn
def test_backups_are_made_verified_and_restored(home: Home) -> None:
    _with_repository(home)
    keys = home.keys("d.small")

    async def story(driver: Driver) -> None:
        await driver.press("8")
        await driver.sees("No backups yet")
        await driver.press("c")
        await driver.sees("Make a backup?", "2 tables, 3 parts", "$ frostline backup create")
        await driver.press("y")
        await driver.lists(1, len)
        await driver.until(lambda: "3 parts" in driver.told[0])
        made = driver.beside(home, "backup", "list")["backups"][0]
        await driver.press("v")
        await driver.until(lambda: f"Backup {made['name']} is whole" in driver.told[1])
        verified = driver.beside(home, "backup", "list")["backups"][0]["verified"]
        assert verified
        driver.beside(home, "table", "drop", "d.small")
        await driver.press("R")
        await driver.sees(f"Restore backup {made['name']}?", "d.small: 3 rows", f"Type {made['name']}")
        await driver.sees("--map-table d.events:d.events_restored", "d.events_restored: ")
        await driver.press("enter")
        await driver.sees("No match")
        await driver.write(made["name"])
        await driver.press("enter")
        await driver.until(lambda: "Restored 2 tables" in driver.told[2])

    drive(home, story, size=(140, 40))
    assert home.tables() == ["d.events", "d.events_restored", "d.small"]
    assert home.keys("d.small") == keys
    assert home.keys("d.events_restored") == home.keys("d.events")


def test_what_runs_shows_how_far_it_is(home: Home) -> None:
    """An action reports to the line at the bottom; a share that nobody knows is not drawn."""
    work = Work("Move")
    shares: list[Any] = [work.share]
    with work.task("moving parts", items=2, size_bytes=200) as task, work.task("sending"):
        for size in (50, 100, 100):
            task.advance(items=1, size_bytes=size)
            shares.append(work.share)
    with work.task("deleting", items=4) as task:
        task.advance(items=1)
        shares.append(work.share)
    assert [*shares, work.share] == [None, 0.25, 0.75, 1.0, 0.25, None]


def test_what_is_shown_does_not_wait_for_the_limits_of_an_action(home: Home) -> None:
    """A backup at `limits.bytes_per_second` kept the screens from being read for as long as it ran."""
    shared: list[Limiter] = []

    class Limited:
        options = SimpleNamespace(workers=None)

        def limiter(self) -> Limiter:
            shared.append(self.new_limiter())
            return shared[0]

        def new_limiter(self) -> Limiter:
            return Limiter(bytes_per_second=1000)

    open_store = verbs._opener(cast("Session", Limited()), load(home.configuration), recover=True)
    works = [Work("one"), Work("two")]
    with open_store() as showing, open_store(works[0]) as one, open_store(works[1]) as two:
        assert one.context.limiter is two.context.limiter is shared[0]
        assert showing.context.limiter not in (None, shared[0])


def test_actions_after_the_first_use_the_store_that_it_opened(home: Home) -> None:
    """As it is by then; one that failed is not used again."""
    open_store, opened = opener(home), list[Store]()

    def counting(*progress: Any) -> Store:
        opened.append(open_store(*progress))
        return opened[-1]

    async def story(driver: Driver) -> None:
        act = driver.app.source.act
        assert await act("one", lambda store: len(store.definitions())) == 2
        driver.beside(home, "table", "drop", "d.small")
        assert await act("two", lambda store: len(store.definitions())) == 1
        assert len(opened) == 2  # that of the screens, that of the actions

        def fail(store: Store) -> None:
            raise Refused("no")

        with pytest.raises(Refused):
            await act("three", fail)
        await act("four", lambda store: None)
        assert len(opened) == 3

    drive(home, story, opened=counting)
    assert not any(store.context.journal.file.is_open for store in opened[1:])  # the first closes in its own time
