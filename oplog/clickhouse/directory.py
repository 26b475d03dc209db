"""The tree that a replay of ClickHouse's log changes. Pure.

Directories are dicts, so that a rename of a directory moves one entry, however much lies below it. No function calls
itself: a hostile log makes trees deeper than any call stack.
"""

from __future__ import annotations

from collections.abc import Iterator


class Inode:
    """A file's blobs. Without blobs and with `missing`, the place of a file that has no object: its bytes are gone, or
    it never had any."""

    __slots__ = ("blobs", "created_at", "linked", "missing", "revision", "run", "same_as")

    def __init__(self, path: str, revision: int, *, run: int = 0, missing: bool = False) -> None:
        self.blobs: list[tuple[str, int]] = []
        self.created_at = path
        self.revision = revision
        self.run = run
        self.missing = missing
        self.linked = missing
        """Of a missing one: a hard link should have made it. Else a link named it as its source."""
        self.same_as = self
        """Of a missing one: the one that stands for all that were links of one file."""

    @classmethod
    def hole(cls, path: str, revision: int, *, linked: bool, same_as: Inode | None = None) -> Inode:
        """The place of a file without an object, which is the same file as `same_as`."""
        made = cls(path, revision, missing=True)
        made.linked = linked
        made.same_as = same_as.same_as if same_as is not None else made
        return made

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.blobs)


class Directory(dict[str, "Directory | Inode"]):
    """Names to what they stand for."""

    __slots__ = ("run",)

    def __init__(self, run: int) -> None:
        super().__init__()
        self.run = run
        """The run of the counter in which it was made."""


def holds_files(entry: Directory | Inode) -> bool:
    """Whether it is a file, or has one below it. Directories are never removed, so there are empty ones."""
    waiting: list[Directory | Inode] = [entry]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Directory):
            waiting.extend(found.values())
        elif not found.missing:
            return True
    return False


def merge(source: Directory, target: Directory) -> None:
    """Put everything of one directory into another; a file of the source takes the place of what is in the target."""
    waiting = [(source, target)]
    while waiting:
        one, other = waiting.pop()
        for name, moved in one.items():
            existing = other.get(name)
            if isinstance(moved, Directory) and isinstance(existing, Directory):
                waiting.append((moved, existing))
            elif existing is None or holds_files(moved):
                other[name] = moved


def walk(root: Directory) -> Iterator[tuple[str, Inode, bool]]:
    """Every file with its path, and whether its directory holds a file that is not missing."""
    waiting = [(root, "")]
    while waiting:
        directory, prefix = waiting.pop()
        whole = any(isinstance(entry, Inode) and not entry.missing for entry in directory.values())
        for name, entry in directory.items():
            if isinstance(entry, Inode):
                yield f"{prefix}{name}", entry, whole
            else:
                waiting.append((entry, f"{prefix}{name}/"))
