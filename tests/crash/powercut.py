"""What a power cut may leave of an operation, worked out from its trace: no root, no block device.

The recorder notes every file-system effect with the bytes written, and every call of `os.fsync`. The model cuts the
power after each of them: what was synced stays; of the rest - entries of directories, bytes of files - it makes the
trees with nothing, all, all but one and only one kept. A rename is kept or lost as a whole, except that syncing the
source's directory alone makes the old name go. SQLite's files are taken as they are after each commit: safe where it
runs with synchronous=FULL.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from disks.host import file_system
from tests.crash.harness import hooked
from tests.crash.site import Site

Tree = dict[str, bytes | None]
"""Relative path -> content; None for a directory."""
Content = Literal["synced", "half", "written"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect that changed files: `contents` holds those it wrote, as they were right after it."""

    name: str
    paths: tuple[str, ...]
    contents: tuple[tuple[str, bytes], ...] = ()


_NOT_NOTED = ("store.", "fs.fsync", "fs.syncfs", "fs.utime")


@dataclass(slots=True)
class Recorder:
    """A hook for `disks.effects` that makes the trace."""

    root: Path
    journal: Path
    trace: list[Effect] = field(default_factory=list)

    def __call__(self, phase: Literal["before", "after"], name: str, arguments: tuple[object, ...]) -> None:
        # A directory is noted before it is made: another thread may put something in it before this one goes on.
        if (phase == "before") != (name == "fs.mkdir") or name.startswith(_NOT_NOTED):
            return
        paths = [Path(str(found)) for found in arguments if isinstance(found, Path) or name.startswith("fs.")]
        if paths and paths[0].name in _TELLS_OF_TIMES:
            return
        written: list[Path] = []
        if name == "journal.commit" and arguments[0] not in _NOT_DURABLE:
            written = [self.journal, self.journal.with_name("journal.db-wal")]
        elif name == "sqlite.commit":
            written = [paths[0], paths[0].with_name(f"{paths[0].name}-wal")] if paths else []
        elif name in ("fs.write", "fs.create", "journal.create"):
            written = paths[:1]
        elif name == "journal.commit":
            return
        elif name not in _KNOWN:
            raise AssertionError(f"the power-cut model does not know the effect {name!r}")
        contents = tuple((self._relative(path), path.read_bytes()) for path in written if path.exists())
        self.trace.append(Effect(name, tuple(self._relative(path) for path in paths), contents))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the block does. A seeded mistake in the product's syncing stays above the recording."""
        with (
            self._noting(os, "fsync", self._synced),
            self._noting(file_system, "syncfs", self._all_synced),
            hooked(self),
        ):
            yield

    @contextmanager
    def _noting(self, module: Any, name: str, note: Callable[[int], None]) -> Iterator[None]:
        called = getattr(module, name)
        mistaken = called if hasattr(called, "inner") else None
        inner = called if mistaken is None else mistaken.inner

        def synced(descriptor: int) -> None:
            inner(descriptor)
            note(descriptor)

        if mistaken is None:
            setattr(module, name, synced)
        else:
            mistaken.inner = synced
        try:
            yield
        finally:
            if mistaken is None:
                setattr(module, name, inner)
            else:
                mistaken.inner = inner

    def _synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(self.root):
            name = "fs.fsync_directory" if path.is_dir() else "fs.fsync"
            self.trace.append(Effect(name, (self._relative(path),)))

    def _all_synced(self, descriptor: int) -> None:
        self.trace.append(Effect("fs.syncfs", (".",)))

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))


_KNOWN = frozenset({"fs.rename", "fs.link", "fs.unlink", "fs.mkdir", "fs.rmdir"})
_TELLS_OF_TIMES = frozenset({"changes", "changes.old"})
"""Files of a local disk that say nothing of a tree whose directories have other times, as all trees here do."""
_NOT_DURABLE = frozenset({"claim", "release", "note_unseen", "seen", "note_bytes", "note_capacity"})
"""Journal commits that may be lost: no owner of a claim survives a power cut, and the others say what helps only with a
later one, or what is found out again."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One directory entry that changed. Those of one rename share `group`."""

    directory: int
    name: str
    node: int | None
    group: int


class _Disk:
    """Directories by inode, what of them and of the files' bytes is safe, and the entry changes that are not."""

    def __init__(self, tree: Tree) -> None:
        self._numbers = itertools.count(1)
        self._groups = itertools.count(1)
        self.safe_entries: dict[int, dict[str, int]] = {0: {}}
        self.entries: dict[int, dict[str, int]] = {0: {}}
        self.safe_bytes: dict[int, bytes] = {}
        self.bytes: dict[int, bytes] = {}
        self.pending: list[_Change] = []
        for path in sorted(tree):
            parent, name = self._locate(path)
            content = tree[path]
            node = self._new_directory() if content is None else self._new_file(content)
            if content is not None:
                self.safe_bytes[node] = content
            self.entries[parent][name] = self.safe_entries[parent][name] = node

    def apply(self, effect: Effect) -> None:
        paths = effect.paths
        match effect.name:
            case "fs.create" | "fs.write" | "journal.create":
                for path, content in effect.contents:
                    self._write(path, content)
            case "journal.commit":
                for path, content in effect.contents:
                    self._sync_file(self._write(path, content))
                    self._sync_entry(path)
            case "sqlite.commit":
                for path, content in effect.contents:
                    self._write(path, content)
            case "fs.fsync":
                if (node := self._find(paths[0])) is not None:
                    self._sync_file(node)
            case "fs.fsync_directory":
                self._sync_directory(self._find(paths[0]))
            case "fs.syncfs":
                self.safe_bytes.update(self.bytes)
                self._settle(list(self.pending))
            case "fs.mkdir":
                if self._find(paths[0]) is None:
                    self._change([(paths[0], self._new_directory())])
            case "fs.rename":
                node = self._find(paths[0])
                if node is not None:
                    self._change([(paths[1], node), (paths[0], None)])
            case "fs.link":
                self._change([(paths[1], self._find(paths[0]))])
            case "fs.unlink" | "fs.rmdir":
                if self._find(paths[0]) is not None:
                    self._change([(paths[0], None)])

    def trees(self) -> Iterator[tuple[str, Tree]]:
        """What a power cut now may leave, each with a word on what was lost."""
        groups = list(dict.fromkeys(change.group for change in self.pending))
        every = frozenset(groups)
        yield "nothing unsynced kept", self._tree(frozenset(), "synced")
        yield "all names kept, no unsynced bytes", self._tree(every, "synced")
        yield "all names kept, unsynced bytes torn", self._tree(every, "half")
        yield "everything kept", self._tree(every, "written")
        for group in groups:
            yield f"only {self._describe(group)} kept", self._tree(frozenset({group}), "written")
            yield f"only {self._describe(group)} lost", self._tree(every - {group}, "written")

    def _describe(self, group: int) -> str:
        return " and ".join(
            f"{'entry' if change.node is not None else 'removal of'} {change.name}"
            for change in self.pending
            if change.group == group
        )

    def _tree(self, kept: frozenset[int], content: Content) -> Tree:
        entries = {directory: dict(names) for directory, names in self.safe_entries.items()}
        for change in self.pending:
            if change.group in kept:
                names = entries.setdefault(change.directory, {})
                if change.node is None:
                    names.pop(change.name, None)
                else:
                    names[change.name] = change.node
        tree: Tree = {}
        self._collect(entries, 0, "", content, tree)
        return tree

    def _collect(
        self, entries: dict[int, dict[str, int]], directory: int, prefix: str, content: Content, tree: Tree
    ) -> None:
        for name, node in entries.get(directory, {}).items():
            if node in self.entries:
                tree[f"{prefix}{name}"] = None
                self._collect(entries, node, f"{prefix}{name}/", content, tree)
            else:
                tree[f"{prefix}{name}"] = self._content(node, content)

    def _content(self, node: int, content: Content) -> bytes:
        written, safe = self.bytes[node], self.safe_bytes.get(node, b"")
        if content == "written" or written == safe:
            return written
        return safe if content == "synced" else written[: len(written) // 2]

    def _write(self, path: str, content: bytes) -> int:
        node = self._find(path)
        if node is None:
            node = self._new_file(content)
            self._change([(path, node)])
        self.bytes[node] = content
        return node

    def _change(self, changes: Sequence[tuple[str, int | None]]) -> None:
        group = next(self._groups)
        for path, node in changes:
            directory, name = self._locate(path)
            if node is None:
                self.entries[directory].pop(name, None)
            else:
                self.entries[directory][name] = node
            self.pending.append(_Change(directory, name, node, group))

    def _sync_file(self, node: int) -> None:
        self.safe_bytes[node] = self.bytes[node]

    def _sync_entry(self, path: str) -> None:
        directory, name = self._locate(path)
        self._settle([change for change in self.pending if (change.directory, change.name) == (directory, name)])

    def _sync_directory(self, directory: int | None) -> None:
        if directory is None:
            return
        inside = [change for change in self.pending if change.directory == directory]
        arrived = {change.group for change in inside if change.node is not None}
        self._settle([change for change in self.pending if change.directory == directory or change.group in arrived])

    def _settle(self, changes: Sequence[_Change]) -> None:
        """These are safe now; older unsafe changes of the same names are overtaken by them."""
        for change in changes:
            names = self.safe_entries.setdefault(change.directory, {})
            if change.node is None:
                names.pop(change.name, None)
            else:
                names[change.name] = change.node
        latest = {(change.directory, change.name): self.pending.index(change) for change in changes}
        self.pending = [
            change
            for index, change in enumerate(self.pending)
            if change not in changes and index >= latest.get((change.directory, change.name), -1)
        ]

    def _new_file(self, content: bytes) -> int:
        node = next(self._numbers)
        self.bytes[node] = content
        return node

    def _new_directory(self) -> int:
        node = next(self._numbers)
        self.entries[node] = {}
        self.safe_entries.setdefault(node, {})
        return node

    def _find(self, path: str) -> int | None:
        node: int | None = 0
        for segment in () if path == "." else path.split("/"):
            if node is None:
                return None
            node = self.entries.get(node, {}).get(segment)
        return node

    def _locate(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        directory = self._find(parent or ".")
        assert directory is not None, f"{path}: its directory was made outside of op()"
        return directory, name


@dataclass(frozen=True, slots=True)
class Cut:
    """One state that a power cut may leave. `after` counts the effects that had happened; `last` says all had."""

    after: int
    last: bool
    what: str
    tree: Tree


def cuts(before: Tree, trace: Sequence[Effect]) -> Iterator[Cut]:
    """Every distinct state. One that may follow the whole operation is given as such: it keeps what was promised."""
    disk = _Disk(before)
    states: dict[bytes, Cut] = {}
    for index, effect in enumerate(trace, 1):
        disk.apply(effect)
        last = index == len(trace)
        for what, tree in disk.trees():
            digest = _digest(tree)
            if digest not in states or last:
                states[digest] = Cut(index, last, f"after {effect.name} {' '.join(effect.paths)}: {what}", tree)
    yield from states.values()


def read_tree(root: Path) -> Tree:
    """A directory as a tree, without SQLite's shared memory, which no power cut leaves."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
        if not path.name.endswith("-shm")
    }


def write_tree(tree: Tree, site: Site) -> None:
    """Put the tree in the place of the store."""
    shutil.rmtree(site.root, ignore_errors=True)
    site.root.mkdir()
    for path in sorted(tree):
        content = tree[path]
        if content is None:
            (site.root / path).mkdir()
        else:
            (site.root / path).write_bytes(content)


def _digest(tree: Tree) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(tree):
        content = tree[path]
        digest.update(path.encode() + (b"/" if content is None else hashlib.sha256(content).digest()))
    return digest.digest()
