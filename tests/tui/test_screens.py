"""Each screen shows what the verbs say with `--json`, of a real store."""

from __future__ import annotations

import json
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.homes import Home
from tests.tui.conftest import DUE, STAYS, due_move
from tests.tui.pilot import Driver, drive, opener
from tiering.config.reading import load
from tiering.daemon.jobs.record import JOBS_FILE
from tiering.daemon.lock import daemon_lock
from tiering.daemon.status import DaemonStatus, StatusRecord
from tiering.engine.store import Store
from tui.app import help_lines
from tui.facts.overview import overview
from tui.facts.storage import Throughput, throughput
from tui.screens.list_view import ListView
from tui.screens.overview import Overview, overview_text
from tui.screens.storage import Disks


def _plain(value: object) -> object:
    """Times as JSON has them."""
    from tiering.cli.frame.output import encode

    return json.loads(encode(value))


@pytest.mark.in_turn
def test_each_screen_has_the_numbers_of_its_verb(home: Home) -> None:
    home.to_bucket(table="d.small")
    repository = (home.path / "backups").as_uri()
    home("backup", "init", repository)
    with home.configuration.open("a") as file:
        file.write(f"backup: {{repository: {repository!r}}}\n")
    home("backup", "create")
    expected = {
        "2": [{**table, "partitions": None} for table in home.json("table", "list")["tables"]],
        "3": home.json("parts")["parts"],
        "4": home.json("moves", "list")["moves"],
        "5": home.json("plan")["moves"],
        "6": home.json("disks")["disks"],
        "7": home.json("log", "s3")["entries"],
        "8": home.json("backup", "list")["backups"],
        "9": home.json("daemon", "status", code=1)["jobs"],
    }

    async def story(driver: Driver) -> None:
        view = driver.app.view
        assert isinstance(view, Overview)
        status = {**driver.beside(home, "status"), "recovered": []}
        await driver.until(lambda: view.document is not None and _plain(view.document.status) == status)
        for key, documents in expected.items():
            await driver.press(key)
            await driver.lists(_without_room(documents), _without_partitions if key == "2" else _without_room)
            await driver.until(lambda: driver.app.problem is None)

    drive(home, story)


def _without_partitions(rows: list[dict[str, Any]]) -> list[str]:
    return _without_room(
        [{**{name: value for name, value in row.items() if name != "paused"}, "partitions": None} for row in rows]
    )


def _without_room(documents: object) -> list[str]:
    """In any order; and others write to the file system of the tests meanwhile."""
    rows = _plain(documents)
    assert isinstance(rows, list)
    return sorted(
        repr(sorted((name, str(value)) for name, value in row.items() if name != "free_bytes")) for row in rows
    )


@pytest.mark.in_turn
def test_parts_say_why_and_when(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "enter")
        reason = "move to s3: newest row 2020-01-10T00:00Z + 30d"
        await driver.until(lambda: reason in driver.text.replace("\n", " ").replace("│", ""))
        await driver.sees("due", "2099-03-12")

    drive(home, story, size=(200, 40))


@pytest.mark.in_turn
def test_parts_say_where_they_go_also_when_that_is_later(home: Home) -> None:
    """By the next rule, also while a pause holds what is due; a pinned part goes nowhere."""
    home("pin", "d.small", "--part", "all_1_1_0")

    async def story(driver: Driver) -> None:
        await driver.press("3")
        for pauses in ("", "d.events"):
            await driver.until(
                lambda: _cells(driver, "goes", "part") == {DUE: "s3", STAYS: "s3", "all_1_1_0": "pinned"}
            )
            assert _cells(driver, "due", "part")[STAYS].startswith("2099-03-12")
            assert _cells(driver, "due", "part")[DUE] == ("" if pauses else "now")
            assert _cells(driver, "due", "part")["all_1_1_0"] == ""
            driver.beside(home, "pause", "d.events")
            await driver.press("r")

    drive(home, story)


@pytest.mark.in_turn
def test_pauses_are_said_where_they_matter(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("2")
        await driver.lacks("paused")
        await driver.press("home", "P")
        await driver.until(lambda: _cells(driver, "paused", "table") == {"d.events": "all", "d.small": ""})
        driver.beside(home, "pause", "--moves")
        await driver.press("r")
        await driver.until(lambda: _cells(driver, "paused", "table") == {"d.events": "all", "d.small": "moves"})
        assert {row["table"]: row["paused"] for row in driver.rows}["d.small"] == ["moves"]
        await driver.press("4")
        await driver.sees("moves of d.events, all tables are paused; merges of d.events are paused")
        await driver.press("5")
        await driver.sees("Nothing moves: moves of d.events are paused since ")

    drive(home, story, size=(140, 30))


def test_what_pacing_holds_back_is_listed_with_its_reason(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    far = datetime.now(UTC) + timedelta(hours=6)
    monkeypatch.setenv("FROSTLINE_POLICIES__HOT_COLD__PACING__WINDOW", f"{far:%H}:00-{far:%H}:30")

    assert [one["part"] for one in home.json("plan")["held"]] == [DUE]

    async def story(driver: Driver) -> None:
        await driver.press("5")
        await driver.sees("3 parts stay, 1 of them postponed")
        assert [row["part"] for row in driver.rows] == [DUE]
        assert _cells(driver, "why", "part")[DUE].startswith("parts move from ")
        await driver.press("a")
        await driver.until(lambda: driver.told[0].startswith("only moves can be approved, and none is selected"))

    drive(home, story, size=(140, 30))
    assert not home.json("moves", "list")["moves"]


@pytest.mark.in_turn
def test_jobs_are_not_idle_where_no_daemon_runs(home: Home) -> None:
    state = load(home.configuration).state_directory

    async def story(driver: Driver) -> None:
        await driver.press("9")
        await driver.sees("no daemon runs (frostline daemon run)")
        assert "idle" not in _cells(driver, "state", "job").values()
        assert _cells(driver, "state", "job")["policy"] == "no daemon"
        with daemon_lock(state):
            StatusRecord(state, DaemonStatus(running=True, pid=os.getpid()))
            await driver.press("r")
            await driver.sees(f"daemon: process {os.getpid()}")
            assert _cells(driver, "state", "job")["policy"] == "idle"

    drive(home, story)


@pytest.mark.in_turn
def test_filter_sort_and_marks(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3", "slash")
        await driver.write("age>30d")
        await driver.lists([DUE], lambda rows: [row["part"] for row in rows])
        await driver.press("enter", "space", "escape", "escape")
        await driver.lists(3, len)
        await driver.press("slash")
        await driver.write("colour:red")
        await driver.sees("there is no column 'colour' to filter by")

    drive(home, story)


@pytest.mark.in_turn
def test_what_lay_where_is_drawn_with_its_gaps(home: Home) -> None:
    with Store.open(load(home.configuration)) as store:
        now = store.context.clock()
        for hours_ago, size in ((20, 4_000), (2, 1_000)):
            store.context.journal.capacity.note({"ssd": size}, now - timedelta(hours=hours_ago))
    before = home.json("top")["capacity"]

    async def story(driver: Driver) -> None:
        await driver.sees("Last 24 hours", "ssd         ...█.................▃", "3.9 KiB > ")

    drive(home, story)
    after = home.json("top")["capacity"]
    assert before == {"ssd": [None] * 3 + [4_000] + [None] * 17 + [1_000, None, None]}
    assert after["ssd"][:-1] == before["ssd"][:-1]
    assert after["ssd"][-1] == sum(part["bytes"] for part in home.json("parts")["parts"])
    drive(home, story, read_only=True)


@pytest.mark.in_turn
def test_disks_show_what_moves_bring_there_and_which_fail(home: Home) -> None:
    """Also those of another process; the mean of the last ten seconds by the journal, and nothing when it is over."""
    now = [datetime.now(UTC)]
    with Store.open(load(home.configuration), actor="another@there") as store:
        work = store.context.journal.work
        going, failing = work.plan_moves([due_move(store), due_move(store)])
        work.set_moves([going, failing], "copying")
        work.set_move(failing, "failed", error="[bold]no room[/]")
        work.note_bytes({going: 5 << 20})

        async def story(driver: Driver) -> None:
            now[0] = work.move(going).updated + timedelta(seconds=5)
            await driver.press("6")
            await driver.sees("512.0 KiB")
            assert isinstance(driver.app.view, Disks)
            shown = {row["name"]: row for row in driver.rows}
            assert _without_room([*shown.values()]) == _without_room(driver.beside(home, "disks")["disks"])
            assert _cells(driver, "written") == {"s3": "512.0 KiB", "ssd": ""}
            assert _cells(driver, "read") == {"s3": "", "ssd": "512.0 KiB"}
            assert _cells(driver, "failing") == {"s3": "1", "ssd": ""}
            await driver.press("home", "enter", *["down"] * [*shown].index("s3"))
            seen = "moves of the last 10 s: 512.0 KiB/s written, 0 B/s read"
            await driver.until(lambda: seen in " ".join(driver.text.replace("│", "").split()))
            await driver.sees("[bold]no room[/]")
            now[0] += timedelta(seconds=60)
            work.set_move(going, "cancelled")
            await driver.press("r")
            await driver.lacks("512.0 KiB")

        drive(home, story, size=(200, 40), clock=lambda: now[0])


def _cells(driver: Driver, key: str, by: str = "name") -> dict[str, str]:
    """What stands in a column, by what stands in another."""
    view = driver.app.view
    assert isinstance(view, ListView)
    assert view.grid.shown is not None
    listing = view.grid.shown.listing
    names, values = (next(column for column in listing.columns if column.key == one) for one in (by, key))
    return {names.text(names.value(row)): values.text(values.value(row)) for row in listing.rows}


def test_bytes_of_a_move_are_spread_over_its_time(home: Home) -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with Store.open(load(home.configuration)) as store:
        number = store.context.journal.work.plan_moves([due_move(store)])[0]
        record = store.context.journal.work.move(number)

    def moved(state: str, ended_ago: float, seconds: float, **fields: Any) -> Any:
        ended = now - timedelta(seconds=ended_ago)
        return msgspec.structs.replace(record, state=state, updated=ended, seconds=seconds, bytes=1_000, **fields)

    for records, written in (
        ([moved("done", 0, 5)], 100),
        ([moved("done", 0, 20)], 50),
        ([moved("done", 5, 10)], 50),
        ([moved("done", 1, 0)], 100),
        ([moved("done", 11, 5)], 0),
        ([moved("copying", 20, 0, bytes_done=600)], 30),
        ([moved("failed", 1, 1), moved("planned", 1, 0)], 0),
        ([moved("done", 0, 5, requests=4), moved("committed", 0, 5)], 200),
    ):
        rates = throughput(records, now).get("s3", Throughput())
        assert rates.written_per_second == pytest.approx(written)
        assert rates.requests_per_second == sum(record.requests for record in records) / 10


def test_a_disk_tells_what_was_asked_of_its_bucket(home: Home) -> None:
    home.to_bucket(table="d.small")
    state = load(home.configuration).state_directory

    async def story(driver: Driver) -> None:
        await driver.press("6", "home", "enter")
        names = [row["name"] for row in driver.rows]
        await driver.press(*["down"] * names.index("s3"))
        await driver.sees("requests of these screens: LIST ", "pins: 0", "calls of these screens")
        await driver.sees("orphans: not counted by a daemon yet")
        record = {"jobs": {"gc": {"figures": {"orphaned": 3, "orphaned_bytes": 2048}}}}
        (state / JOBS_FILE).write_text(json.dumps(record))
        assert driver.beside(home, "status")["garbage"] == record["jobs"]["gc"]["figures"]
        await driver.press("enter", "enter")
        await driver.until(
            lambda: "orphans: 3 objects (2.0 KiB) in all buckets" in " ".join(driver.text.replace("│", "").split())
        )

    drive(home, story, size=(140, 40))


@pytest.mark.in_turn
def test_sql_answers_and_says_what_is_wrong(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("0")
        await driver.write("select k from d.small")
        await driver.press("f5")
        await driver.lists([[1], [2], [3]], lambda rows: [list(row.values()) for row in rows])
        await driver.press("e")
        await driver.write(" garbage,,")
        await driver.press("f5")
        await driver.until(lambda: driver.told)

    drive(home, story)


@pytest.mark.in_turn
def test_a_statement_is_left_by_escape_and_found_again(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("0")
        await driver.write("select 2")
        await driver.press("escape", "2")
        await driver.sees("d.small", "hot_cold")
        await driver.press("0")
        await driver.sees("select 2")

    drive(home, story)


@pytest.mark.in_turn
def test_a_statement_that_runs_keeps_no_key(home: Home) -> None:
    open_store, go_on = opener(home), threading.Event()

    def opened(*progress: Any) -> Store:
        if progress:
            go_on.wait()
        return open_store(*progress)

    async def story(driver: Driver) -> None:
        await driver.press("0")
        await driver.write("select 2")
        driver.send("f5")
        await driver.until(lambda: driver.app.source.running)
        driver.send("escape")
        await driver.until(lambda: not driver.app.query_one("#statement").has_focus)
        driver.send("2")
        await driver.sees("d.small", "hot_cold")
        go_on.set()
        await driver.press("0")
        await driver.until(lambda: [list(row.values()) for row in driver.rows] == [[2]])

    drive(home, story, opened=opened)


def test_a_disk_is_as_full_as_all_that_lies_on_it(home: Home) -> None:
    """However little of it is the store's; a bucket has no end."""
    with Store.open(load(home.configuration)) as store:
        facts = overview(store)
    ssd = next(disk for disk in facts.disks if disk.name == "ssd")
    ssd = replace(ssd, used_bytes=1, free_bytes=25, total_bytes=100)
    s3 = next(disk for disk in facts.disks if disk.name == "s3")
    facts = replace(facts, disks=[ssd, s3])
    s3_line, ssd_line = sorted(line for line in overview_text(facts) if line.startswith(("  ssd  ", "  s3  ")))
    assert ssd_line == f"  ssd        [{'#' * 15}{'.' * 5}]  75% full  1 B, {ssd.parts} parts; 25 B free"
    assert "full" not in s3_line
    facts = replace(facts, disks=[replace(ssd, free_bytes=None), s3])
    assert "full" not in next(line for line in overview_text(facts) if line.startswith("  ssd  "))


@pytest.mark.in_turn
def test_a_screen_that_is_not_configured_says_how_to_get_it(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("8")
        await driver.sees("no backup repository is named", "FROSTLINE_BACKUP")
        await driver.press("minus")
        await driver.sees("No replicated tables here")
        await driver.press("2")
        await driver.lacks("no backup repository")
        await driver.until(lambda: driver.app.problem is None)

    drive(home, story)


@pytest.mark.in_turn
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (20, 5)])
def test_every_screen_fits_every_size_is_as_it_was_and_has_help(home: Home, size: tuple[int, int]) -> None:
    """As it was: `snapshots/` has each screen as text; FROSTLINE_SNAPSHOTS=write in front writes them anew."""
    seen: list[str] = []

    async def story(driver: Driver) -> None:
        for key in ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "minus"):
            await driver.press(key)
            await driver.until(lambda: driver.app.view is not None)
            await driver.until(lambda: all(len(line) <= size[0] for line in driver.text.splitlines()))
            seen.append(steady(driver.text))
            await driver.press("f1")
            await driver.until(lambda: len(driver.app.screen_stack) == 2)
            await driver.press("escape")
        await driver.resize(size[1] * 3, size[0] // 3)
        await driver.resize(*size)

    drive(home, story, size=size, clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    if size != (20, 5):
        kept = Path(__file__).parent / "snapshots" / f"{size[0]}x{size[1]}.txt"
        text = "\n".join(f"{screen}\n{'=' * size[0]}" for screen in seen) + "\n"
        if os.environ.get("FROSTLINE_SNAPSHOTS") == "write":
            kept.write_text(text)
        assert text == kept.read_text()


def steady(screen: str) -> str:
    """Without what differs between machines and moments: sizes, the times of commits, who made them; and without the
    empty lines between a list and the keys."""
    for varies, instead in (
        (r" *\d[\d.]* (?:[KMGT]i)?B\b *", " ~ "),
        (r" *\[[#.]{20}\] +\d+%(?: full)? *", " ~ "),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d(?=  (?:create|alter)_table)", "~"),
        (r"(all_1_1_0 +(?:d\.small +)?ssd) +\S+", r"\1 ~"),  # a table without a time: since it was written
        (r"disk ssd has \d+%.*", "disk ssd has ~"),
        (r"\S+@\S+", "~"),
    ):
        screen = re.sub(varies, instead, screen)
    screen = "\n".join(map(str.rstrip, screen.splitlines()))
    return re.sub(r"\n{3,}", "\n\n", screen)


@pytest.mark.in_turn
def test_the_help_has_the_keys_of_the_screen_first(home: Home) -> None:
    async def story(driver: Driver) -> None:
        for key, first, titles in (
            ("3", "  m              Move               [parts.move]", ["Here", "Rows", "Everywhere", "Cursor"]),
            ("1", "  T              Pass now           [overview.tick]", ["Here", "Everywhere", "Cursor"]),
            ("0", "  esc            Leave the box      [sql.rows]", ["Here", "Rows", "Everywhere", "Cursor"]),
        ):
            await driver.press(key)
            bindings = [active.binding for active in driver.app.active_bindings.values()]
            lines = help_lines(bindings, driver.app.get_key_display)
            assert lines[1] == first
            assert [line for line in lines if line and not line.startswith(" ")] == titles

    drive(home, story)


def test_keys_come_from_the_configuration(home: Home) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("f8")
        await driver.lists([DUE, STAYS], lambda rows: [row["part"] for row in rows if row["table"] == "d.events"])

    drive(home, story, keys={"see.parts": "f8"}, theme="textual-light")
