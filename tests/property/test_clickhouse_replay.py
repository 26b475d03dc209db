"""Replay of a ClickHouse log against a dict: any history, at any of its revisions, over any restarts (I7, I8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC

from hypothesis import given, settings
from hypothesis import strategies as st

from disks.workers.parallel import Askers
from oplog.clickhouse.replay import may_append
from oplog.errors import FrostlineError
from oplog.paths import is_safe
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.report import inspect
from tests.compat.buckets import ClickHouse, Object, in_memory
from tests.turns import examples
from tiering.cli.frame.output import encode

NAMES = ("a", "b", "c.bin", "metadata_version.txt", "all_1_1_0", "delete_tmp_a", "other")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


@dataclass(frozen=True)
class File:
    path: str


@dataclass(frozen=True)
class Rename:
    source: str
    target: str
    slash: bool


@dataclass(frozen=True)
class Link:
    source: str
    target: str


@dataclass(frozen=True)
class Restart:
    pass


STEPS = st.one_of(
    st.builds(File, PATHS),
    st.builds(Rename, PATHS, PATHS, st.booleans()),
    st.builds(Link, PATHS, PATHS),
    st.builds(File, PATHS),
)


@dataclass
class Model:
    """The tree as a plain dict: path -> the keys of its file, shared by its links."""

    files: dict[str, list[str]] = field(default_factory=dict)

    def below(self, path: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{path}/")]

    def blocked(self, path: str) -> bool:
        """A file stands where a directory is needed."""
        segments = path.split("/")
        return any("/".join(segments[:count]) in self.files for count in range(1, len(segments)))

    def create(self, path: str, key: str) -> None:
        if self.blocked(path) or self.below(path):
            return
        if path in self.files and may_append(path):
            self.files[path].append(key)
        else:
            self.files[path] = [key]

    def rename(self, source: str, target: str) -> None:
        if f"{target}/".startswith(f"{source}/"):
            return
        if source in self.files:
            if not self.blocked(target) and not self.below(target):
                self.files[target] = self.files.pop(source)
            return
        moved = self.below(source)
        if not moved or target in self.files or self.blocked(target):
            return
        for path, keys in {path: self.files.pop(path) for path in moved}.items():
            new = target + path[len(source) :]
            for covered in [new, *self.below(new)]:
                self.files.pop(covered, None)
            segments = new.split("/")
            for count in range(1, len(segments)):
                self.files.pop("/".join(segments[:count]), None)
            self.files[new] = keys

    def link(self, source: str, target: str) -> None:
        if source in self.files and not self.blocked(target) and not self.below(target):
            self.files[target] = self.files[source]

    def shape(self) -> dict[str, tuple[tuple[str, ...], int]]:
        live = {path: keys for path, keys in self.files.items() if "/delete_tmp_" not in f"/{path}"}
        links = Counter(id(keys) for keys in live.values())
        return {path: (tuple(keys), links[id(keys)]) for path, keys in live.items()}


def play(server: ClickHouse, model: Model, step: File | Rename | Link) -> None:
    """The same step on both. Hosts differ after a restart, so that no operation's object is overwritten."""
    match step:
        case File(path):
            model.create(path, server.file(path))
        case Rename(source, target, slash):
            server.rename(source + "/" * slash, target + "/" * slash)
            model.rename(source, target)
        case Link(source, target):
            server.link(source, target)
            model.link(source, target)


def shape(server: ClickHouse, revision: int | None = None) -> dict[str, tuple[tuple[str, ...], int]]:
    tree = read_bucket(server.store(), revision=revision, askers=Askers(workers=1))
    return {path: (tuple(key for key, _ in file.blobs), file.links) for path, file in tree.files.items()}


@given(steps=st.lists(STEPS, min_size=1, max_size=25), data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_every_revision_is_what_the_model_was(steps: list[File | Rename | Link], data: st.DataObject) -> None:
    server, model = ClickHouse(old_keys=data.draw(st.booleans())), Model()
    states = [model.shape()]
    for step in steps:
        play(server, model, step)
        states.append(model.shape())
    revision = data.draw(st.integers(0, len(steps)))
    assert shape(server, revision) == states[revision]
    assert shape(server) == states[-1]


@given(steps=st.lists(st.one_of(STEPS, st.just(Restart())), min_size=1, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_restarts_of_the_counter_change_nothing(steps: list[File | Rename | Link | Restart]) -> None:
    """Defect 1: equal numbers, yet every object counts, in the order of its time."""
    server, model = ClickHouse(), Model()
    play(server, model, File("format_version.txt"))  # the first thing that a table writes
    for number, step in enumerate(steps):
        if isinstance(step, Restart):
            server.restart()
            server.host = f"vm{number}"
        else:
            play(server, model, step)
    assert shape(server) == model.shape()


KEYS = st.one_of(
    st.builds(
        "{}r{:064b}-{}".format,
        st.sampled_from(["", "operations/"]),
        st.integers(0, (1 << 64) - 1) | st.integers(0, 5),
        st.sampled_from(["file-" + "a" * 32, "file-abc/" + "b" * 29, "vm-rename", "hardlink", "commit", "x y-rename"]),
    ),
    st.sampled_from([".SCHEMA_VERSION", "abc/" + "c" * 29, "__meta/" + "d" * 32 + "/prefix.path", "d" * 32 + "/x"]),
    st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=40),
)
VALUES = st.one_of(PATHS, st.text(max_size=60), st.just("=?utf-8?b?!!!?="), st.just("a/" * 600))
METADATA = st.dictionaries(
    st.sampled_from(["path", "Path", "from_path", "to-path", "TO_PATH", "src_path", "dst-path", "x"]),
    VALUES,
    max_size=4,
)
OBJECTS = st.builds(
    Object,
    KEYS,
    st.binary(max_size=40) | st.just(b"1") | st.just(b"a/b/"),
    METADATA,
    st.datetimes(timezones=st.just(UTC)),
)


@given(objects=st.lists(OBJECTS, max_size=12), revision=st.none() | st.integers(0, 10))
@settings(max_examples=examples(400), deadline=None)
def test_whatever_is_in_a_bucket_is_a_report_or_an_error_of_ours(objects: list[Object], revision: int | None) -> None:
    """I15: hostile names, paths and times are named, never a traceback, and never a path outside of the disk."""
    try:
        report = inspect(in_memory(objects), revision=revision, askers=Askers(workers=2))
    except FrostlineError:
        return
    assert all(is_safe(path) for path in report.files)
    assert encode(report.document(files=True))
    assert all(finding.what for finding in report.findings)
