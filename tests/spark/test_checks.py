"""fsck, gc and restore by executors say and do the same as here, whatever happens to a task (I1, I3 to I5, I7).

On a real S3 server, with damage of every kind; executors have nothing but what their piece of work carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from disks.stores.open import open_store
from disks.workers import parallel
from disks.workers.parallel import Askers
from disks.workers.runner import Remote, Run
from oplog import pins
from oplog.errors import DiskUnreachable, FrostlineError, Transient
from oplog.kinds import Inserted
from restore.check.check import CheckOptions, check
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.rebuild import rebuild
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from restore.rebuild.result import RebuildResult
from restore.transfer.blob_copies import RemoteCopying
from restore.transfer.transfer import restore_from
from spark_tiering.running.spark_runner import SparkRunner
from tests.compat.buckets import captured, put_on_server
from tests.meddling import Exchange, meddling
from tests.servers import Server, free_port
from tests.spark.checked import PARTS, SECRET, TABLE, Site, config_of, damage
from tests.spark.checked import server as server
from tests.spark.checked import site as site
from tests.spark.checked import small as small
from tests.spark.dying import dying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.in_turn
def test_a_check_finds_the_same_damage(site: Site) -> None:
    """I1, I3, I4."""
    sound = site.check(read_data=True)
    assert sound == site.check(here=True, read_data=True)
    assert sound.ok
    assert (sound.checked.parts, sound.checked.files_read) == (PARTS, PARTS)
    damage(site)
    for options in ({}, {"read_data": True}):
        here, there = site.check(here=True, **options), site.check(**options)
        assert here == there
        found = {problem.invariant for problem in there.problems}
        assert found == ({"I1", "I3", "I4"} if options else {"I3", "I4"})
    assert {"notes.txt", "r-notes"} == set(site.collect(delete=False).foreign)


@pytest.mark.in_turn
def test_a_collection_reports_the_same_and_deletes_no_more(site: Site) -> None:
    """I4, I5: young, pinned and foreign objects stay, and whatever else somebody may need."""
    gone = {site.drop(1), site.drop(2)}
    kept = site.drop(3)
    pins.create(site.disk.store, "backup", site.disk.revision - 1, holder="test", until=None)
    site.put("notes.txt", b"mine")
    gone.add(site.abandon())
    young = site.collect(now=None)
    assert young == site.collect(here=True, now=None)
    assert (young.pending, young.orphaned) == (1, 0)
    report = site.collect()
    assert report == site.collect(here=True)
    assert set(report.orphans) == gone
    before = site.blobs()
    deleted = site.collect(delete=True)
    assert (deleted.refused, deleted.deleted) == (None, 3)
    assert site.blobs() == before - gone
    assert kept in site.blobs()
    after = site.check()
    assert after == site.check(here=True)
    assert {problem.invariant for problem in after.problems} == {"I4"}, (
        "of revisions that are three days old in gc only"
    )


def test_a_collection_refuses_the_same(site: Site) -> None:
    """P25, P29: an object that is live and not listed; more garbage than a cap allows."""
    site.drop(1)
    for options in ({"max_delete_fraction": 0.01}, {}):
        if not options:
            site.lose(site.key(7))
        here, there = site.collect(here=True, delete=True, **options), site.collect(delete=True, **options)
        assert here.refused is not None
        assert there == here
        assert there.deleted == 0


@pytest.mark.in_turn
def test_tasks_that_die_change_nothing(site: Site, tmp_path: Path) -> None:
    """Every piece is done, lost with its process, and done again."""
    damage(site)
    site.drop(6)
    here = site.check(here=True, read_data=True), site.collect(here=True)
    spark = site.runner
    assert isinstance(spark, SparkRunner)
    site.runner = spark.hooked(dying(tmp_path / "notes", every=3))
    assert (site.check(read_data=True), site.collect()) == here
    assert spark.figures.retried_tasks >= 3


@pytest.mark.in_turn
def test_a_bucket_that_asks_for_patience_gets_it(ministack: Server, tmp_path: Path, spark: SparkSession) -> None:
    """Executors slow down at 503, and read everything in the end; one that never gives in is an error, no finding."""
    refused: dict[str, int] = {}
    patience = 2

    def answer(found: Exchange) -> None:
        if found.method != "GET" or "-file-" not in found.path:
            return
        refused[found.path] = refused.get(found.path, 0) + 1
        if refused[found.path] <= patience:
            found.status, found.body = 503, b"<Error><Code>SlowDown</Code><Message>slower</Message></Error>"
            found.headers["content-type"] = "application/xml"

    site = Site(ministack, tmp_path / "state", SparkRunner(spark))
    with meddling(ministack, answer=answer) as slow:
        site.config = config_of(slow, site.bucket)
        result = site.check(read_data=True)
        assert result.ok
        assert result.checked.files_read == PARTS
        assert len(refused) >= PARTS
        patience = 10**6
        site.config = config_of(slow, site.bucket, retries=2)
        with pytest.raises(Transient):
            site.check(read_data=True)
    site.config = config_of(Server("gone", f"http://127.0.0.1:{free_port()}", "a", "b"), site.bucket, retries=1)
    with pytest.raises((Transient, DiskUnreachable)):
        site.collect(delete=True)
    site.disk.close()


def lost_of(result: RebuildResult) -> list[tuple[str, str, int | None]]:
    return [(one.key, one.path, one.found_bytes) for one in result.missing_objects]


@pytest.mark.in_turn
@pytest.mark.parametrize("is_dying", [False, True])
def test_a_cache_is_rebuilt_while_executors_list_the_bucket(site: Site, tmp_path: Path, is_dying: bool) -> None:
    """I7, I15: the same rows and the same losses as in one process, from an empty state, also when tasks die."""
    damage(site)
    remote = site.remote
    if is_dying:
        remote = Remote(remote.runner.hooked(dying(tmp_path / "notes", every=3)), remote.store)
    here, there = (open_disk("cold", site.config, tmp_path / name) for name in ("here", "there"))
    assert isinstance(here, ObjectDisk)
    assert isinstance(there, ObjectDisk)
    one, other = restore(here, RebuildRequest(apply=True)), restore(there, RebuildRequest(apply=True), remote=remote)
    assert list(there.file_table.stored()) == list(here.file_table.stored())
    assert lost_of(other) == lost_of(one)
    assert [size is None for _, _, size in lost_of(other)] == [False, True]
    assert (other.objects, other.digest, other.files, other.notes) == (one.objects, one.digest, one.files, one.notes)
    assert other.requests["LIST"] > one.requests["LIST"]
    back = site.disk.revision - 1
    assert lost_of(restore(there, RebuildRequest(revision=back), remote=remote)) == lost_of(
        restore(here, RebuildRequest(revision=back))
    )
    here.close()
    there.close()


@pytest.mark.in_turn
def test_a_rebuild_that_cannot_list_changes_nothing(site: Site, tmp_path: Path) -> None:
    """I7: an executor that does not reach the bucket is an error, no loss, and the cache stays as it is."""
    gone = config_of(Server("gone", f"http://127.0.0.1:{free_port()}", "a", "b"), site.bucket, retries=1)
    before = list(site.disk.file_table.stored())
    with site.disk.file_table.write() as view:
        view.remove(TABLE.directory)
    with pytest.raises((Transient, DiskUnreachable)):
        restore(site.disk, RebuildRequest(apply=True), remote=Remote(site.runner, StoreAddress.of(gone)))
    assert list(site.disk.file_table.stored()) == []
    assert restore(site.disk, RebuildRequest(apply=True), remote=site.remote).applied
    assert list(site.disk.file_table.stored()) == before


def content(disk: ObjectDisk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


@pytest.mark.in_turn
@pytest.mark.parametrize("is_dying", [False, True])
def test_executors_copy_what_is_restored_from_another_bucket(site: Site, tmp_path: Path, is_dying: bool) -> None:
    """I4, I7: byte for byte, and nothing is copied twice, also when tasks die with their work done."""
    source_config = config_of(site.server, site.bucket, read_only=True)
    runner = site.runner.hooked(dying(tmp_path / "notes", every=2)) if is_dying else site.runner
    target_config = config_of(site.server, site.server.new_bucket(), "other")
    target = open_disk("target", target_config, tmp_path / "target")
    assert isinstance(target, ObjectDisk)
    elsewhere = RemoteCopying(runner, StoreAddress.of(target_config), StoreAddress.of(source_config))
    with open_store(source_config) as source:
        result = restore_from(target, source, RebuildRequest(apply=True), elsewhere=elsewhere)
        assert content(target) == content(site.disk)
        assert result.copy is not None
        assert (result.copy.done, result.copy.inside_store) == (PARTS, True)
        assert result.requests["COPY"] >= PARTS
        assert len({info.key for info in target.store.list("r")}) == PARTS
        again = restore_from(target, source, RebuildRequest(apply=True), elsewhere=elsewhere)
        assert (again.commit, again.unchanged) == (None, 2 * PARTS + 1)
    target.close()


@pytest.mark.in_turn
def test_executors_ask_the_objects_of_a_clickhouse_server(
    server: Server, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel.ask, "__kwdefaults__", {**(parallel.ask.__kwdefaults__ or {}), "each": 30})
    bucket = server.new_bucket()
    put_on_server(server.client(), bucket, "p/", captured())
    config = config_of(server, bucket, read_only=True)
    runner = SparkRunner(spark)
    with open_store(config) as store:
        askers = Askers(remote=Remote(runner, StoreAddress.of(config)))
        here, there = read_bucket(store), read_bucket(store, askers=askers)
    assert there.files == here.files
    assert there.findings == here.findings
    assert len(here.files) > 100
    assert runner.figures.tasks > 3


def test_a_disk_with_clickhouses_log_is_rebuilt_and_read(server: Server, spark: SparkSession, tmp_path: Path) -> None:
    """I1, I7: the same table from the same requests; every byte of it read by executors."""
    config = config_of(server, server.new_bucket(), log_format=1)
    disk = open_disk("cold", config, tmp_path / "state")
    assert isinstance(disk, ClickHouseDisk)
    for number in range(5):
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"store/abc/t/p{number}/data.bin", f"bytes of {number}".encode())
            transaction.commit()
    remote = Remote(SparkRunner(spark), StoreAddress.of(config))
    here, there = rebuild(disk).document(), rebuild(disk, askers=Askers(remote=remote)).document()
    assert here.pop("seconds") != there.pop("seconds")
    assert here == there
    with open_store(config) as store:
        key = disk.stat("store/abc/t/p3/data.bin").key
        store.delete([str(key)])
        server.client().put_object(Bucket=config.url.split("/")[2], Key=f"p/{key}", Body=b"others of 3")  # type: ignore[union-attr]
    results = [check({"cold": disk}, CheckOptions(read_data=True, remote=one)) for one in ({}, {"cold": remote})]
    assert results[0] == results[1]
    assert {problem.invariant for problem in results[0].problems} == {"I1", "I3"}
    assert results[0].checked.files_read == 5
    disk.close()


def test_nothing_that_is_sent_or_said_shows_a_secret(ministack: Server, spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []

    @contextmanager
    def overheard(run: Run) -> Iterator[Run]:
        said.extend([run.title, repr(run.function), *map(repr, run.items), *map(str, run.items)])
        yield run

    site = Site(ministack, tmp_path / "state", SparkRunner(spark).hooked(overheard))
    site.check(read_data=True)
    site.collect()
    assert len(said) > 10
    assert not [text for text in said if SECRET in text]
    site.config = config_of(Server("gone", f"http://127.0.0.1:{free_port()}", "a", SECRET), site.bucket, retries=1)
    with pytest.raises(FrostlineError) as caught:
        site.check(read_data=True)
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"
