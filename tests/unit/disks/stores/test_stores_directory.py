"""The directory store and the opener: durable order, leftovers, read-only, Object Lock of the memory store."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from disks import effects
from disks.config import ObjectDiskConfig
from disks.host.processes import process_start
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from oplog.errors import AlreadyExists, NotFound, Refused, Retained, UsageError

DATA = b"some bytes"
DIGEST = hashlib.sha256(DATA).digest()


def test_objects_are_plain_files_under_their_key(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "bucket")
    store.put("operations/r01-commit", DATA, sha256=DIGEST)
    assert (tmp_path / "bucket/operations/r01-commit").read_bytes() == DATA
    assert list((tmp_path / "bucket/.incoming").iterdir()) == []


def test_opening_and_reading_write_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "bucket")
    assert list(store.list()) == []
    with pytest.raises(NotFound):
        store.get("key")
    assert not (tmp_path / "bucket").exists()


def test_file_is_synced_before_its_name_and_the_directory_after(tmp_path: Path) -> None:
    """I2 under power loss: data, then name, then directory."""
    store = DirectoryStore(tmp_path / "bucket")
    store.put("warm/up", DATA, sha256=DIGEST)
    seen: list[str] = []
    effects.set_hook(lambda when, name, arguments: seen.append(name) if when == "before" else None)
    try:
        store.put("warm/key", DATA, sha256=DIGEST)
        store.put_if_absent("warm/other", DATA, sha256=DIGEST)
    finally:
        effects.set_hook(None)
    order = ["store.put", "fs.create", "fs.write", "fs.fsync", "fs.rename", "fs.fsync_directory"]
    assert seen[:6] == order
    assert seen[6:12] == [*order[:4], "fs.link", "fs.fsync_directory"]


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(tmp_path: Path) -> None:
    """I14: kill -9 in the middle of a write. They are invisible until then."""
    code = textwrap.dedent(f"""
        import hashlib, os, signal
        from pathlib import Path
        from disks import effects
        from disks.stores.directory import DirectoryStore
        def die(when, name, arguments):
            if name == "fs.fsync":
                os.kill(os.getpid(), signal.SIGKILL)
        effects.set_hook(die)
        DirectoryStore(Path({str(tmp_path)!r})).put("key", b"x", sha256=hashlib.sha256(b"x").digest())
    """)
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list((tmp_path / ".incoming").iterdir())) == 1, "the kill must have left something"
    reader = DirectoryStore(tmp_path, read_only=True)
    assert list(reader.list()) == []
    assert len(list((tmp_path / ".incoming").iterdir())) == 1
    DirectoryStore(tmp_path)
    assert list((tmp_path / ".incoming").iterdir()) == []


def test_a_reused_process_id_keeps_no_leftover(tmp_path: Path) -> None:
    """I14: process ids come again, on a busy machine within minutes."""
    start = process_start(os.getppid()).replace("/", "_")
    assert start[-1].isdigit()
    incoming, host = tmp_path / ".incoming", socket.gethostname()
    incoming.mkdir()
    may_be_at_work = {f"{host}.{os.getppid()}-{start}.0.tmp", f"{host}.{os.getppid()}.0.tmp", "elsewhere.1-2.0.tmp"}
    gone = {f"{host}.{os.getppid()}-{start}1.0.tmp", f"{host}.{os.getpid()}-1.0.tmp"}
    for name in may_be_at_work | gone:
        (incoming / name).write_bytes(b"x")
    DirectoryStore(tmp_path)
    assert {path.name for path in incoming.iterdir()} == may_be_at_work


def test_a_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    opened: list[DirectoryStore] = []
    effects.set_hook(
        lambda when, name, arguments: (
            opened.append(DirectoryStore(tmp_path)) if (when, name) == ("before", "fs.fsync") else None
        )
    )
    try:
        store.put("key", DATA, sha256=DIGEST)
    finally:
        effects.set_hook(None)
    assert opened
    assert store.get("key") == DATA


def test_symlinks_are_no_objects(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("key", DATA, sha256=DIGEST)
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "directory-link").symlink_to("/etc")
    assert [info.key for info in store.list()] == ["key"]
    with pytest.raises(Refused, match="symbolic link"):
        store.get("link")
    with pytest.raises(NotFound):
        store.head("link")


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for key in (".incoming/x", ".metadata/key", ".metadata"):
        with pytest.raises(ValueError, match="key"):
            store.put(key, DATA, sha256=DIGEST)


def test_a_key_below_an_object_is_a_clear_error(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("a", DATA, sha256=DIGEST)
    for call in (lambda: store.get("a/b"), lambda: store.head("a/b")):
        with pytest.raises(NotFound, match="a/b"):
            call()
    assert store.delete(["a/b"])["a/b"] is None
    os.chmod(tmp_path / "a", 0o600)
    assert store.get("a") == DATA


def test_memory_store_can_lock_objects() -> None:
    store = MemoryStore(keep_for=timedelta(hours=1))
    store.put("key", DATA, sha256=DIGEST)
    with pytest.raises(AlreadyExists):
        store.put("key", DATA, sha256=DIGEST)
    answer = store.delete(["key"])["key"]
    assert isinstance(answer, Retained)
    assert answer.until == store.head("key").modified + timedelta(hours=1)
    assert store.get("key") == DATA


def test_read_only_refuses_every_change(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/"
    open_store(ObjectDiskConfig(url=url)).put("key", DATA, sha256=DIGEST)
    store = open_store(ObjectDiskConfig(url=url, read_only=True))
    assert store.get("key") == DATA
    for call in (
        lambda: store.put("new", DATA, sha256=DIGEST),
        lambda: store.put_if_absent("new", DATA, sha256=DIGEST),
        lambda: store.delete(["key"]),
        lambda: store.copy("key", "new"),
    ):
        with pytest.raises(Refused, match="read-only"):
            call()
    assert [info.key for info in store.list()] == ["key"]


@pytest.mark.parametrize(
    "url",
    [None, "file://relative/path", "http://host/", "s3:///prefix", "s3://bucket/p?x=1", "bucket/prefix", "ftp://x/"],
)
def test_urls_that_name_no_bucket(url: str | None) -> None:
    with pytest.raises(UsageError):
        open_store(ObjectDiskConfig(url=url))


def test_memory_urls_share_one_store_by_name() -> None:
    open_store(ObjectDiskConfig(url="memory://shared-name/")).put("key", DATA, sha256=DIGEST)
    assert open_store(ObjectDiskConfig(url="memory://shared-name")).get("key") == DATA
    with pytest.raises(NotFound):
        open_store(ObjectDiskConfig(url="memory://another-name")).get("key")
