"""`clickhouse zero-copy inspect`: two servers' metadata of a real disk, marks in a real ZooKeeper, a real bucket.

What each of ClickHouse's known faults leaves behind is found (P3, P4, P10, P13), and nothing is written anywhere."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oplog.clickhouse.metadata import decode
from tests.command_line import Frostline
from tests.compat.buckets import captured, put_on_server
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from zerocopy.clickhouse import sharing
from zerocopy.keeper.client import Keeper

TABLE = "db7fa105-d417-4a64-977b-94ff5177349e"


class Cluster:
    """Two servers with the same parts, their marks, and the command that looks at them."""

    def __init__(self, tmp_path: Path, run: Frostline, settings: KeeperConfig, bucket: str, client: Any) -> None:
        self.path = tmp_path
        self.run = run
        self.bucket = bucket
        self.client = client
        self.root = f"{settings.root}/zero_copy"
        for name in ("r1", "r2"):
            shutil.copytree(CLICKHOUSE / "local", tmp_path / name)
            (tmp_path / name / "shadow/f1/revision.txt").unlink(missing_ok=True)
        put_on_server(client, bucket, KEY_PREFIX, captured())
        self.configuration = tmp_path / "frostline.yaml"
        self.configuration.write_text(
            json.dumps({"state_path": str(tmp_path / "state"), "keeper": {"hosts": list(settings.hosts)}})
        )
        with Keeper(msgspec.structs.replace(settings, root=self.root)) as keeper:
            for name in ("r1", "r2"):
                for node in self.expected(name):
                    keeper.make_path(node)

    def parts(self, server: str) -> dict[str, str]:
        """The directory of each part -> the first object of its checksums."""
        root = self.path / server
        found = {}
        for file in sorted(root.glob("store/*/*/**/checksums.txt")):
            metadata, _ = decode(file.read_bytes(), key_prefix=KEY_PREFIX, name=str(file))
            found[file.parent.relative_to(root).as_posix()] = metadata.blobs[0][0]
        return found

    def expected(self, server: str) -> list[str]:
        """A mark for each part, as servers make them."""
        return [
            f"/zero_copy_s3/{directory.split('/')[2]}/{directory.rpartition('/')[2]}/"
            f"{(KEY_PREFIX + key).replace('/', '_')}/{server}"
            for directory, key in self.parts(server).items()
        ]

    def inspect(self, *servers: str, code: int = 4) -> Any:
        given = [text for name in servers or ("r1", "r2") for text in ("--server", f"{name}={self.path / name}")]
        words = ["-c", str(self.configuration), "clickhouse", "zero-copy", "inspect"]
        return self.run.json(*words, f"s3://{self.bucket}/{KEY_PREFIX}", *given, "--keeper-path", self.root, code=code)


@pytest.fixture
def cluster(
    tmp_path: Path,
    settings: KeeperConfig,
    bucket: str,
    s3_environment: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cluster:
    monkeypatch.setattr(sharing, "YOUNG", timedelta(0))
    return Cluster(tmp_path, Frostline(capsys), settings, bucket, s3_environment.client())


@pytest.fixture
def marked(cluster: Cluster, settings: KeeperConfig) -> Any:
    """A connection to where the marks are."""
    with Keeper(msgspec.structs.replace(settings, root=cluster.root)) as keeper:
        yield keeper


def kinds(found: Any) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = {}
    for problem in found["problems"]:
        by_kind.setdefault(problem["kind"], []).append(problem["what"])
    return by_kind


def tree(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def nodes(keeper: Keeper, path: str = "/zero_copy_s3") -> set[str]:
    return {path}.union(*(nodes(keeper, f"{path}/{name}") for name in keeper.children(path)))


def test_nothing_is_wrong_with_what_is_whole(cluster: Cluster, marked: Keeper) -> None:
    before = tree(cluster.path / "r1"), nodes(marked), cluster.client.list_objects_v2(Bucket=cluster.bucket)["KeyCount"]
    found = cluster.inspect(code=0)
    parts = len(cluster.parts("r1"))
    assert [(one["server"], one["parts"], one["marks"]) for one in found["servers"]] == [
        ("r1", parts, parts),
        ("r2", parts, parts),
    ]
    assert (found["marks"], found["orphaned"], found["ok"]) == (2 * parts, 0, True)
    assert found["shared"] > parts
    after = tree(cluster.path / "r1"), nodes(marked), cluster.client.list_objects_v2(Bucket=cluster.bucket)["KeyCount"]
    assert after == before


def _no_mark(cluster: Cluster, marked: Keeper) -> str:
    """ClickHouse 47274 and 71845: a part in its place, and its mark is missing."""
    marked.delete(cluster.expected("r2")[0])
    return f"r2: {next(iter(cluster.parts('r2')))}"


def _no_part(cluster: Cluster, marked: Keeper) -> str:
    """ClickHouse 54426: the part is gone, and its mark stays."""
    directory = next(iter(cluster.parts("r2")))
    shutil.rmtree(cluster.path / "r2" / directory)
    return f"r2: {directory.split('/')[2]}/{directory.rpartition('/')[2]}"


def _no_object(cluster: Cluster, marked: Keeper) -> str:
    """ClickHouse 39560: another server's drop took the objects."""
    directory, key = next(iter(cluster.parts("r1").items()))
    cluster.client.delete_object(Bucket=cluster.bucket, Key=KEY_PREFIX + key)
    return f"r1: {directory}/checksums.txt: object {key}"


def _nobody(cluster: Cluster, marked: Keeper) -> str:
    """The last mark went, and the objects did not."""
    for server in ("r1", "r2"):
        marked.delete(cluster.expected(server)[0])
    return cluster.expected("r1")[0].rpartition("/")[0]


FAULTS: dict[str, Callable[[Cluster, Keeper], str]] = {
    "part_without_mark": _no_mark,
    "mark_without_part": _no_part,
    "object_missing": _no_object,
    "mark_without_object": _no_object,
    "mark_of_nobody": _nobody,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_named(kind: str, cluster: Cluster, marked: Keeper) -> None:
    expected = FAULTS[kind](cluster, marked)
    found = kinds(cluster.inspect())
    if kind == "mark_without_object":
        assert [sentence.partition(":")[0] for sentence in found[kind]] == ["r1", "r2"]
    else:
        assert any(expected in sentence for sentence in found[kind]), found[kind]
    assert "orphan" not in found


def test_a_dropped_part_whose_objects_stay_is_an_orphan(cluster: Cluster, marked: Keeper) -> None:
    directory = f"store/db7/{TABLE}/202401_1_3_1_6"
    for server in ("r1", "r2"):
        shutil.rmtree(cluster.path / server / directory)
    found = cluster.inspect()
    assert found["orphaned"] == len(kinds(found)["orphan"]) > 0
    assert found["orphaned_bytes"] > 0


def test_servers_that_were_not_given_may_have_what_nobody_names(cluster: Cluster) -> None:
    found = cluster.inspect("r1", code=0)
    assert any("r2 (" in note and "may be theirs" in note for note in found["notes"])


def test_a_young_object_is_no_orphan(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "YOUNG", timedelta(hours=1))
    cluster.client.put_object(Bucket=cluster.bucket, Key=f"{KEY_PREFIX}abc/{'d' * 29}", Body=b"on its way")
    found = cluster.inspect(code=0)
    assert (found["orphaned"], found["ok"]) == (0, True)
    assert any(note.startswith("1 object unreferenced") for note in found["notes"])


def test_a_file_that_cannot_be_read_is_named(cluster: Cluster) -> None:
    directory = next(iter(cluster.parts("r1")))
    (cluster.path / "r1" / directory / "checksums.txt").write_bytes(b"")
    found = cluster.inspect()
    assert [one["unreadable"] for one in found["servers"]] == [1, 0]
    assert [f"r1/{directory}/checksums.txt is empty" in what for what in kinds(found)["unreadable"]] == [True]
    assert any("cannot be read" in note for note in found["notes"])
    assert "mark_without_part" not in kinds(found), "the part is there, and reported once"


def test_wrong_words_are_said(cluster: Cluster) -> None:
    words = ["-c", str(cluster.configuration), "clickhouse", "zero-copy", "inspect", f"s3://{cluster.bucket}/x/"]
    cluster.run(*words, "--server", "r1", code=2)
    assert "--server r1=" in cluster.run.error or "REPLICA=DIR" in cluster.run.error
    cluster.run(*words, "--server", "r1=a", "--server", "r1=b", code=2)
    server = ("--server", f"r1={cluster.path / 'r1'}")
    cluster.run(*words, *server, "--keeper-path", "/nothing/here", code=10)
    assert "remote_fs_zero_copy_zookeeper_path" in cluster.run.error
    cluster.run(*words, *server, "--keeper-path", "no path", code=2)


def test_the_terminal_shows_servers_and_problems(cluster: Cluster, marked: Keeper) -> None:
    _no_mark(cluster, marked)
    given = [text for name in ("r1", "r2") for text in ("--server", f"{name}={cluster.path / name}")]
    words = ["-c", str(cluster.configuration), "clickhouse", "zero-copy", "inspect"]
    shown = cluster.run(*words, f"s3://{cluster.bucket}/{KEY_PREFIX}", *given, "--keeper-path", cluster.root, code=4)
    assert "part_without_mark  r2: store/" in shown
    assert "more than one server has them" in shown
