"""The judge is ClickHouse itself: it attaches a tree that we exported, and restores a bucket that we wrote.

    FROSTLINE_CHDB=/some/venv/bin/python pytest -m clickhouse

`FROSTLINE_CHDB` names a Python with chdb, ClickHouse as a package: chdb 2.1.1 is 24.8, 3.6.0 is 25.5, 4.4.0
is 26.9. Several are separated by `:`. Guards I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from oplog.kinds import Inserted, Merged, OtherKind
from restore.clickhouse.export import export
from restore.clickhouse.rebuild import import_tree
from restore.clickhouse.tree import read_tree
from tests.compat.buckets import captured, put_on_server
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX
from tests.compat.engines import ANSWER, engines, run, version_of
from tests.servers import Server

UUID = "db7fa105-d417-4a64-977b-94ff5177349e"
TABLE = f"store/{UUID[:3]}/{UUID}"
COLUMNS = "k UInt64, d Date, v String, w UInt32, c UInt64 DEFAULT 7"

pytestmark = [
    pytest.mark.clickhouse,
    pytest.mark.skipif(not engines(), reason="chdb is missing: name a Python that has it in FROSTLINE_CHDB"),
]


def attach(server: Server, bucket: str, prefix: str, metadata: Path, **more: int) -> str:
    settings = {
        "endpoint": f"{server.endpoint_url}/{bucket}/{prefix}",
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        "metadata_path": f"{metadata}/",
    }
    words = [*(f"{name} = '{value}'" for name, value in settings.items()), *(f"{n} = {v}" for n, v in more.items())]
    disk = f"disk(name = 'frostline', type = 's3', skip_access_check = 1, support_batch_delete = 0, {', '.join(words)})"
    return (
        f"ATTACH TABLE db.t UUID '{UUID}' ({COLUMNS}) ENGINE = MergeTree PARTITION BY toYYYYMM(d) ORDER BY k "
        f"SETTINGS disk = {disk}"
    )


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("python", engines())
def test_clickhouse_attaches_what_we_export(
    python: str, version: int, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    put_on_server(s3_environment.client(), bucket, KEY_PREFIX, captured())
    store = open_store(ObjectDiskConfig(url=f"s3://{bucket}/{KEY_PREFIX}"))
    disk = ClickHouseDisk("ch", store, tmp_path / "state", read_only=True)
    import_tree(disk, CLICKHOUSE / "local", apply=True)
    export(disk, tmp_path / "metadata", version=version)
    # In one query: chdb 2.1.1 starts the engine anew for the next one, and 24.8 lets go of the empty parts of a DROP
    # PARTITION when it stops, before it has loaded what they cover.
    answers = run(
        python,
        tmp_path / "clickhouse",
        [
            "CREATE DATABASE db ENGINE = Atomic",
            f"{attach(s3_environment, bucket, KEY_PREFIX, tmp_path / 'metadata')}; "
            "SELECT count(), sum(cityHash64(*)) FROM db.t",
        ],
    )
    assert answers[-1] == ANSWER


def files(part: str) -> dict[str, bytes]:
    """The files of a captured part."""
    rows = read_tree(CLICKHOUSE / "local", key_prefix=KEY_PREFIX).rows
    place = f"{TABLE}/{part}/"
    objects = CLICKHOUSE / "bucket" / KEY_PREFIX
    return {
        path.removeprefix(place): b"".join((objects / key).read_bytes() for key, _ in row.blobs)
        for path, row in rows.items()
        if path.startswith(place)
    }


def write_history(disk: ClickHouseDisk) -> int:
    """Inserts, a freeze, a merge, a detach and attach, a drop, an abandoned insert; the revision after the inserts."""
    inserts = ("202401_1_1_0", "202401_2_2_0", "202401_3_3_0", "202402_4_4_0", "202403_7_7_0")
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{TABLE}/format_version.txt", b"1")
        for part in inserts:
            for name, data in files(part).items():
                transaction.create(f"{TABLE}/{part}/{name}", data)
        inserted = transaction.commit()
    assert inserted is not None
    with disk.transaction(OtherKind("freeze")) as transaction:
        for name in files("202402_4_4_0"):
            transaction.link(f"{TABLE}/202402_4_4_0/{name}", f"shadow/f1/{TABLE}/202402_4_4_0/{name}")
        transaction.commit()
    with disk.transaction(Merged()) as transaction:
        for name, data in files("202401_1_3_1_6").items():
            transaction.create(f"{TABLE}/tmp_merge_202401_1_3_1_6/{name}", data)
        transaction.rename(f"{TABLE}/tmp_merge_202401_1_3_1_6", f"{TABLE}/202401_1_3_1_6")
        for part in inserts[:4]:
            transaction.remove(f"{TABLE}/{part}")
        transaction.commit()
    for source, target in (("202403_7_7_0", "detached/202403_7_7_0"), ("detached/202403_7_7_0", "202403_7_7_0")):
        with disk.transaction(OtherKind("detach, attach")) as transaction:
            transaction.rename(f"{TABLE}/{source}", f"{TABLE}/{target}")
            transaction.commit()
    with disk.transaction(OtherKind("abandoned")) as transaction:
        transaction.create(f"{TABLE}/202409_9_9_0/columns.txt", b"not a part")
    return inserted


@pytest.mark.parametrize("place", ["in place", "into another prefix", "at the revision of the inserts"])
@pytest.mark.parametrize("python", engines())
def test_clickhouse_restores_what_we_wrote(
    python: str, place: str, s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    if version_of(python, tmp_path) >= (26, 0):
        pytest.skip("26.9 restores no bucket any more")
    store = open_store(ObjectDiskConfig(url=f"s3://{bucket}/ours/"))
    revision = write_history(ClickHouseDisk("ch", store, tmp_path / "state", lease_settle_seconds=0.0))
    source = f"source_bucket={bucket}\nsource_path=ours/\n"
    orders = {
        "in place": ("ours/", "revision=0\n", ANSWER),
        "into another prefix": ("elsewhere/", f"revision=0\n{source}", ANSWER),
        "at the revision of the inserts": ("elsewhere/", f"revision={revision}\n{source}", None),
    }
    prefix, order, answer = orders[place]
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "restore").write_text(order)
    answers = run(
        python,
        tmp_path / "clickhouse",
        [
            "CREATE DATABASE db ENGINE = Atomic",
            attach(s3_environment, bucket, prefix, tmp_path / "metadata", send_metadata=1),
            "SELECT count(), sum(cityHash64(*)) FROM db.t",
        ],
    )
    assert answers[-1] == answer if answer else answers[-1][0] == 3 * 1000 + 500 + 200
