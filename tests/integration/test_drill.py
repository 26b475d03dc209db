"""`backup drill`: what is restored is checked, compared and taken away; what is wrong is named and kept. Guards P48."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from backup.format import names
from backup.format.header import DrillRecord
from backup.recover.drill import DrillRequest, DrillResult
from oplog.errors import NoSpace, NotFound, UsageError
from tests.backups import TABLE, Machine, events, filled, insert, machine_on
from tests.command_line import Frostline
from tests.mounts import mounted
from tests.servers import Server
from tiering.engine.store import Store


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    made = filled(machine_on(tmp_path))
    made.init()
    return made


def drill(machine: Machine, name: str = "latest", **options: object) -> DrillResult:
    with machine.repository() as repository:
        return repository.drill(name, DrillRequest(**options))  # type: ignore[arg-type]


def records(machine: Machine) -> list[DrillRecord]:
    with machine.repository() as repository:
        return [item.drilled for item in repository.backups() if item.drilled is not None]


def scratch_stores(machine: Machine) -> list[Path]:
    return list((machine.root / "state" / "backup").glob("*/drills/*"))


def stored(machine: Machine, prefix: str) -> list[Path]:
    root = Path(machine.repository_url.removeprefix("file://"))
    return sorted(path for path in (root / prefix).rglob("*") if path.is_file())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.in_turn
@pytest.mark.parametrize("place", ["directory", "s3"])
def test_a_whole_backup(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Server | None = request.getfixturevalue("ministack") if place == "s3" else None
    machine = filled(machine_on(tmp_path, server))
    machine.init()
    machine.create("one", cold="pin")
    before = machine.rows()
    with machine.open() as store:
        insert(store, 7000)  # not in the backup
    preview = drill(machine, dry_run=True)
    assert (preview.dry_run, preview.rows, records(machine)) == (True, len(before), [])
    found = drill(machine)
    assert found.ok, found.problems
    assert (found.name, found.whole, found.parts, found.rows) == ("one", True, 5, len(before))
    (record,) = records(machine)
    assert (record.whole, record.rows, record.problem_count) == (True, len(before), 0)
    assert not scratch_stores(machine)
    assert len(machine.rows()) == len(before) + 80


def test_every_object_that_is_damaged_or_gone_is_named(here: Machine) -> None:
    """Each object of the repository in turn: changed, then gone."""
    here.create("one")
    objects = [path for prefix in (names.BLOBS_PREFIX, names.PACKS_PREFIX) for path in stored(here, prefix)]
    assert objects
    for path in (*objects, *stored(here, names.LISTS_PREFIX)):
        whole = path.read_bytes()
        flip(path)
        changed = drill(here)
        path.unlink()
        gone = drill(here)
        path.write_bytes(whole)
        for found in (changed, gone):
            assert not found.ok, path
            assert any(path.name in problem and TABLE in problem for problem in found.problems), found.problems
            if path in objects:
                assert ", part" in found.problems[0], found.problems
    assert records(here)[0].problem_count
    assert drill(here).ok
    assert not records(here)[0].problem_count, "the newest counts"


def test_what_was_restored_is_compared(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that loses a part, or leaves a file changed, does not pass."""
    here.create("one")
    parts = Store.parts
    with monkeypatch.context() as patch:
        patch.setattr(Store, "parts", lambda self, table=None, **more: parts(self, table, **more)[1:])
        assert any("is not there" in problem for problem in drill(here).problems)
    from backup.recover import drill as drilling
    from backup.recover.recover import restore

    def damaging(*arguments: object) -> object:
        restored = restore(*arguments)  # type: ignore[arg-type]
        (scratch,) = [path for path in scratch_stores(here) if path.is_dir()]
        flip(next(path for path in (scratch / "scratch").rglob("*.parquet")))
        return restored

    monkeypatch.setattr(drilling, "restore", damaging)
    assert any("SHA-256" in problem for problem in drill(here).problems)
    assert not scratch_stores(here)


@pytest.mark.in_turn
def test_a_share_is_another_one_each_time(here: Machine) -> None:
    here.create("one")
    sizes = {
        partition: size
        for table in drill(here, dry_run=True).tables
        for partition, size in ((one, table.bytes) for one in table.partitions)
    }
    assert set(sizes) == {"202601", "202602"}
    with pytest.raises(UsageError, match="no partition of the backup"):
        drill(here, max_bytes=1)
    limit = next(iter(sizes.values())) - 1
    seen: set[str] = set()
    for _ in range(20):
        found = drill(here, max_bytes=limit)
        assert (found.ok, found.whole) == (True, False)
        assert found.bytes <= limit
        seen.update(partition for table in found.tables for partition in table.partitions)
    assert seen == set(sizes)
    assert not records(here)[0].whole


def test_a_table_without_parts_and_a_set_of_two_machines(here: Machine, tmp_path: Path) -> None:
    with here.open() as store:
        store.create_table(msgspec.structs.replace(events(), name="empty", uuid=str(uuid4())))
    other = machine_on(tmp_path, name="other", like=here)
    with other.open() as store:
        insert(store, 5000)
    here.create("both")
    other.create("both")
    found = drill(here, "both")
    assert found.ok, found.problems
    assert {table.table: table.parts for table in found.tables}["demo.empty"] == 0
    assert len(found.backups) == 2
    assert found.rows == len(here.rows()) + 80
    assert len(records(here)) == 2


def test_too_small_a_place_is_refused_before_it_begins(here: Machine) -> None:
    here.create("one")
    with mounted(here.root / "state" / "backup", size="1m") as mount:
        mount.fill()
        with pytest.raises(NoSpace, match=r"has room for 0 B.* nothing was begun"):
            drill(here)
        assert [path.name for path in mount.path.iterdir()] == ["filler"]
    assert not records(here)


def test_what_a_killed_drill_left_goes_when_the_store_opens(here: Machine) -> None:
    here.create("one")
    (state,) = (path for path in (here.root / "state" / "backup").iterdir() if path.is_dir())
    left = state / "drills" / "0123456789abcdef"
    (left / "scratch").mkdir(parents=True)
    with here.open() as store:
        assert any("drill that was killed" in sentence for sentence in store.recovered)
    assert not scratch_stores(here)
    (left / "scratch").mkdir(parents=True)
    assert drill(here).ok
    assert not scratch_stores(here)


def configure(here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line works on this store, and its backups go to this repository."""
    monkeypatch.setenv("FROSTLINE_CONFIG", str(here.write_config(tmp_path / "frostline.yaml")))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)


@pytest.mark.in_turn
def test_the_verb(
    here: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(here, tmp_path, monkeypatch)
    frostline = Frostline(capsys)
    frostline("backup", "drill", code=10)
    frostline("backup", "create", "one")
    assert "drilled" not in frostline("backup", "list").lower()
    assert frostline.json("backup", "drill", "-n")["dry_run"] is True
    done = frostline.json("backup", "drill", "one")
    assert (done["name"], done["ok"], done["whole"], done["problems"]) == ("one", True, True, [])
    assert "whole: ok" in frostline("backup", "list")
    assert "drilled: 20" in frostline("backup", "show", "one")
    assert frostline.json("backup", "show", "one")["backups"][0]["drilled"]["rows"] == done["rows"]
    frostline("backup", "drill", "two", code=10)
    frostline("backup", "drill", "--max-bytes", "1", code=2)
    frostline("backup", "drill", "--max-bytes", "x", code=2)
    flip(stored(here, names.PACKS_PREFIX)[0])
    failed = frostline("backup", "drill", code=4)
    assert "FAILED" in failed
    assert "part" in failed
    (listed,) = frostline.json("backup", "list")["backups"]
    assert (listed["drilled"]["ok"], listed["drilled"]["problems"]) == (False, 1)


def test_a_backup_that_is_not_there(here: Machine) -> None:
    with pytest.raises(NotFound, match="holds no backup"):
        drill(here)


def test_the_newest_that_can_be_read_says_what_it_passed_over(
    here: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(here, tmp_path, monkeypatch)
    here.create("one")
    here.create("two")
    frostline = Frostline(capsys)
    assert "passed_over" not in frostline.json("backup", "show", "latest")
    (header,) = stored(here, f"{names.BACKUPS_PREFIX}two")
    flip(header)
    shown = frostline.json("backup", "show", "latest")
    assert (shown["name"], shown["passed_over"]) == ("one", [f"backups/two/{header.name}"])
    drilled = frostline.json("backup", "drill", "-n")
    assert (drilled["name"], drilled["passed_over"]) == ("one", shown["passed_over"])
    frostline("backup", "show", "latest")
    assert "'latest' is the newest" in frostline.error
    assert "passed_over" not in frostline.json("backup", "show", "one")
