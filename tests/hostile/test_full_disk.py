"""I20: reading writes nothing, and what makes room needs none. What was done, and what is answered:

| what is full, or mounted read-only | what used to happen | what is answered |
|---|---|---|
| the SSD is full | "copied, but still on ssd" by every pass, more rows in the journal each time | the part moves |
| the state's disk is full | no verb can open the journal: "disk I/O error" | reading works, moves and drops make room |
| one disk for both is full | the same | the same |
| any of them is read-only | "unexpected OSError" | reading works; a change says which directory it is, exit 13 |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from disks.object_disk.disk import ObjectDisk
from oplog.errors import NoSpace, ReadOnly
from tests.command_line import Frostline
from tests.mounts import Mount, mounted
from tiering.cli import main as cli
from tiering.config.reading import load
from tiering.daemon import daemon
from tiering.daemon.status import DaemonStatus
from tiering.engine.store import Store

pytestmark = pytest.mark.in_turn

ROWS = 6000
COUNT = "select count(*) from d.t"
RESERVE_BYTES = 1 << 20

READING: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("parts",),
    ("parts", "d.t", "--all"),
    ("query", COUNT),
    ("query", "select sum(n), max(x) from d.t where n > 100"),
    ("plan",),
    ("explain", "d.t", "202602_1_1_0"),
    ("disks",),
    ("policies",),
    ("du",),
    ("cost",),
    ("table", "list"),
    ("table", "show", "d.t"),
    ("moves", "list"),
    ("log", "s3"),
    ("log", "d.t"),
    ("diff", "s3", "1", "2"),
    ("blame", "d.t", "202601_1_1_0"),
    ("fsck",),
    ("fsck", "--read-data"),
    ("gc",),
    ("restore", "s3"),
    ("daemon", "status"),
    ("config", "show"),
    ("move", "d.t", "--partition", "202602", "--to-disk", "s3", "-n"),
    ("tick", "-n"),
)
"""Verbs that change nothing."""


def count(frostline: Frostline) -> int:
    return int(frostline.json("query", COUNT)["rows"][0][0])


def disks_of_parts(frostline: Frostline) -> dict[str, str]:
    return {part["part"][:6]: part["disk"] for part in frostline.json("parts")["parts"]}


def answers(frostline: Frostline) -> dict[str, Any]:
    """What every reading verb says; times, sizes of the file system and measured seconds are others each time."""
    found = {}
    for verb in READING:
        document = frostline.json(*verb, code=int(verb == ("daemon", "status")))  # 1: none runs
        found[" ".join(verb)] = _steady(document)
        assert "unexpected" not in frostline.error, verb
        assert "Traceback" not in frostline.error, verb
    return found


def _steady(document: Any) -> Any:
    moving = {
        "total_bytes",
        "free_bytes",
        "used_bytes",
        "bytes",
        "files",
        "seconds",
        "read_only",
        "requests",
        "state",
        "checked",
    }
    moving |= {"at", "next_due"}
    if isinstance(document, dict):
        return {key: _steady(value) for key, value in document.items() if key not in moving}
    if isinstance(document, list):
        return [_steady(value) for value in document]
    return document


def names_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.fixture(params=["ssd", "state", "both"])
def place(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """What lies on a small file system: the SSD, the state, or both of them on one."""
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", (home.parent / "bucket" / "store").as_uri() + "/")
    monkeypatch.setenv("FROSTLINE_LIMITS__STATE_RESERVE_BYTES", str(RESERVE_BYTES))
    with mounted(home if request.param == "both" else home / request.param) as mount:
        yield mount


@pytest.fixture
def store(place: Mount, frostline: Frostline) -> Frostline:
    """Three partitions on the SSD, one of them in the bucket; the two others are due to go there."""
    lines = (f"2026-0{1 + n % 3}-01T00:00:00Z,{n},{n * 37 % 1001 / 7}\n" for n in range(ROWS))
    Path("rows.csv").write_text("ts,n,x\n" + "".join(lines))
    frostline(
        *("table", "create", "d.t", "--column", "ts:timestamp[us, UTC]", "--column", "n:int64"),
        *("--column", "x:float64", "--order-by", "n", "--partition-by", "month(ts)"),
    )
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "202601", "--to-disk", "s3")
    frostline("table", "alter", "d.t", "--ttl", "1d on ts to volume cold")
    assert count(frostline) == ROWS
    return frostline


class TestFull:
    def test_reading_needs_no_room(self, store: Frostline, place: Mount) -> None:
        before = answers(store)
        place.fill()
        names = names_below(place.path)
        assert answers(store) == before
        assert names_below(place.path) == names, "reading made or removed a file"
        place.free()
        assert answers(store) == before

    def test_parts_are_taken_off_by_hand_and_by_passes(self, store: Frostline, place: Mount) -> None:
        place.fill()
        report = store.json("move", "d.t", "--partition", "202602", "--to-disk", "s3")
        assert [part["part"] for part in report["moved"]] == ["202602_1_1_0"]
        assert disks_of_parts(store) == {"202601": "s3", "202602": "s3", "202603": "ssd"}
        place.fill()  # somebody else takes what that freed
        assert len(store.json("tick")["moved"]) == 1
        assert set(disks_of_parts(store).values()) == {"s3"}
        assert count(store) == ROWS
        assert store.json("fsck")["ok"]
        assert {move["state"] for move in store.json("moves", "list")["moves"]} == {"done"}
        place.free()
        assert store.json("fsck")["ok"]

    def test_the_reserve_is_made_again_when_there_is_room(self, store: Frostline, place: Mount) -> None:
        reserves = [path for path in place.path.rglob("reserve") if path.is_file()]
        assert {path.stat().st_blocks * 512 for path in reserves} == {RESERVE_BYTES}
        place.fill()
        store("tick")
        place.free()
        Path("more.csv").write_text("ts,n,x\n2026-05-01T00:00:00Z,1,1\n")
        store("table", "alter", "d.t", "--ttl", "9000d on ts to volume cold")
        store("insert", "d.t", "more.csv")
        assert {path.stat().st_size for path in reserves} == {RESERVE_BYTES}

    @pytest.mark.parametrize("what", ["rule", "table"])
    def test_drops_make_room_too(self, store: Frostline, place: Mount, what: str) -> None:
        store("table", "alter", "d.t", "--ttl", "2d on ts delete")
        place.fill()
        if what == "rule":
            store("tick", "--believe-clock")
            assert store.json("parts")["parts"] == []
        else:
            store("table", "drop", "d.t", "-y")
            assert store.json("table", "list")["tables"] == []
        assert not list(place.path.rglob("202602_*"))

    def test_without_a_reserve_nothing_piles_up(self, store: Frostline, place: Mount) -> None:
        for path in place.path.rglob("reserve"):
            path.unlink()
        place.fill()
        rows = []
        for _ in range(3):
            said = store("tick", code=1) + store.error
            assert "no space left" in said
            assert str(place.path) in said
            rows.append(len(store.json("moves", "list")["moves"]))
        assert rows[0] == rows[-1] <= 3
        assert count(store) == ROWS
        place.free()
        store("tick")
        assert set(disks_of_parts(store).values()) == {"s3"}
        assert count(store) == ROWS
        assert store.json("fsck")["ok"]

    def test_doctor_says_what_is_full_and_where_no_reserve_is(self, store: Frostline, place: Mount) -> None:
        """It ended with "no space left", at the file that it tries out fsync with."""

        def looked_at() -> set[tuple[str, str]]:
            found, code = store.any("doctor", "--json")
            problems = {
                (one["subject"], one["check"]) for one in json.loads(found)["findings"] if one["level"] == "problem"
            }
            assert code == (4 if problems else 0), store.error
            return problems

        assert not looked_at()
        place.fill()
        ssd, state = place.path.name != "state", place.path.name != "ssd"
        assert looked_at() == ({("disk ssd", "space")} if ssd else set())
        for path in place.path.rglob("reserve"):
            path.unlink()
        place.fill()
        without = ({("disk ssd", "space"), ("disk ssd", "reserve")} if ssd else set()) | (
            {("node", "reserve")} if state else set()
        )
        assert looked_at() == without
        place.free()
        assert not looked_at()

    def test_what_needs_room_says_which_directory_has_none(self, store: Frostline, place: Mount) -> None:
        Path("more.csv").write_text("ts,n,x\n2026-05-01T00:00:00Z,1,1\n")
        place.fill()
        if place.path.name == "ssd":  # the policy has a disk with room
            store("insert", "d.t", "more.csv")
            assert count(store) == ROWS + 1
            return
        for verb in (
            ("insert", "d.t", "more.csv"),
            ("pause",),
            ("pin", "d.t", "--partition", "202602"),
            ("table", "alter", "d.t", "--add-column", "more:int64"),
            ("table", "create", "d.u", "--column", "n:int64", "--order-by", "n"),
        ):
            error = failure(store, *verb, code=1)
            assert error["kind"] == "no_space", (verb, error)
            assert str(place.path) in error["message"], (verb, error)
        place.free()
        assert count(store) == ROWS
        assert store.json("fsck")["ok"]

    def test_a_daemon_that_was_there_before_drains(self, store: Frostline, place: Mount) -> None:
        with Store.open(load()) as opened:
            assert opened.query(COUNT)
            place.fill()
            status = daemon_pass(opened)
            assert (status.moved, status.failures) == (2, 0)
        assert set(disks_of_parts(store).values()) == {"s3"}
        assert count(store) == ROWS


def failure(frostline: Frostline, *verb: str, code: int) -> Any:
    """The error of a verb that fails, as scripts see it."""
    import json

    frostline(*verb, "--json", code=code)
    last = frostline.error.strip().splitlines()[-1]
    return json.loads(last if last.startswith('{"error"') else frostline.error[frostline.error.index('{"error"') :])[
        "error"
    ]


def daemon_pass(store: Store) -> DaemonStatus:
    import threading

    return daemon.run(store, store.context.config.daemon, threading.Event(), once=True)


class TestReadOnly:
    @pytest.fixture
    def frozen(self, store: Frostline, place: Mount) -> Frostline:
        place.remount("ro")
        return store

    def test_reading_works(self, store: Frostline, place: Mount) -> None:
        before = answers(store)
        place.remount("ro")
        found = answers(store)
        for verb in (
            "plan",
            "explain d.t 202602_1_1_0",
            "tick -n",
            *(name for name in found if name.startswith("move")),
        ):
            before.pop(verb, None)  # a part cannot leave a disk that is read-only
            found.pop(verb, None)
        before.pop("status"), found.pop("status")
        assert found == before

    def test_a_change_says_which_directory_is_read_only(self, frozen: Frostline, place: Mount) -> None:
        Path("more.csv").write_text("ts,n,x\n2026-05-01T00:00:00Z,1,1\n")
        verbs = [("table", "drop", "d.t", "-y")]
        if place.path.name != "ssd":  # else nothing but the parts on it is concerned
            verbs += [("insert", "d.t", "more.csv"), ("pause",)]
        if place.path.name == "state":  # else nothing is due: no part can leave the SSD
            verbs.append(("tick",))
        for verb in verbs:
            error = failure(frozen, *verb, code=13)
            assert error["kind"] == "read_only", (verb, error)
            assert "read-only" in error["message"]
            assert str(place.path) in error["message"] or "disk ssd" in error["message"], (verb, error)
            assert error["hint"]
        place.remount("rw")
        assert count(frozen) == ROWS
        frozen("tick")
        assert set(disks_of_parts(frozen).values()) == {"s3"}
        assert frozen.json("fsck")["ok"]

    def test_parts_stay_on_a_disk_that_is_read_only(self, frozen: Frostline, place: Mount) -> None:
        if place.path.name != "ssd":
            pytest.skip("with the state read-only nothing begins")
        assert frozen.json("tick")["moved"] == []
        assert disks_of_parts(frozen)["202602"] == "ssd"
        place.remount("rw")
        assert len(frozen.json("tick")["moved"]) == 2


class TestWhileSomethingIsMissing:
    """Stores whose last process was killed, or whose state is not there at all."""

    def killed(self, place: Mount, home: Path) -> None:
        """What a killed process leaves of the journal and the file table: a log that is not in the file yet."""
        import subprocess
        import sys

        code = (
            "import os, sqlite3, sys\n"
            "journal, table = (sqlite3.connect(name, isolation_level=None) for name in sys.argv[1:])\n"
            "journal.execute(\"INSERT INTO pauses VALUES ('', 'gc', '2026-01-01T00:00:00+00:00', 'me')\")\n"
            "table.execute(\"INSERT INTO state VALUES ('noted', 'late')\")\n"
            "os._exit(0)\n"
        )
        state = home / "state"
        subprocess.run([sys.executable, "-c", code, state / "journal.db", state / "disks/s3/files.db"], check=True)

    @pytest.mark.parametrize("how", ["full", "ro"])
    @pytest.mark.parametrize("index", [True, False])
    def test_killed_before(self, store: Frostline, place: Mount, home: Path, how: str, index: bool) -> None:
        self.killed(place, home)
        assert (home / "state" / "journal.db-wal").stat().st_size
        if not index:
            for path in (home / "state").rglob("*-shm"):
                path.unlink()
        place.fill() if how == "full" else place.remount("ro")
        assert count(store) == ROWS
        with Store.open(load(), recover=False) as opened:
            assert [pause.kind for pause in opened.context.journal.overrides.pauses()] == ["gc"]
            with opened.object_disk("s3").file_table.read() as view:
                assert view.state()["noted"] == "late"
        assert store.json("fsck")["ok"]
        if how == "full":
            store("tick")
            assert set(disks_of_parts(store).values()) == {"s3"}

    @pytest.mark.parametrize("how", ["full", "ro"])
    def test_no_state_at_all(self, store: Frostline, place: Mount, home: Path, how: str) -> None:
        import shutil

        if place.path.name == "ssd":
            pytest.skip("the state has room")
        for path in (home / "state").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        place.fill() if how == "full" else place.remount("ro")
        assert count(store) == ROWS
        assert count(store) == ROWS


@pytest.fixture
def narrow_table(
    home: Path, frostline: Frostline, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Frostline, Mount]]:
    """A store whose file table alone lies on a small file system; one part is on both disks."""
    with mounted(home / "state" / "disks" / "s3", size="1m") as mount:
        Path("rows.csv").write_text("n\n1\n2\n")
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        frostline("insert", "d.t", "rows.csv")
        yield frostline, mount


def test_a_part_leaves_only_when_its_arrival_is_noted(narrow_table: tuple[Frostline, Mount]) -> None:
    """Else nobody would know of it while the bucket is away."""
    frostline, mount = narrow_table
    before = (mount.path / "files.db").read_bytes()
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3", "--keep-source")
    (mount.path / "files.db").write_bytes(before)
    mount.fill()
    assert "no space left" in frostline("move", "d.t", "--partition", "all", "--to-disk", "s3", code=1)
    with Store.open(load(), recover=False) as store:
        disk = store.disk("s3")
        assert isinstance(disk, ObjectDisk)
        assert disk.file_table.is_copy
        with pytest.raises(NoSpace):
            disk.remember()
        assert [part.disk for part in store.parts(include_outdated=True)] == ["ssd", "s3"]
    mount.free()
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    assert disks_of_parts(frostline) == {"all_1_": "s3"}


ROOM = (0, 12, 32, 64, 128, 192, 256)
"""KiB that are left when something begins: it runs out of them somewhere on its way."""


class TestInTheMiddle:
    """No room in the midst of a change: all of it or nothing, a clear error, and it works when there is room."""

    def run(self, frostline: Frostline, place: Mount, act: Callable[[], int], *, whole: int = ROWS) -> None:
        for room in ROOM:
            place.free()
            place.fill(leaving_bytes=room * 1024)
            assert act() in (0, 1, 3, 13), room
            assert "unexpected" not in frostline.error, (room, frostline.error)
            assert count(frostline) % whole == 0, room
            assert frostline.json("fsck")["ok"], room

    def quietly(self, frostline: Frostline, *verb: str) -> int:
        frostline._capsys.readouterr()
        code = cli.run(verb)
        frostline.error = frostline._capsys.readouterr().err
        return code

    def test_insert(self, store: Frostline, place: Mount) -> None:
        lines = (f"2026-0{1 + n % 3}-01T00:00:00Z,{n + 10**6},{n * 41 % 1013 / 7}\n" for n in range(ROWS))
        Path("more.csv").write_text("ts,n,x\n" + "".join(lines))
        store("table", "alter", "d.t", "--ttl", "9000d on ts to volume cold")
        # Parts that go to two disks take two commits: the same insert again brings what is missing.
        self.run(store, place, lambda: self.quietly(store, "insert", "d.t", "more.csv"), whole=ROWS // 3)
        place.free()
        store("insert", "d.t", "more.csv")
        assert count(store) == 2 * ROWS

    def test_merge(self, store: Frostline, place: Mount) -> None:
        lines = (f"2026-02-01T00:00:00Z,{n + 10**6},{n * 41 % 1013 / 7}\n" for n in range(ROWS))
        Path("more.csv").write_text("ts,n,x\n" + "".join(lines))
        store("table", "alter", "d.t", "--ttl", "9000d on ts to volume cold")
        store("insert", "d.t", "more.csv")
        self.run(store, place, lambda: self.quietly(store, "merge", "d.t", "--partition", "202602", "--final"))
        place.free()
        store("merge", "d.t", "--final")
        assert count(store) == 2 * ROWS

    def test_move_back(self, store: Frostline, place: Mount) -> None:
        store("table", "alter", "d.t", "--ttl", "9000d on ts to volume cold")

        def there_and_back() -> int:
            code = self.quietly(store, "move", "d.t", "--partition", "202601", "--to-disk", "ssd")
            if code == 0 and disks_of_parts(store)["202601"] == "ssd":
                code = max(code, self.quietly(store, "move", "d.t", "--partition", "202601", "--to-disk", "s3"))
            return code if code != 10 else 0

        self.run(store, place, there_and_back)

    def test_create_and_drop(self, store: Frostline, place: Mount) -> None:
        def create_and_drop() -> int:
            made = ("table", "create", "d.u", "--column", "n:int64", "--order-by", "n", "--if-not-exists")
            code = self.quietly(store, *made)
            names = {table["table"] for table in store.json("table", "list")["tables"]}
            assert names in ({"d.t"}, {"d.t", "d.u"})
            if "d.u" in names:
                self.quietly(store, "table", "drop", "d.u", "-y")
            return code

        self.run(store, place, create_and_drop)
        place.free()
        store("table", "create", "d.u", "--column", "n:int64", "--order-by", "n", "--if-not-exists")

    def test_pass_of_the_daemon(self, store: Frostline, place: Mount) -> None:
        def one_pass() -> int:
            with suppress(NoSpace, ReadOnly), ExitStack() as stack:
                daemon_pass(stack.enter_context(Store.open(load())))
            return 0

        self.run(store, place, one_pass)
        place.free()
        store("tick")
        assert set(disks_of_parts(store).values()) == {"s3"}
