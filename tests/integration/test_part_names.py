"""A part's name is given once: by inserts and merges, whatever was lost, dropped or brought back in between (I18)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from oplog.entry import Create
from tests.command_line import Frostline
from tiering.catalog import tables
from tiering.config.reading import load
from tiering.engine.store import Store


class Given:
    """What every name that a part ever had stood for: the digest of its data, or where it lay."""

    def __init__(self) -> None:
        self._digests: dict[str, set[str]] = {}

    def note(self, path: str, sha256: str) -> None:
        """A name must not stand for other bytes than before."""
        name = path.split("/")[-2]
        self._digests.setdefault(name, set()).add(sha256)
        assert len(self._digests[name]) == 1, f"{name} was given twice"


class Machine:
    """A machine of its own at the bucket, used from the command line. Each verb is followed by a look at all names."""

    def __init__(self, home: Path, bucket: Path, given: Given, frostline: Frostline, *, first_row: int = 0) -> None:
        home.mkdir()
        self.home, self._given, self._frostline = home, given, frostline
        disks = {
            "ssd": {"type": "local", "path": str(home / "ssd")},
            "s3": {"type": "object_disk", "url": bucket.as_uri() + "/"},
        }
        volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
        self.configuration = home / "frostline.yaml"
        self.configuration.write_text(
            yaml.safe_dump(
                {"state_path": str(home / "state"), "disks": disks, "policies": {"hot_cold": {"volumes": volumes}}}
            )
        )
        self._rows = first_row

    def __call__(self, *arguments: str, code: int = 0) -> str:
        said = self._frostline("-c", str(self.configuration), *arguments, code=code)
        self._look()
        return said

    def create(self, *options: str) -> int:
        """The table; the revision that has it."""
        columns = ("--column", "k:int64", "--column", "ts:timestamp")
        self("table", "create", "d.t", *columns, "--order-by", "k", *options)
        return self.revision

    def insert(self, *years: int, cold: bool = True) -> int:
        """A row of each of the years (2020), that nobody inserted before, each in a part of its own; the revision that
        has them."""
        for year in years or (2020,):
            self._rows += 1
            path = self.home / "rows.csv"
            path.write_text(f"k,ts\n{self._rows},{year}-01-01T00:00:00Z\n")
            self("insert", "d.t", str(path))
        if cold:
            self("move", "d.t", "--partition", "all", "--to-disk", "s3")
        return self.revision

    def go_back(self, revision: int) -> None:
        self("restore", "s3", "--revision", str(revision), "--apply", "--yes")

    def merge(self) -> int:
        self("merge", "d.t", "--final")
        return self.revision

    def lose_the_state(self) -> None:
        shutil.rmtree(self.home / "state")

    @property
    def revision(self) -> int:
        with self._store() as store:
            return store.object_disk("s3").revision

    @property
    def keys(self) -> list[int]:
        with self._store() as store:
            return sorted(store.query("SELECT k FROM d.t").read_all().column("k").to_pylist())

    @property
    def parts(self) -> list[str]:
        with self._store() as store:
            return sorted(stored.part.name for stored in store.parts())

    def _store(self) -> Store:
        return Store.open(load(self.configuration))

    def _look(self) -> None:
        with self._store() as store:
            for entry in store.object_disk("s3").entries():
                for step in entry.commit.operations:
                    if isinstance(step, Create) and step.path.endswith("/data-0000.parquet"):
                        self._given.note(step.path, step.sha256)
            for stored in store.parts():
                self._given.note(f"{stored.directory}/-", stored.part.files[0].sha256)


@pytest.fixture
def given() -> Given:
    return Given()


@pytest.fixture
def one(tmp_path: Path, given: Given, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(tmp_path / "one", tmp_path / "bucket", given, Frostline(capsys))


@pytest.fixture
def two(tmp_path: Path, given: Given, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(tmp_path / "two", tmp_path / "bucket", given, Frostline(capsys), first_row=100)


@pytest.fixture
def three(tmp_path: Path, given: Given, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(tmp_path / "three", tmp_path / "bucket", given, Frostline(capsys), first_row=200)


def test_after_a_restore_with_a_lost_state(one: Machine) -> None:
    before = one.create()
    after = one.insert()
    one.lose_the_state()
    one.go_back(before)
    one.insert()
    one.go_back(after)
    assert one.keys == [1]


def test_after_a_drop_an_undo_and_a_restore(one: Machine) -> None:
    """The journal must not forget the numbers of a table that was dropped: it may come back."""
    before = one.create()
    after = one.insert()
    one("table", "drop", "d.t", "--yes")
    one("undo", "s3", str(one.revision), "--yes")
    one.go_back(before)
    one.insert()
    one.go_back(after)
    assert one.keys == [1]


def test_ranges_after_a_drop_and_a_restore(one: Machine, two: Machine, three: Machine) -> None:
    """A range that was taken after the revision that the table comes back from stays taken."""
    before = one.create()
    two.insert()
    one("table", "drop", "d.t", "--yes")
    one.go_back(before)
    three.insert()


@pytest.mark.in_turn
@pytest.mark.parametrize("cold", [True, False])
def test_after_a_ttl_delete_with_a_lost_state(one: Machine, cold: bool) -> None:
    """Nothing in sight tells of the numbers that went."""
    one.create("--ttl", "1d on ts delete")
    one.insert(2020, 2021, cold=cold)
    one("tick", "--believe-clock", "--only", "moves")
    assert one.parts == []
    one.lose_the_state()
    one("table", "alter", "d.t", "--ttl", "")
    one.insert(cold=cold)
    assert one.keys == [3]


def test_parts_from_before_and_after_a_lost_state_merge(one: Machine) -> None:
    """Both ranges are this machine's: nothing of another one lies between them."""
    one.create()
    one.insert(2020, 2020, cold=False)
    one.lose_the_state()
    one.insert(2020, 2020, cold=False)
    one.merge()
    assert one.parts == ["all_1_1000002_1"]
    assert one.keys == [1, 2, 3, 4]


def test_a_journal_that_is_older_than_the_parts(one: Machine) -> None:
    """Put back from a copy, it does not know what was given since."""
    one.create()
    one.insert()
    copy = one.home / "copy"
    shutil.copytree(one.home / "state", copy)
    one.insert(2020, 2020)
    one.lose_the_state()
    copy.rename(one.home / "state")
    one.insert()
    assert one.keys == [1, 2, 3, 4]
    assert one.parts[0] == "all_1000001_1000001_0"


@pytest.mark.in_turn
@pytest.mark.parametrize("back", ["restore", "copy", "undo"])
@pytest.mark.parametrize("lost", [False, True])
def test_merges_after_the_way_back(one: Machine, back: str, lost: bool, tmp_path: Path) -> None:
    """What was merged is merged again, and is not the same any more."""
    one.create()
    before = one.insert(2999, 2020, 2999)
    copy = shutil.copytree(tmp_path / "bucket", tmp_path / "copy")
    after = one.merge()
    if back == "restore":
        one.go_back(before)
    elif back == "copy":
        one("restore", "s3", "--from", copy.as_uri() + "/", "--apply", "--yes")
        one("restore", "s3", "--from", copy.as_uri() + "/", "--apply", "--yes", "--error-on-nothing", code=9)
    else:
        one("undo", "s3", str(after), "--yes")
    if lost:
        one.lose_the_state()
    one("table", "alter", "d.t", "--add-column", "x:int64")
    one.merge()
    assert one.parts == ["all_1_3_2"]
    one.go_back(after)
    assert one.parts == ["all_1_3_1"]
    assert one.keys == [1, 2, 3]


@pytest.mark.in_turn
def test_after_a_partition_that_came_from_a_copy(
    one: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It brings who gave the names of its parts, not its parts alone: they may go again."""
    one.create()
    one.insert()
    other = Machine(tmp_path / "other", tmp_path / "elsewhere", Given(), Frostline(capsys), first_row=100)
    copy = f"{(tmp_path / 'bucket').as_uri()}/"
    other("restore", "s3", "--from", copy, "--table", "d.t", "--partition", "all", "--apply")
    assert other.parts == ["all_1_1_0"]
    with other._store() as store:
        tables.drop_parts(store.context, store.parts("d.t"), reason="past its time", by_ttl=True)
    other.insert()
    assert other.parts == ["all_1000001_1000001_0"]
    again = ("restore", "s3", "--from", copy, "--table", "d.t", "--partition", "all", "--apply", "--yes")
    other(*again)
    assert other.parts == ["all_1_1_0"]
    other(*again, "--error-on-nothing", code=9)
