"""gc against real S3 servers: forms of a url, versions, unfinished uploads, what the killed left (P25 to P36)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.config import DiskConfig
from disks.garbage.collect import GcReport, collect
from disks.garbage.listing import cut_ranges
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from disks.workers.runner import Remote, threads
from oplog import pins
from oplog.errors import FrostlineError, Refused
from oplog.kinds import Dropped, Inserted
from oplog.revision import blob_key, commit_key
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.committed import put, remove
from tests.meddling import Exchange, meddling
from tests.servers import Server

_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
LATER = datetime.now(UTC) + timedelta(days=3)
Opened = Callable[..., ObjectDisk]


@pytest.fixture(params=["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def opened(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Opened:
    def open_at(url: str, state: str = "state", **settings: Any) -> ObjectDisk:
        config = server.disk(url, snapshot_every_commits=0, **settings)
        disk = open_disk("s3", config, tmp_path / state)
        assert isinstance(disk, ObjectDisk)
        request.addfinalizer(disk.close)
        return disk

    return open_at


def run(disk: ObjectDisk, *, now: datetime = LATER, remote: Remote | None = None, **options: Any) -> GcReport:
    return collect(disk, GcRules(**{"delete": True, "max_delete_fraction": 1.0, **options}), now=now, remote=remote)


def keys(server: Server, bucket: str) -> set[str]:
    return {item["Key"] for item in server.client().list_objects_v2(Bucket=bucket).get("Contents", [])}


def test_other_forms_of_the_url_and_other_prefixes_delete_none(server: Server, opened: Opened) -> None:
    """P25: what is live under one spelling is never taken for orphaned under another."""
    bucket = server.new_bucket()
    put(opened(f"s3://{bucket}/store/a b+A/"), "a/live")
    for number, other in enumerate(("Store/a b+A/", "store/a b+a/", "store/a b+/")):
        put(opened(f"s3://{bucket}/{other}", state=f"neighbour-{number}"), "b/live")
    before = keys(server, bucket)
    for number, form in enumerate(("store/a b+A", "store/a%20b+A/", "store/a b+%41//", "/store/a b+A/")):
        report = run(opened(f"s3://{bucket}/{form}", state=f"form-{number}"))
        assert (report.referenced, report.orphaned, report.deleted) == (1, 0, 0), form
    above = run(opened(f"s3://{bucket}/store/", state="above"))
    assert (above.referenced, above.orphaned, above.deleted) == (0, 0, 0)
    assert len(above.foreign) > 0
    assert {key for key in before if "-file-" in key} == {key for key in keys(server, bucket) if "-file-" in key}


def _uncounted(found: Exchange) -> None:
    """A listing that does not contradict itself."""
    found.body = re.sub(rb"<KeyCount>\d+</KeyCount>", b"", found.body)


def _cut(found: Exchange) -> None:
    found.body = found.body[: len(found.body) // 2]


def _emptied(found: Exchange) -> None:
    found.body = b""


def _nothing_listed(found: Exchange) -> None:
    found.body = _CONTENTS.sub(b"", found.body)
    _uncounted(found)


def _last_left_out(found: Exchange) -> None:
    """The newest blob, which is live, is not shown."""
    shown = _CONTENTS.findall(found.body)
    blobs = [one for one in shown if b"-file-" in one]
    if blobs:
        found.body = found.body.replace(blobs[-1], b"")
    _uncounted(found)


def _first_page_only(found: Exchange) -> None:
    for one in _CONTENTS.findall(found.body)[4:]:  # three keys of ours come before the log
        found.body = found.body.replace(one, b"")
    _uncounted(found)


def _each_twice(found: Exchange) -> None:
    found.body = _CONTENTS.sub(lambda match: match[0] * 2, found.body)


FAULTS = (_cut, _emptied, _nothing_listed, _last_left_out, _first_page_only, _each_twice)
WRONG = (_cut, _emptied, _each_twice)
"""Those that no listing can be: they are asked for again."""


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
@pytest.mark.parametrize("always", [True, False])
def test_a_listing_that_is_not_whole_deletes_nothing(
    ministack: Server, tmp_path: Path, fault: Callable[[Exchange], None], always: bool
) -> None:
    """P29: on the wire, in every listing or in every second one of the bucket; what is orphaned stays, too."""
    bucket = ministack.new_bucket()

    def at(server: Server, state: str) -> ObjectDisk:
        config = server.disk(f"s3://{bucket}/p/", snapshot_every_commits=0, retries=2)
        disk = open_disk("s3", config, tmp_path / state)
        assert isinstance(disk, ObjectDisk)
        return disk

    direct = at(ministack, "direct")
    for number in range(4):
        put(direct, f"a/{number}")
    orphan = direct.stat("a/1").key
    remove(direct, "a/1")
    before = keys(ministack, bucket)
    listings = 0

    def answer(found: Exchange) -> None:
        nonlocal listings
        if "list-type=2" in found.path:
            listings += "prefix=p%2F&" in f"{found.path}&"
            if always or listings % 2 == 0:
                fault(found)

    with meddling(ministack, answer=answer) as server:
        disk = at(server, "direct")
        try:
            report = run(disk)
        except FrostlineError as error:
            refused: str | None = error.message
        else:
            refused = report.refused
        disk.close()
    assert listings > 0
    gone = before - keys(ministack, bucket)
    if refused is None:
        assert fault in WRONG, "no other answer is whole by itself"
        assert not always, "only what was asked for again can be whole"
        assert gone == {f"p/{orphan}"}
    else:
        assert gone == set()
        assert run(direct).deleted == 1
    direct.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
@pytest.mark.parametrize("which", ["all", "first", "second"])
def test_a_range_that_is_not_listed_whole_deletes_nothing(
    ministack: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Exchange], None], which: str
) -> None:
    """P29: the same for ranges of keys that others list: in every listing, or in one of the two of each range."""
    monkeypatch.setitem(cut_ranges.__kwdefaults__, "keys", 2)
    bucket = ministack.new_bucket()

    def config(server: Server) -> DiskConfig:
        return server.disk(f"s3://{bucket}/p/", snapshot_every_commits=0, retries=2)

    direct = open_disk("s3", config(ministack), tmp_path / "state")
    assert isinstance(direct, ObjectDisk)
    for number in range(6):
        put(direct, f"a/{number}")
    orphan = direct.stat("a/1").key
    remove(direct, "a/1")
    before = keys(ministack, bucket)
    listings: Counter[str] = Counter()

    def answer(found: Exchange) -> None:
        if "list-type=2" in found.path:
            listings[found.path] += 1
            if which == "all" or (listings[found.path] == 1) == (which == "first"):
                fault(found)

    with meddling(ministack, answer=answer) as server:
        try:
            report = run(direct, remote=Remote(threads(), StoreAddress.of(config(server))))
        except FrostlineError as error:
            refused: str | None = error.message
        else:
            refused = report.refused
    # A listing that cannot be believed may end the others before they begin.
    assert sum(listings.values()) > (refused is None)
    gone = before - keys(ministack, bucket)
    assert gone <= {f"p/{orphan}"}
    if refused is None:
        # What no listing can be is asked for again; a page may hold more than the range.
        assert fault in (*WRONG, _first_page_only) or gone == set()
    else:
        assert gone == set()
        assert run(direct).deleted == 1
    direct.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("delete_versions", [True, False])
def test_a_versioned_bucket(server: Server, opened: Opened, delete_versions: bool) -> None:
    """P34: gc takes the version itself, or leaves a marker and says what old versions cost; a rebuild ignores both."""
    bucket = server.new_bucket()
    client = server.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    disk = opened(f"s3://{bucket}/p/", delete_versions=delete_versions)
    live, gone = put(disk, "a/live"), put(disk, "a/gone", b"12345")
    remove(disk, "a/gone")
    assert run(disk).deleted == 1
    again = run(disk)
    assert (again.versioning, again.orphaned, again.refused) == ("on", 0, None)
    found = client.list_object_versions(Bucket=bucket, Prefix=f"p/{gone}")
    versions, markers = found.get("Versions", []), found.get("DeleteMarkers", [])
    if delete_versions:
        assert (versions, markers) == ([], [])
    else:
        assert [one["Size"] for one in versions] == [5]
        assert len(markers) == 1
        assert again.old_versions == 2
        assert again.old_version_bytes == 5
    fresh = opened(f"s3://{bucket}/p/", state="fresh")
    restore(fresh, RebuildRequest(apply=True))
    assert [(info.path, info.key) for info in fresh.walk()] == [("a/live", live)]


def test_an_upload_that_was_killed_in_its_third_part(server: Server, opened: Opened) -> None:
    """P35: invisible in listings; ended once the guard interval is over, and only if its name is ours."""
    bucket = server.new_bucket()
    client = server.client()
    disk = opened(f"s3://{bucket}/p/")
    put(disk, "a/live")

    def begin(key: str) -> str:
        upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        for number in (1, 2):
            client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=b"x" * 5 * 1024**2)
        return str(upload)

    def unfinished() -> set[str]:
        return {one["UploadId"] for one in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])}

    ours, foreign = begin(f"p/{blob_key(1)}"), begin("p/somebody/else.bin")
    assert run(disk, now=datetime.now(UTC) + timedelta(hours=1)).uploads == 0
    assert run(disk, delete=False).uploads == 1
    assert unfinished() == {ours, foreign}
    assert run(disk).uploads_aborted == 1
    assert unfinished() == {foreign}
    client.abort_multipart_upload(Bucket=bucket, Key="p/somebody/else.bin", UploadId=foreign)


def test_a_disk_that_is_a_whole_bucket(server: Server, opened: Opened) -> None:
    """P32, P26: refused; and where it is allowed, only names that are ours go."""
    bucket = server.new_bucket()
    server.client().put_object(Bucket=bucket, Key="backups/r01-file-x", Body=b"mine")
    server.client().put_object(Bucket=bucket, Key="notes.txt", Body=b"mine")
    disk = opened(f"s3://{bucket}/")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    before = keys(server, bucket)
    with pytest.raises(Refused):
        run(disk)
    assert keys(server, bucket) == before
    assert run(disk, allow_bucket_root=True).deleted == 1
    assert {"backups/r01-file-x", "notes.txt"} <= keys(server, bucket)


def test_all_that_killed_writers_left_in_the_bucket_goes(server: Server, opened: Opened) -> None:
    """P36, P31: objects of transactions that never committed, announcements, expired pins."""
    bucket = server.new_bucket()
    disk = opened(f"s3://{bucket}/p/")
    live = put(disk, "a/live")
    settled = keys(server, bucket)
    for number in range(3):
        transaction = disk.transaction(Inserted())
        transaction.create(f"never/{number}", b"abandoned")
    body = b'{"time":"2026-01-01T00:00:00Z","keys":[]}'
    disk.store.put("gc/abandoned.json", body, sha256=hashlib.sha256(body).digest())
    pins.create(disk.store, "restore-x", 1, holder="test", until=datetime.now(UTC) + timedelta(hours=1))
    report = run(disk)
    assert (report.deleted, report.pins_expired) == (3, ["restore-x"])
    fence = f"p/{commit_key(disk.log.head())}"
    assert keys(server, bucket) == settled | {fence}
    assert f"p/{live}" in settled


@pytest.mark.in_turn
@pytest.mark.parametrize("conditional_put", ["auto", "no"])
def test_logs_that_share_a_prefix(server: Server, opened: Opened, conditional_put: str) -> None:
    """P1, P13: three machines, each with its log; also where the store takes no conditional writes, and each fence
    needs the lease of its log. What any names stays."""
    url = f"s3://{server.new_bucket()}/cold/"
    logs = [opened(url, name, log=name, conditional_put=conditional_put) for name in ("a", "b", "c")]
    for disk in logs:
        with disk.transaction(Inserted()) as transaction:
            transaction.create("t/own/data", disk.log_name.encode() if disk.log_name else b"")
            transaction.commit()
    with logs[0].transaction(Inserted()) as transaction:
        keys = [transaction.create(f"t/p/{number}", b"x" * 9_000).key for number in range(3)]
        transaction.commit()
    row = logs[0].file_table.get("t/p/0")
    assert row is not None
    with logs[2].transaction(Inserted()) as transaction:
        transaction.adopt(row)
        transaction.commit()
    with logs[0].transaction(Dropped()) as transaction:
        transaction.remove("t/p")
        transaction.commit()
    for disk in logs:
        disk._lease.release()  # which its machine would not hold for days
    report = collect(logs[1], GcRules(delete=True, max_delete_fraction=1.0), now=LATER)
    assert report.refused is None
    assert report.deleted == 2
    assert report.foreign == []
    there = {info.key for info in logs[1].store.list("r")}
    assert keys[0] in there
    assert there.isdisjoint(keys[1:])
    assert logs[2].read("t/p/0") == b"x" * 9_000
    for disk in logs:
        disk.refresh()
        assert disk.read("t/own/data").decode() == disk.log_name


def test_ranges_of_a_shared_prefix(server: Server, opened: Opened) -> None:
    """Others list it by what the disk's configuration says, its log among it."""
    url = f"s3://{server.new_bucket()}/cold/"
    logs = [opened(url, name, log=name) for name in ("a", "b")]
    for disk in logs:
        with disk.transaction(Inserted()) as transaction:
            for number in range(5):
                transaction.create(f"t/p/{number}", b"x" * 9_000)
            transaction.commit()
    with logs[1].transaction(Dropped()) as transaction:
        transaction.remove("t/p/0")
        transaction.commit()
    config = server.disk(url, log="a")
    remote = Remote(threads(), StoreAddress.of(config))
    report = collect(logs[0], GcRules(delete=True, max_delete_fraction=1.0), now=LATER, remote=remote)
    assert report.refused is None
    assert (report.deleted, report.referenced) == (1, 9)
