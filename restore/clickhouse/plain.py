"""ClickHouse's `plain` and `plain_rewritable` disks: the tree is in the keys, or in one small object a directory."""

from __future__ import annotations

from disks.stores.base import ObjectInfo, ObjectStore
from disks.workers.parallel import Askers, in_parallel
from oplog import paths
from oplog.clickhouse.replay import File, LogProblem, Replayed
from oplog.errors import NotFound
from restore.clickhouse.listing import DIRECTORY_FILE, DIRECTORY_OBJECT, Contents, Kind

ROOT = "__root"


def read_plain(store: ObjectStore, contents: Contents, askers: Askers) -> Replayed:
    """The tree of the disk: no request for `plain`, one GET a directory for `plain_rewritable`."""
    result = Replayed()
    if contents.kind is Kind.PLAIN:
        placed = [(info.key, info) for info in contents.files]
    else:
        directories = _directories(store, contents, result, askers)
        placed = _placed(contents, directories, result)
    for path, info in sorted(placed, key=lambda entry: entry[0].encode()):
        if path in result.files:
            first = result.files[path].blobs[0][0]
            message = f"{path} is claimed by {first} and by {info.key}: two directories have one path"
            result.findings.append(LogProblem("path_claimed_twice", message, path, info.key))
        else:
            number = len(result.files) + 1
            result.files[path] = File(path, ((info.key, info.size_bytes),), number, 1, 0)
    return result


def _directories(store: ObjectStore, contents: Contents, result: Replayed, askers: Askers) -> dict[str, str]:
    """Token -> path of the directory with a trailing slash; the disk's own directory is the empty path."""
    tokens = {found[1]: info.key for info in contents.files if (found := DIRECTORY_OBJECT.match(info.key))}
    names = sorted(tokens)
    bodies: list[str | None] = [None] * len(names)
    with askers.progress.task("reading directories", items=len(names)) as task:

        def read(index: int) -> None:
            try:
                bodies[index] = store.get(tokens[names[index]]).decode(errors="replace")
            except NotFound:
                pass  # renamed away or dropped since the listing: its files are reported below
            task.advance(items=1)

        in_parallel(read, len(names), askers.workers)
    directories = {ROOT: ""}
    for token, body in zip(names, bodies, strict=True):
        path = (body or "").rstrip("\n")
        if body is None or not (path.endswith("/") and paths.is_safe(path[:-1])):
            what = f"object {tokens[token]} names no directory: {(body or 'it is gone')[:200]!r}"
            result.findings.append(LogProblem("unsafe_path", what, object=tokens[token]))
        else:
            directories[token] = path
    return directories


def _placed(contents: Contents, directories: dict[str, str], result: Replayed) -> list[tuple[str, ObjectInfo]]:
    placed = []
    for info in contents.files:
        found = DIRECTORY_FILE.match(info.key)
        if found is None:
            continue
        if found[1] in directories:
            placed.append((directories[found[1]] + found[2], info))
        else:
            what = f"object {info.key} is in a directory that no prefix.path names"
            result.findings.append(LogProblem("unnamed_object", what, object=info.key))
    return placed
