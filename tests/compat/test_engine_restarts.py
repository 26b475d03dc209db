"""A real ClickHouse whose counter restarts with every start (defect 1): every object is in the tree, and what counts is
in its place. Needs chdb: see `test_clickhouse_engine`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.export import export
from restore.clickhouse.parts import State, find_tables
from restore.clickhouse.tree import read_tree
from tests.compat.engines import WIDE, disk_of, engines, run, version_of
from tests.servers import Server

pytestmark = [
    pytest.mark.clickhouse,
    pytest.mark.skipif(not engines(), reason="chdb is missing: name a Python that has it in FROSTLINE_CHDB"),
]

COLUMNS = "(k UInt64, v String) ENGINE = MergeTree ORDER BY k"
UUID = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.mark.parametrize("python", engines())
def test_restarts_of_a_real_server_lose_nothing(
    python: str, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    """Its own restore gave 1000 of 2000 rows here, and no error."""
    if version_of(python, tmp_path) >= (26, 0):
        pytest.skip("26.9 writes no log any more")
    disk = disk_of(s3_environment, bucket, tmp_path / "metadata", send_metadata=True)
    starts = [
        [
            "CREATE DATABASE db ENGINE = Atomic",
            f"CREATE TABLE db.t {COLUMNS} SETTINGS disk = {disk}, {WIDE}",
            "INSERT INTO db.t SELECT number, toString(number) FROM numbers(1000)",
        ],
        ["INSERT INTO db.t SELECT number + 1000, toString(number) FROM numbers(1000)"],
        ["INSERT INTO db.t SELECT number + 2000, toString(number) FROM numbers(1000)"],
        ["OPTIMIZE TABLE db.t FINAL", "ALTER TABLE db.t UPDATE v = 'x' WHERE k < 10 SETTINGS mutations_sync = 2"],
    ]
    for queries in starts:
        time.sleep(1.1)  # no server stops and starts within a second
        run(python, tmp_path / "clickhouse", queries)

    tree = read_bucket(open_store(ObjectDiskConfig(url=f"s3://{bucket}/ch/", read_only=True)))
    local = read_tree(tmp_path / "metadata", key_prefix="ch/")
    here = {path: row.blobs for path, row in local.rows.items()}
    assert {blob for blobs in here.values() for blob in blobs} <= {
        blob for file in tree.files.values() for blob in file.blobs
    }
    (table,) = find_tables(tree.files)
    (newest,) = [part for part in table.parts if part.state is State.ACTIVE]
    inside = {path: blobs for path, blobs in here.items() if path.startswith(f"{newest.directory}/")}
    assert {file.path: file.blobs for file in newest.files.values()} == inside
    assert {finding.kind for finding in tree.findings} == {"duplicate_revision", "lost_rename"}


@pytest.mark.parametrize("python", engines())
def test_a_lost_insert_survives_the_start_of_a_server(
    python: str, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    """I1: under its temporary name the server would delete it, objects included: 1000 of 2000 rows. In `detached/` it
    is left alone, and attached under its own name."""
    if version_of(python, tmp_path) >= (26, 0):
        pytest.skip("26.9 writes no log any more")
    written = disk_of(s3_environment, bucket, tmp_path / "metadata", send_metadata=True)
    starts = [
        [
            "CREATE DATABASE db ENGINE = Atomic",
            f"CREATE TABLE db.t UUID '{UUID}' {COLUMNS} SETTINGS disk = {written}, {WIDE}",
        ],
        ["INSERT INTO db.t SELECT number, toString(number) FROM numbers(1000)"],
        ["INSERT INTO db.t SELECT number + 1000, toString(number) FROM numbers(1000)"],
    ]
    for queries in starts:
        time.sleep(1.1)  # no server stops and starts within a second
        run(python, tmp_path / "clickhouse", queries)
    store = open_store(ObjectDiskConfig(url=f"s3://{bucket}/ch/", read_only=True))
    exported = export(ClickHouseDisk("ch", store, tmp_path / "state", read_only=True), tmp_path / "out")
    (lost,) = exported.lost_parts
    before = {item.key for item in store.list()}

    disk = disk_of(s3_environment, bucket, tmp_path / "out", send_metadata=False)
    queries = [
        "CREATE DATABASE db ENGINE = Atomic",
        f"ATTACH TABLE db.t UUID '{UUID}' {COLUMNS} SETTINGS disk = {disk}; SELECT count() FROM db.t",
    ]
    assert run(python, tmp_path / "new", queries)[-1] == [1000]
    assert before <= {item.key for item in store.list()}
    place = tmp_path / "out" / lost.target
    name = place.name.partition("lost_1_")[2]
    place.rename(place.with_name(name))
    queries = [f"ALTER TABLE db.t ATTACH PART '{name}'", "SELECT count(), uniqExact(k) FROM db.t"]
    assert run(python, tmp_path / "new", queries)[-1] == [2000, 2000]


@pytest.mark.parametrize("python", engines())
def test_the_tree_of_a_bucket_is_that_of_the_server(
    python: str, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    """I7, I8: with empty files, which 25.5 gives no object, in parts, projections and covered parts, and hard links of
    them; with a part that was moved to another table."""
    if version_of(python, tmp_path) < (25, 0) or version_of(python, tmp_path) >= (26, 0):
        pytest.skip("24.8 as chdb runs it restarts with every query, 26.9 writes no log any more")
    disk = disk_of(s3_environment, bucket, tmp_path / "metadata", send_metadata=True)
    create = (
        "(k UInt64, d Date, v String, a Array(UInt8), PROJECTION p (SELECT * ORDER BY v)) ENGINE = MergeTree "
        f"PARTITION BY toYYYYMM(d) ORDER BY k SETTINGS disk = {disk}, {WIDE}"
    )
    run(
        python,
        tmp_path / "clickhouse",
        [
            "CREATE DATABASE db ENGINE = Atomic",
            *(f"CREATE TABLE db.{table} {create}" for table in "tu"),
            *(
                f"INSERT INTO db.t (k, d, v) SELECT number, toDate('{day}'), toString(number) FROM numbers(500)"
                for day in ("2024-01-01", "2024-01-02", "2024-02-02")
            ),
            "OPTIMIZE TABLE db.t PARTITION 202401 FINAL",
            "ALTER TABLE db.t UPDATE v = 'x' WHERE k < 10 SETTINGS mutations_sync = 2",
            "ALTER TABLE db.t MOVE PARTITION 202402 TO TABLE db.u",
        ],
    )
    tree = read_bucket(open_store(ObjectDiskConfig(url=f"s3://{bucket}/ch/", read_only=True)))
    root = tmp_path / "metadata"
    local = read_tree(root, key_prefix="ch/").rows
    assert tree.findings == []
    assert {path: file.blobs for path, file in tree.files.items()} == {path: row.blobs for path, row in local.items()}
    empty = [path for path, file in tree.files.items() if not file.blobs]
    assert any(".proj/" in path for path in empty)
    store = open_store(ObjectDiskConfig(url=f"s3://{bucket}/ch/", read_only=True))
    disk_here = ClickHouseDisk("ch", store, tmp_path / "state", read_only=True)
    export(disk_here, tmp_path / "out")
    out = tmp_path / "out"
    assert {path: (out / path).read_bytes() for path in local} == {path: (root / path).read_bytes() for path in local}
    assert {path: tree.files[path].links for path in tree.files} == {
        path: (root / path).stat().st_nlink for path in local
    }
