"""Publications of tables: by the verbs, cut off at each step, by two machines at once, beside garbage collection, and
where somebody else wrote into them.

Guards I2, I4, I15 and I17. The rows at each revision: `tests/property/test_publications.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from disks import effects
from disks.garbage.rules import GcRules
from oplog.errors import Damaged, Refused
from oplog.kinds import OtherKind
from restore.history.partitions import detach
from tests.command_line import Frostline
from tests.crash.disk_effects import Effects, Killed
from tests.integration.two_machines import insert, machine, move_all
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.iceberg import publication as publications
from tiering.iceberg.publication import Publication
from tiering.table.definitions import define_table
from tiering.table.schema import Publish

NAME = "db.t"
EVERYTHING = GcRules(
    delete=True, retention=timedelta(0), guard=timedelta(0), allow_short_guard=True, max_delete_fraction=1.0
)
"""Everything goes that nothing names, however young."""


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    return Frostline(capsys)


@pytest.fixture
def home(frostline: Frostline, tmp_path: Path) -> Path:
    """A store with a table of three parts in its bucket and one on its SSD."""
    rows = pa.table({"k": pa.array(range(40), pa.int64()), "p": pa.array([n // 10 for n in range(40)], pa.int64())})
    pq.write_table(rows, tmp_path / "rows.parquet")
    frostline("table", "create", NAME, "--like", f"{tmp_path}/rows.parquet", "--order-by", "k", "--partition-by", "p")
    frostline("insert", NAME, f"{tmp_path}/rows.parquet")
    for partition in range(3):
        frostline("move", NAME, "--partition", str(partition), "--to-volume", "cold")
    return tmp_path / "home"


def read(url: str, revision: int | None = None) -> list[int]:
    """The keys that another engine reads."""
    return sorted(StaticTable.from_metadata(url).scan(snapshot_id=revision).to_arrow()["k"].to_pylist())


def location(frostline: Frostline) -> str:
    return str(frostline("iceberg", "location", NAME).strip())


def test_verbs_publish_follow_and_end(frostline: Frostline, home: Path) -> None:
    dry = frostline.json("iceberg", "publish", NAME, "--dry-run")
    assert (dry["dry_run"], dry["state"]) == (True, "not published")
    assert frostline.json("iceberg", "status") == {"tables": []}
    assert frostline.any("iceberg", "location", NAME)[1] == 10
    published = frostline.json("iceberg", "publish", NAME)
    assert (published["rows"], published["files"], published["rows_elsewhere"]) == (30, 3, 10)
    assert read(location(frostline)) == list(range(30))
    frostline("move", NAME, "--partition", "3", "--to-volume", "cold")  # the verb publishes
    (row,) = frostline.json("iceberg", "status", NAME)["tables"]
    assert (row["state"], row["rows"], row["rows_elsewhere"], row["snapshots"]) == ("published", 40, 0, 2)
    assert read(location(frostline)) == list(range(40))
    assert read(location(frostline), published["revision"]) == list(range(30))
    frostline("table", "rename", NAME, "db.u")
    assert read(str(frostline("iceberg", "location", "db.u").strip())) == list(range(40))
    ended = frostline.json("iceberg", "unpublish", "db.u", "--yes")
    assert ended["objects"] > 5
    assert not (home / "bucket/store/iceberg").exists() or not any((home / "bucket/store/iceberg").rglob("*.json"))
    assert frostline.json("query", "SELECT count(*) AS n FROM db.u")["rows"] == [[40]]


def test_a_dropped_table_is_not_published_any_more(frostline: Frostline, home: Path) -> None:
    frostline("iceberg", "publish", NAME)
    url = location(frostline)
    frostline("table", "drop", NAME, "--yes")
    with pytest.raises(FileNotFoundError):
        read(url)


@pytest.mark.parametrize("kind", ["uint32", "uint64", "duration", "timestamp[ms, UTC]", "timestamp[ns, UTC]"])
def test_a_type_without_a_counterpart_is_refused(frostline: Frostline, kind: str) -> None:
    named = "x"
    frostline("table", "create", NAME, "--column", "k:int64", "--column", f"x:{kind}", "--order-by", "k")
    frostline("iceberg", "publish", NAME, code=13)
    assert f"column {named} " in frostline.error
    assert f"--without {named}" in frostline.error
    assert not frostline.json("iceberg", "status")["tables"]
    frostline("iceberg", "publish", NAME, "--without", named)
    assert read_columns(location(frostline)) == ["k"]


def read_columns(url: str) -> list[str]:
    return [field.name for field in StaticTable.from_metadata(url).schema().fields]


@pytest.fixture
def no_hook() -> Iterator[None]:
    yield
    effects.set_hook(None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_the_former_one_is_read(
    frostline: Frostline, home: Path, no_hook: None, when: Literal["before", "after"]
) -> None:
    frostline("iceberg", "publish", NAME)
    former = read(location(frostline))
    config = embedded(home)
    with Store.open(config) as store:
        store.apply(store.plan_manual_move(NAME, partition="3", to_disk="s3"))
    saved = home.with_name("saved")
    shutil.copytree(home, saved)
    for stop in range(1, 200):
        shutil.rmtree(home)
        shutil.copytree(saved, home)
        with Store.open(config) as store:
            publication = Publication(store, store.definition(NAME))
            hook = Effects(stop, when)
            effects.set_hook(hook)
            try:
                publication.publish()
            except Killed:
                pass
            finally:
                effects.set_hook(None)
        seen = hints(home)
        assert seen in (former, list(range(40)))
        with Store.open(config) as store:
            publication = Publication(store, store.definition(NAME))
            publication.publish()
            newest = publication.newest()
            assert newest is not None
            assert publication.due(newest) is None
            assert read(publication.metadata_url(newest.version)) == list(range(40))
        if hook.count < stop:
            assert stop > 10
            return
    pytest.fail("it never ended")


def hints(home: Path) -> list[int]:
    """What a reader sees that opens the directory by its hint."""
    (directory,) = (home / "bucket/store/iceberg").glob("*/metadata")
    version = int((directory / "version-hint.text").read_text())
    return read(f"file://{directory}/v{version}.metadata.json")


def test_two_publish_at_once(frostline: Frostline, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two machines that publish the same revision one is first; the other finds it done."""
    frostline("iceberg", "publish", NAME)
    config = embedded(home)
    with Store.open(config) as store, Store.open(config) as other:
        store.apply(store.plan_manual_move(NAME, partition="3", to_disk="s3"))
        other.refresh()
        commit = Publication._commit
        rivals: list[Any] = []

        def later(self: Publication, version: int, data: bytes) -> None:
            monkeypatch.setattr(Publication, "_commit", commit)
            rivals.append(Publication(other, other.definition(NAME)).publish())
            commit(self, version, data)

        monkeypatch.setattr(Publication, "_commit", later)
        publication = Publication(store, store.definition(NAME))
        assert publication.publish() is None
        newest = publication.newest()
        assert newest is not None
        assert newest.version == rivals[0].version == 2
        assert [one.snapshot_id for one in newest.metadata.snapshots] == [4 + 1, 4 + 2]


def test_what_another_program_commits_is_not_followed(frostline: Frostline, home: Path) -> None:
    frostline("iceberg", "publish", NAME)
    path = Path(location(frostline).removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    foreign = {**metadata["snapshots"][0], "snapshot-id": 77, "sequence-number": 99, "summary": {"operation": "append"}}
    metadata["snapshots"].append(foreign)
    metadata |= {"current-snapshot-id": 77, "last-sequence-number": 99}
    path.with_name("v2.metadata.json").write_text(json.dumps(metadata))
    (row,) = frostline.json("iceberg", "status")["tables"]
    assert row["state"] == "changed by another program"
    frostline("iceberg", "publish", NAME)
    (row,) = frostline.json("iceberg", "status")["tables"]
    assert (row["state"], row["snapshots"]) == ("published", 1)
    assert location(frostline).endswith("/v3.metadata.json")
    assert read(location(frostline)) == list(range(30))


@pytest.mark.parametrize("damage", ["{}", "", "not json", '{"format-version": 3}'])
def test_metadata_that_cannot_be_read(frostline: Frostline, home: Path, damage: str) -> None:
    """It is named, gc deletes nothing meanwhile, and it is written again when somebody says so."""
    frostline("iceberg", "publish", NAME)
    path = Path(location(frostline).removeprefix("file://"))
    path.write_text(damage)
    frostline("iceberg", "status", code=Damaged.exit_code)
    assert path.name in frostline.error
    frostline("gc", "--delete", "--yes", "--guard-interval", "1h", code=13)
    assert path.name in frostline.error
    frostline("iceberg", "publish", NAME, "--anew")
    assert read(location(frostline)) == list(range(30))
    (row,) = frostline.json("iceberg", "status")["tables"]
    assert row["state"] == "published"


def test_a_lost_manifest_is_found_and_written_again(frostline: Frostline, home: Path) -> None:
    frostline("iceberg", "publish", NAME)
    for path in (home / "bucket/store/iceberg").rglob("*.avro"):
        path.unlink()
    frostline("iceberg", "publish", NAME, "--anew")
    assert read(location(frostline)) == list(range(30))


def test_another_machine_goes_on(frostline: Frostline, home: Path) -> None:
    """A machine that never saw the publication takes it from the bucket."""
    frostline("iceberg", "publish", NAME)
    shutil.rmtree(home / "state/disks/s3")
    frostline("move", NAME, "--partition", "3", "--to-volume", "cold")
    (row,) = frostline.json("iceberg", "status")["tables"]
    assert (row["rows"], row["snapshots"]) == (40, 2)


def test_the_library_is_named_where_it_is_missing(
    frostline: Frostline, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "find_spec", lambda name: None)
    frostline("iceberg", "publish", NAME, code=2)
    assert "frostline[iceberg]" in frostline.error
    assert frostline.json("iceberg", "status") == {"tables": []}


def test_it_says_up_to_where_it_is_complete(frostline: Frostline, tmp_path: Path) -> None:
    """The earliest moment on the SSD: every row before it is published."""
    (tmp_path / "rows.csv").write_text(
        "k,ts\n" + "".join(f"{day},2026-01-{day:02d}T05:00:00Z\n" for day in range(1, 9))
    )
    columns = ["--column", "k:int64", "--column", "ts:timestamp[us, UTC]"]
    frostline("table", "create", NAME, *columns, "--order-by", "k", "--partition-by", "day(ts)")
    frostline("insert", NAME, f"{tmp_path}/rows.csv")
    for day in (1, 2, 4):
        frostline("move", NAME, "--partition", f"2026010{day}", "--to-volume", "cold")
    published = frostline.json("iceberg", "publish", NAME)
    assert (published["rows"], published["rows_elsewhere"]) == (3, 5)
    assert published["complete_until"] == "2026-01-03T05:00:00Z"
    properties = StaticTable.from_metadata(location(frostline)).properties
    assert properties["frostline.complete-until"] == "2026-01-03T05:00:00+00:00"


def test_columns_keep_their_ids(frostline: Frostline, home: Path) -> None:
    """Of a table that has lost a column, too: files have the ids that it had."""
    frostline("table", "alter", NAME, "--add-column", "gone:int64", "--add-column", "kept:int64")
    frostline("table", "alter", NAME, "--drop-column", "gone", "--yes")
    frostline("iceberg", "publish", NAME)
    schema = StaticTable.from_metadata(location(frostline)).schema()
    assert [(field.name, field.field_id) for field in schema.fields] == [("k", 1), ("p", 2), ("kept", 4)]
    assert schema.highest_field_id <= StaticTable.from_metadata(location(frostline)).metadata.last_column_id


def test_a_manifest_follows_its_parts(frostline: Frostline, home: Path, tmp_path: Path) -> None:
    """Three parts before and after, of which one is another one."""
    frostline("iceberg", "publish", NAME)
    pq.write_table(pa.table({"k": [100], "p": [0]}), tmp_path / "more.parquet")
    frostline("insert", NAME, f"{tmp_path}/more.parquet")
    with Store.open(embedded(home)) as store:  # one publication of both changes
        store.apply(store.plan_manual_move(NAME, partition="0", to_disk="s3"))
        detach(store.context, store.definition(NAME), "2")
    frostline("iceberg", "publish", NAME)
    assert read(location(frostline)) == [*range(20), 100]


def test_a_default_is_refused_until_a_merge(frostline: Frostline, home: Path) -> None:
    """Other engines would read null in the parts that are older than the column."""
    frostline("iceberg", "publish", NAME)
    frostline("table", "alter", NAME, "--add-column", "c:int64", "--default", "7")
    assert "default" in frostline.error
    (row,) = frostline.json("iceberg", "status")["tables"]
    assert (row["state"], row["behind"]) == ("behind", 1)
    frostline("iceberg", "publish", NAME, "--without", "c")
    assert read_columns(location(frostline)) == ["k", "p"]


def drop_all(store: Store) -> None:
    """The parts leave the bucket, and no directory keeps them."""
    definition = store.definition(NAME)
    with store.object_disk("s3").transaction(OtherKind("removed")) as transaction:
        for part in store.parts(NAME):
            if part.disk == "s3":
                transaction.remove(definition.part_directory(part.label))
        transaction.commit()


def test_what_is_shown_is_not_collected(frostline: Frostline, home: Path) -> None:
    """Also when the revision is older than the retention, because nobody published since."""
    frostline("iceberg", "publish", NAME)
    config = embedded(home)
    with Store.open(config) as store:
        drop_all(store)
        store.gc("s3", EVERYTHING)
    assert read(location(frostline)) == list(range(30))
    frostline("iceberg", "publish", NAME)
    assert read(location(frostline)) == []


def test_a_publication_ended_elsewhere_and_begun_again(tmp_path: Path) -> None:
    """A machine that remembers the first publication names nothing that went with it."""
    with Store.open(machine(tmp_path, "a")) as a, Store.open(machine(tmp_path, "b")) as b:
        table = define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold")
        a.create_table(msgspec.structs.replace(table, publish=Publish()))
        for number in range(3):
            insert(b, number)
            move_all(b)
            Publication(b, b.definition("d.t")).publish()
        a.refresh()
        publication = Publication(a, a.definition("d.t"))
        publication.remove()
        publication.publish()
        definition = a.definition("d.t")  # no part changes: b could carry every manifest over
        a.alter_table(definition, msgspec.structs.replace(definition, version=2))
        b.refresh()
        Publication(b, b.definition("d.t")).publish()
        newest = publication.newest()
        assert newest is not None
        for snapshot in newest.metadata.snapshots:
            assert read(publication.metadata_url(newest.version), snapshot.snapshot_id) == [0, 1, 2]


@pytest.mark.parametrize("damaged", ["v2.metadata.json", "snap-*.avro"])
def test_gc_goes_on_when_damage_is_written_again(frostline: Frostline, home: Path, damaged: str) -> None:
    """It stops at what is damaged and the newest, not at what is damaged and of the past."""
    frostline("iceberg", "publish", NAME)
    (directory,) = (home / "bucket/store/iceberg").glob("*/metadata")
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    frostline("move", NAME, "--partition", "3", "--to-volume", "cold")
    for path in directory.glob(damaged):
        path.write_bytes(b"damaged")
    assert frostline.any("gc", "--delete", "--yes")[1] in (Damaged.exit_code, Refused.exit_code)
    frostline("iceberg", "publish", NAME, "--anew")
    frostline("gc", "--delete", "--yes")
    assert not (directory / "v1.metadata.json").exists()
    assert read(location(frostline)) == list(range(40))


def test_a_manifest_list_that_is_gone_stops_gc(frostline: Frostline, home: Path) -> None:
    """Until it is written again."""
    frostline("iceberg", "publish", NAME)
    (directory,) = (home / "bucket/store/iceberg").glob("*/metadata")
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    for path in directory.glob("snap-*.avro"):
        path.unlink()
    frostline("gc", "--delete", "--yes", code=Damaged.exit_code)
    assert "iceberg publish TABLE --anew" in frostline.error
    frostline("iceberg", "publish", NAME, "--anew")
    frostline("gc", "--delete", "--yes")
    assert read(location(frostline)) == list(range(30))


def test_two_partition_fields_of_one_column(frostline: Frostline, home: Path, tmp_path: Path) -> None:
    """Each has a name of its own."""
    columns = ["--like", f"{tmp_path}/rows.parquet", "--order-by", "k"]
    frostline("table", "create", "db.u", *columns, "--partition-by", "bucket(2, k), bucket(3, k)")
    frostline("insert", "db.u", f"{tmp_path}/rows.parquet")
    for partition in {part["partition"] for part in frostline.json("parts", "db.u")["parts"]}:
        frostline("move", "db.u", "--partition", partition, "--to-volume", "cold")
    frostline("iceberg", "publish", "db.u")
    url = str(frostline("iceberg", "location", "db.u").strip())
    assert read(url) == list(range(40))
    assert StaticTable.from_metadata(url).scan(row_filter="k = 7").to_arrow()["k"].to_pylist() == [7]


def test_a_truncated_value_below_the_least_is_refused(frostline: Frostline, tmp_path: Path) -> None:
    """Iceberg cannot say it, and readers would pass the part over."""
    pq.write_table(pa.table({"k": pa.array([-(1 << 63)], pa.int64())}), tmp_path / "rows.parquet")
    columns = ["--like", f"{tmp_path}/rows.parquet", "--order-by", "k"]
    frostline("table", "create", NAME, *columns, "--partition-by", "truncate(10, k)")
    frostline("insert", NAME, f"{tmp_path}/rows.parquet")
    (part,) = frostline.json("parts", NAME)["parts"]
    frostline("move", NAME, "--partition", part["partition"], "--to-volume", "cold")
    frostline("iceberg", "publish", NAME, code=Refused.exit_code)
    assert "below the least" in frostline.error
