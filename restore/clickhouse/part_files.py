"""The files of parts as their checksums have them: compared, with the empty ones added that have no object, and with
gaps filled by objects that bear another path.

An object that was copied inside the store keeps the path of its source, so the log does not tell where it belongs. The
checksums of the part that lacks it do, by its size and its hash.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from disks.stores.base import ByteRange, ObjectStore
from disks.workers.parallel import Askers, ask
from oplog.clickhouse.checksums import FILE_NAME as CHECKSUMS
from oplog.clickhouse.checksums import Checksum, parse_checksums
from oplog.clickhouse.cityhash import FileHash
from oplog.clickhouse.names import parse_key
from oplog.clickhouse.replay import File, LogProblem, Replayed
from oplog.errors import Damaged, NotFound
from oplog.paths import is_safe
from restore.clickhouse.parts import ClickHousePart, State, check_parts, empty_files, find_tables, is_checksums

_PIECE_BYTES = 8 << 20

Lists = dict[str, dict[str, Checksum]]
"""Directory of a part -> what its checksums list."""


def look_at_parts(
    store: ObjectStore,
    replayed: Replayed,
    gaps: Sequence[tuple[int, int]],
    read: Mapping[str, bytes],
    askers: Askers,
    *,
    spare: Sequence[tuple[str, int]] = (),
    restarted: bool = False,
) -> list[LogProblem]:
    """Compare every part with its own `checksums.txt` and with those of its projections, add the empty files that have
    no object, and fill gaps with objects of `spare` (key, bytes), which no file of the tree names.

    One GET a part and projection, unless `read` (object key -> bytes) has them. A part that is on its way out gets its
    empty files as well: the server looks at it when it starts.
    """
    tables = find_tables(replayed.files)
    parts = [part for table in tables for part in table.parts]
    files = [(part, name) for part in parts for name in part.files if is_checksums(name)]
    found = _all_checksums(store, [part.files[name] for part, name in files], read, askers)
    lists: Lists = {}
    findings: list[LogProblem] = []
    for (part, name), answer in zip(files, found, strict=True):
        if not isinstance(answer, LogProblem):
            below = name.removesuffix(CHECKSUMS)
            lists.setdefault(part.directory, {}).update({below + file: checksum for file, checksum in answer.items()})
        elif part.state is not State.COVERED:
            findings.append(answer)
    if _Gaps(store, replayed, parts, lists, spare, askers).fill():
        tables = find_tables(replayed.files)
        parts = [part for table in tables for part in table.parts]
    listed = {
        directory: {name: checksum.size_bytes for name, checksum in checksums.items()}
        for directory, checksums in lists.items()
    }
    _add_empty_files(replayed, parts, listed)
    findings.sort(key=lambda finding: finding.path or "")
    return findings + check_parts(
        tables,
        listed,
        missing=replayed.missing,
        unversioned=replayed.unversioned,
        gaps=gaps,
        restarted=restarted,
    )


def _all_checksums(
    store: ObjectStore,
    files: Sequence[File],
    read: Mapping[str, bytes],
    askers: Askers,
) -> list[dict[str, Checksum] | LogProblem]:
    """What each of the files of checksums lists, in their order."""
    unread = [file for file in files if any(key not in read for key, _ in file.blobs)]
    what = f"reading checksums of parts in {store.name}"
    with askers.progress.task("reading checksums of parts", items=len(unread)) as task:
        found = ask(store, _checksums, unread, askers, title=what, task=task)
    answers = {file.path: answer for file, answer in zip(unread, found, strict=True)}
    return [answers[file.path] if file.path in answers else _listed_in(file, read.__getitem__) for file in files]


def _checksums(store: ObjectStore, file: File) -> dict[str, Checksum] | LogProblem:
    return _listed_in(file, store.get)


def _listed_in(file: File, get: Callable[[str], bytes]) -> dict[str, Checksum] | LogProblem:
    """What a part's `checksums.txt` lists."""
    try:
        data = b"".join(get(key) for key, _ in file.blobs)
        return parse_checksums(data, name=file.path)
    except (Damaged, NotFound) as error:
        return LogProblem("unreadable_checksums", error.message, file.path, file.blobs[0][0])


def _add_empty_files(
    replayed: Replayed, parts: Iterable[ClickHousePart], listed: Mapping[str, Mapping[str, int]]
) -> None:
    paths = [f"{part.directory}/{name}" for part in parts for name in empty_files(part, listed.get(part.directory, {}))]
    added = [path for path in paths if is_safe(path)]
    if not added:
        return
    # Links of one file are one inode, as those with objects are; the log names them, though it has no object for them.
    same: dict[str, int | str] = {path: replayed.linked_without_object.get(path, path) for path in added}
    links = Counter(same.values())
    first = max((file.inode for file in replayed.files.values()), default=0) + 1
    inodes = {inode: number for number, inode in enumerate(links, first)}
    replayed.files.update({path: File(path, (), inodes[same[path]], links[same[path]], 0) for path in added})
    replayed.files = dict(sorted(replayed.files.items(), key=lambda entry: entry[0].encode()))


class _Gaps:
    """Files that parts lack, and objects that may be theirs."""

    def __init__(
        self,
        store: ObjectStore,
        replayed: Replayed,
        parts: Sequence[ClickHousePart],
        lists: Lists,
        spare: Sequence[tuple[str, int]],
        askers: Askers,
    ) -> None:
        self._store = store
        self._replayed = replayed
        self._parts = parts
        self._lists = lists
        self._progress = askers.progress
        self._by_size: dict[int, list[str]] = defaultdict(list)
        self._strays: dict[str, str] = {}
        """Object -> the path that it bears, where it is not what the part says, or where there is no part."""
        self._by_checksum: dict[Checksum, list[str]] = defaultdict(list)
        for key, size_bytes in spare:
            self._by_size[size_bytes].append(key)
        for part in parts:
            leftover = part.state is State.TEMPORARY and CHECKSUMS not in part.files
            listed = lists.get(part.directory, {})
            for name, file in part.files.items():
                wrong = name in listed and listed[name].size_bytes != file.size_bytes
                if (leftover or wrong) and file.links == 1 and len(file.blobs) == 1:
                    ((key, size_bytes),) = file.blobs
                    self._strays[key] = file.path
                    self._by_size[size_bytes].append(key)

    def fill(self) -> int:
        """Give each missing file the object that has its size and its hash; how many have one now."""
        wanted = [
            (f"{part.directory}/{name}", checksum)
            for part in self._parts
            for name, checksum in self._lists.get(part.directory, {}).items()
            if checksum.size_bytes in self._by_size and not _has(part, name, checksum.size_bytes)
        ]
        filled: dict[str, str] = {}
        with self._progress.task("looking for missing files by their hash", items=len(wanted)) as task:
            for path, checksum in wanted:
                key = self._linked(path, filled) or self._found(checksum)
                if key is not None and is_safe(path):
                    filled[path] = key
                task.advance(items=1)
        self._put(filled, {path: checksum.size_bytes for path, checksum in wanted})
        return len(filled)

    def _linked(self, path: str, filled: Mapping[str, str]) -> str | None:
        """The object of a path that the log calls a hard link of the same file."""
        same = self._replayed.linked_without_object
        if path not in same:
            return None
        return next((key for other, key in filled.items() if same.get(other) == same[path]), None)

    def _found(self, checksum: Checksum) -> str | None:
        """Takes the object. All of one size are read when the first file of that size is looked for, each once."""
        for key in self._by_size.pop(checksum.size_bytes, ()):
            if (digest := self._digest(key, checksum.size_bytes)) is not None:
                self._by_checksum[Checksum(checksum.size_bytes, digest)].append(key)
        candidates = self._by_checksum.get(checksum)
        return candidates.pop(0) if candidates else None

    def _digest(self, key: str, size_bytes: int) -> bytes | None:
        """The object's hash; None when it is gone."""
        state = FileHash()
        try:
            for start in range(0, size_bytes, _PIECE_BYTES):
                state.update(self._store.get(key, ByteRange(start, min(size_bytes, start + _PIECE_BYTES))))
        except NotFound:
            return None
        return state.digest()

    def _put(self, filled: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        """The files, in the tree; what is explained by that is no finding any more."""
        if not filled:
            return
        files = self._replayed.files
        links = Counter(filled.values())
        first = max((file.inode for file in files.values()), default=0) + 1
        inodes = {key: number for number, key in enumerate(links, first)}
        for path, key in filled.items():
            name = parse_key(key)
            revision = name.revision if name is not None else 0
            files[path] = File(path, ((key, sizes[path]),), inodes[key], links[key], revision)
            if (stray := self._strays.get(key)) is not None and stray not in filled:
                files.pop(stray, None)
        used = set(filled.values())
        self._replayed.files = dict(sorted(files.items(), key=lambda entry: entry[0].encode()))
        self._replayed.missing = tuple(path for path in self._replayed.missing if path not in filled)
        self._replayed.filled = dict(sorted(filled.items()))
        self._replayed.findings = [
            finding for finding in self._replayed.findings if not (finding.claims and used.issuperset(finding.claims))
        ]


def _has(part: ClickHousePart, name: str, size_bytes: int) -> bool:
    """Whether the part has the file with this size. Empty ones, and the sums of projections, are no gaps."""
    there = part.files.get(name)
    return not size_bytes or name.endswith(".proj") or (there is not None and there.size_bytes == size_bytes)
