"""The captured disk of a real server, rebuilt from its bucket alone: the tree must be the server's own."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore
from disks.stores.open import open_store
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.clickhouse.metadata import decode
from restore.clickhouse.bucket import ClickHouseTree, read_bucket
from restore.clickhouse.listing import Kind
from tests.compat.buckets import captured, in_memory, put_on_server
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX
from tests.servers import Server
from tiering.cli import main as cli

FREEZE_REVISION = 165
LOST_AT_FREEZE = {
    "store/db7/db7fa105-d417-4a64-977b-94ff5177349e/202402_4_4_0_6/metadata_version.txt",
    "store/db7/db7fa105-d417-4a64-977b-94ff5177349e/202403_5_5_0_6/metadata_version.txt",
}
"""Their objects were deleted with their parts, after the freeze."""

Row = tuple[tuple[tuple[str, int], ...], int]


def local(directory: str) -> dict[str, Row]:
    """The server's own metadata: path -> objects and reference count, without `shadow/`, which is not in the log.

    A frozen file's count includes its name below `shadow/`: those names are taken off, for the log cannot know them.
    """
    root = CLICKHOUSE / directory
    files = {
        path.relative_to(root).as_posix(): decode(path.read_bytes(), key_prefix=KEY_PREFIX, name=str(path))[0]
        for path in root.rglob("*")
        if path.is_file() and path.name != "revision.txt"
    }
    frozen = Counter(file.blobs for path, file in files.items() if path.startswith("shadow/"))
    return {
        path: (file.blobs, file.ref_count - frozen[file.blobs])
        for path, file in files.items()
        if not path.startswith("shadow/")
    }


def rebuilt(tree: ClickHouseTree) -> dict[str, Row]:
    return {path: (file.blobs, file.ref_count) for path, file in tree.files.items()}


def check_newest(store: ObjectStore) -> None:
    tree = read_bucket(store)
    assert tree.kind is Kind.SEND_METADATA
    assert tree.schema_version == "1"
    assert tree.revision == tree.head == 241
    assert rebuilt(tree) == local("local")
    assert tree.findings == []


def check_freeze(store: ObjectStore) -> None:
    tree = read_bucket(store, revision=FREEZE_REVISION)
    expected = local("local-at-revision-165")
    assert expected.keys() >= LOST_AT_FREEZE
    assert rebuilt(tree) == {path: row for path, row in expected.items() if path not in LOST_AT_FREEZE}
    assert {finding.path for finding in tree.findings if finding.kind == "incomplete_part"} == LOST_AT_FREEZE
    assert len(tree.findings) == len(LOST_AT_FREEZE)


@pytest.fixture(scope="module")
def loaded(ministack: Server) -> str:
    """A bucket with the captured disk. Nothing here writes to it."""
    bucket = ministack.new_bucket()
    put_on_server(ministack.client(), bucket, KEY_PREFIX, captured())
    return bucket


@pytest.fixture
def captured_url(loaded: str, s3_environment: Server) -> str:
    """The captured disk on a real server, which the environment points to."""
    return f"s3://{loaded}/{KEY_PREFIX}"


def open_url(url: str) -> ObjectStore:
    return open_store(ObjectDiskConfig(url=url, read_only=True))


@pytest.mark.in_turn
def test_the_server_s_tree_at_its_newest_revision(captured_url: str) -> None:
    """I7, I8: the bucket alone gives the live tree, with its links."""
    check_newest(open_url(captured_url))


def test_the_tree_at_the_freeze_and_what_is_lost_since(captured_url: str) -> None:
    check_freeze(open_url(captured_url))


def test_the_capture_matches_what_its_readme_says() -> None:
    store = in_memory(captured())
    tree = read_bucket(store)
    shadow = sum(1 for path in (CLICKHOUSE / "local").rglob("shadow/**/*") if path.is_file()) - 1
    assert len(tree.files) + shadow == 237
    assert tree.gaps == [(157, 157), (162, 162)]
    assert len(tree.replayed.being_deleted) == 32


@pytest.mark.in_turn
@pytest.mark.ceph
def test_ceph_gives_names_back_with_dashes(ceph: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_path` comes back as `from-path`: the same tree all the same."""
    for name, value in ceph.environment().items():
        monkeypatch.setenv(name, value)
    bucket = ceph.new_bucket()
    put_on_server(ceph.client(), bucket, KEY_PREFIX, captured())
    store = open_url(f"s3://{bucket}/{KEY_PREFIX}")
    operation = next(item.key for item in store.list("operations/"))
    assert "from-path" in store.head(operation).metadata, "this Ceph keeps the '_': the test proves nothing"
    check_newest(store)
    check_freeze(store)


@pytest.mark.parametrize(
    ("name", "sent", "back"),
    [
        ("path", "d/grün".encode().decode("latin-1"), "d/grün"),
        ("path", "d/gr\xfcn", "d/gr\xfcn"),
        ("from_path", "a", "a"),
        ("content-type", "a", "a"),
        ("1", "a", "a"),
    ],
)
def test_metadata_comes_back_whatever_it_is(bucket: str, ministack: Server, name: str, sent: str, back: str) -> None:
    """Bytes that are no ASCII, which clients and servers treat in their own ways, and names like those of headers."""
    store = S3Store.from_config(ObjectDiskConfig(url=f"s3://{bucket}/"), bucket, "")
    body = memoryview(b"1")
    store._s3.requests.put("x", body, hashlib.sha256(body).digest(), {f"x-amz-meta-{name}": sent})
    assert store.head("x").metadata == {name: back}
    assert store.head("x").size_bytes == 1
    store.close()


class Counting(WrappedStore):
    """Counts the requests for each object."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.heads: Counter[str] = Counter()
        self.wholes: Counter[str] = Counter()
        """Read with what a HEAD says."""
        self.gets: Counter[str] = Counter()
        self.lists = 0

    def head(self, key: str) -> ObjectInfo:
        self.heads[key] += 1
        return super().head(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        self.wholes[key] += 1
        return super().get_with_info(key)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.gets[key] += 1
        return super().get(key, byte_range)

    def list(self, prefix: str = "", *, start_after: str = ""):  # type: ignore[no-untyped-def]
        self.lists += 1
        return super().list(prefix, start_after=start_after)


class TestRequests:
    def test_one_head_an_object_at_most(self) -> None:
        """The cost of a rebuild is bounded by the number of objects. Of the twelve files of checksums eight stand
        where a part that is written alone has them."""
        store = Counting(in_memory(captured()))
        tree = read_bucket(store)
        assert store.lists == 1
        assert set((store.heads + store.wholes).values()) == {1}
        assert len(store.heads) == 239 - 10
        paths = {key: path for path, file in tree.files.items() for key, _ in file.blobs}
        checksums = {key for key, path in paths.items() if path.endswith("/checksums.txt")}
        assert len(store.wholes.keys() & checksums) == 8
        assert not store.gets.keys() & store.wholes.keys()
        assert store.gets.keys() - checksums == {".SCHEMA_VERSION"}

    def test_none_above_the_wanted_revision(self) -> None:
        """Defect 7: the filter holds for keys with a slash as well."""
        store = Counting(in_memory(captured()))
        tree = read_bucket(store, revision=FREEZE_REVISION)
        asked = {int(key.removeprefix("operations/")[1:65], 2) for key in store.heads + store.wholes}
        assert max(asked) == FREEZE_REVISION
        assert len(asked) == FREEZE_REVISION - 2
        assert all(file.revision <= FREEZE_REVISION for file in tree.files.values())


class TestInspect:
    def test_document(self, captured_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["--json", "clickhouse", "inspect", captured_url, "--files"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["kind"] == "send_metadata"
        assert document["ok"] is True
        assert (document["file_objects"], document["renames"], document["hard_links"]) == (175, 17, 47)
        tables = {table["table"]: table for table in document["tables"]}
        assert tables["db7fa105-d417-4a64-977b-94ff5177349e"]["parts"]["active"] == 4
        assert tables["d31b45cb-6a06-48d8-8f0f-67d8a2893338"]["files"] == 15
        tree = {
            file["path"]: (tuple((item["key"], item["bytes"]) for item in file["objects"]), file["ref_count"])
            for file in document["tree"]
        }
        assert tree == local("local")
        assert document["requests"]["HEAD"] == 239 - 10

    def test_names_what_is_lost_at_the_freeze(self, captured_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["clickhouse", "inspect", captured_url, "--revision", "165"]) == 4
        said = capsys.readouterr().out
        assert all(path in said for path in LOST_AT_FREEZE)

    def test_writes_nothing(self, captured_url: str, loaded: str, ministack: Server) -> None:
        """A foreign bucket is only read; not even the probe of conditional writes is left behind."""
        before = ministack.client().list_objects_v2(Bucket=loaded)["Contents"]
        cli.run(["-q", "clickhouse", "inspect", captured_url])
        assert ministack.client().list_objects_v2(Bucket=loaded)["Contents"] == before

    def test_nothing_there(self, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for url in (f"s3://{bucket}/none/", f"s3://{bucket}-none/", f"file://{tmp_path}/none/"):
            assert cli.run(["clickhouse", "inspect", url]) == 10
        assert "Traceback" not in capsys.readouterr().err

    def test_the_disk_s_prefix_is_named_when_the_url_lacks_it(
        self, captured_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(["clickhouse", "inspect", captured_url.removesuffix(KEY_PREFIX)]) == 4
        assert f"{KEY_PREFIX} in it looks like a disk" in capsys.readouterr().err
