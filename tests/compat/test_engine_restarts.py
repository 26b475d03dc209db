"""A real ClickHouse whose counter restarts with every start (defect 1): every object is in the tree, and what counts is
in its place. Needs chdb: see `test_clickhouse_engine`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.parts import State, find_tables
from restore.clickhouse.tree import read_tree
from tests.compat.test_clickhouse_engine import engines, run, version_of
from tests.servers import Server

pytestmark = [
    pytest.mark.clickhouse,
    pytest.mark.skipif(not engines(), reason="chdb is missing: name a Python that has it in FROSTLINE_CHDB"),
]


@pytest.mark.parametrize("python", engines())
def test_restarts_of_a_real_server_lose_nothing(
    python: str, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    """Its own restore gave 1000 of 2000 rows here, and no error."""
    if version_of(python, tmp_path) >= (26, 0):
        pytest.skip("26.9 writes no log any more")
    settings = {
        "name": "frostline",
        "type": "s3",
        "endpoint": f"{s3_environment.endpoint_url}/{bucket}/ch/",
        "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "metadata_path": f"{tmp_path}/metadata/",
    }
    words = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
    disk = f"disk({words}, skip_access_check = 1, support_batch_delete = 0, send_metadata = 1)"
    starts = [
        [
            "CREATE DATABASE db ENGINE = Atomic",
            "CREATE TABLE db.t (k UInt64, v String) ENGINE = MergeTree ORDER BY k "
            f"SETTINGS disk = {disk}, min_bytes_for_wide_part = 0, old_parts_lifetime = 1000",
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
