"""Names of what the store has, as the disks of this machine and the kept states of buckets say. Opens for reading only.

A local disk is its directories; of a disk in a bucket there is the file table, `<state>/disks/<name>/files.db`, sorted
by path: the next name is one search away, however many files lie between. What else a bucket has is not asked for.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property, partial
from typing import Any, TypedDict
from urllib.parse import quote

from tiering.cli.completion.store_paths import Places, read_places
from tiering.cli.completion.words import Wanted

_MOST = 1_000
"""More nobody reads; so many names of a bucket take a few milliseconds."""
_BUSY_SECONDS = 0.05
_PART = re.compile(r"(?P<partition>[A-Za-z0-9.=-]+)(?:_\d+){3,4}\Z", re.ASCII)
_LAST = "\U0010ffff"


class ColumnWords(TypedDict):
    """A column of a `table.json`."""

    name: str


class TableWords(TypedDict):
    """What of a `table.json` a name is made of. It is read without msgspec, which takes its time to import."""

    uuid: str
    version: int
    database: str
    name: str
    policy: str
    columns: list[ColumnWords]


class Names:
    """Those that fit what was typed, and what else stands in the line."""

    def __init__(self, request: Wanted, environment: Mapping[str, str]) -> None:
        self._typed = request.typed
        self._given = request.given
        self._environment = environment

    def of(self, kind: str) -> list[str]:
        """All of one kind, sorted."""
        found: dict[str, Callable[[], Iterable[str]]] = {
            "table": self._tables,
            "disk": lambda: self._places.disks,
            "disk or table": lambda: [*self._places.disks, *self._tables()],
            "volume": self._volumes,
            "policy": lambda: self._places.policies,
            "partition": self._partitions,
            "part": self._parts,
            "pinned partition": lambda: self._pinned("partition"),
            "pinned part": lambda: self._pinned("part"),
            "column": self._columns,
            "column:": lambda: [f"{name}:" for name in self._columns()],
            "column=": lambda: [f"{name}=" for name in self._columns()],
        }
        return sorted(set(found[kind]()))

    @cached_property
    def _places(self) -> Places:
        given = self._given.get("config")
        return read_places(given[-1] if given else None, self._environment)

    # -- tables ----------------------------------------------------------------------------------------------------

    @cached_property
    def _definitions(self) -> dict[str, TableWords]:
        """The newest that any disk has of each table, by uuid."""
        found: dict[str, TableWords] = {}
        for text in (*self._local_definitions(), *self._kept_definitions()):
            try:
                definition = json.loads(text)
                uuid, version = definition["uuid"], definition["version"]
            except (ValueError, KeyError, TypeError):
                continue
            if uuid not in found or found[uuid]["version"] < version:
                found[uuid] = definition
        return found

    def _local_definitions(self) -> Iterator[bytes]:
        for directory in self._places.directories.values():
            for shard in _listed(os.path.join(directory, "store")):
                for table in _listed(shard):
                    try:
                        with open(os.path.join(table, "table.json"), "rb") as stream:
                            yield stream.read()
                    except OSError:
                        continue

    def _kept_definitions(self) -> list[bytes]:
        def read(files: sqlite3.Connection) -> list[bytes]:
            tables = {"/".join(path.split("/")[:3]) for path in _steps(files, "store/")}
            query = "SELECT inline FROM files WHERE path = ? AND inline IS NOT NULL"
            return [text for table in tables for (text,) in files.execute(query, (f"{table}/table.json",))]

        return self._of_buckets(read)

    def _tables(self) -> list[str]:
        return [f"{table['database']}.{table['name']}" for table in self._definitions.values()]

    def _chosen(self) -> list[TableWords]:
        """The table that the line names; all where it names none."""
        named = self._given.get("table")
        return [
            table
            for uuid, table in self._definitions.items()
            if not named or named[-1] in (uuid, f"{table['database']}.{table['name']}")
        ]

    def _columns(self) -> list[str]:
        if not self._given.get("table"):
            return []
        return [column["name"] for table in self._chosen() for column in table["columns"]]

    def _volumes(self) -> list[str]:
        policies = self._places.policies
        named = {table["policy"] for table in self._chosen()} if self._given.get("table") else set(policies)
        return [volume for policy in named or policies for volume in policies.get(policy, {})]

    # -- parts -----------------------------------------------------------------------------------------------------

    def _parts(self) -> list[str]:
        partitions = self._given.get("partition")
        found: list[str] = []
        for table in self._chosen() if self._given.get("table") else ():
            low = f"{_place(table['uuid'])}/{self._typed}"
            paths = self._of_buckets(partial(_part_files, start=low))
            found += [*self._local(table), *(path.split("/")[3] for path in paths)]
        return [
            part
            for part in found
            if (match := _PART.match(part)) and (not partitions or match["partition"] == partitions[-1])
        ]

    def _partitions(self) -> list[str]:
        parts: list[str] = []
        for table in self._chosen():
            low = f"{_place(table['uuid'])}/{self._typed}"
            paths = self._of_buckets(partial(_steps, start=low))
            parts += [*self._local(table), *(path.split("/")[3] for path in paths)]
        return [match["partition"] for part in parts if (match := _PART.match(part))]

    def _pinned(self, scope: str) -> list[str]:
        query = "SELECT name FROM pins WHERE scope = ? AND table_uuid = ?"
        tables = [table["uuid"] for table in self._chosen()]
        found = _read(
            os.path.join(self._places.state, "journal.db"),
            lambda journal: [row for uuid in tables for row in journal.execute(query, (scope, uuid))],
        )
        return [name for (name,) in found]

    def _local(self, table: TableWords) -> Iterator[str]:
        for directory in self._places.directories.values():
            yield from map(os.path.basename, _listed(os.path.join(directory, _place(table["uuid"]))))

    def _of_buckets(self, read: Callable[[sqlite3.Connection], Iterable[Any]]) -> list[Any]:
        tables = [os.path.join(self._places.state, "disks", name, "files.db") for name in self._places.buckets]
        return [item for path in tables for item in _read(path, read)]


def _place(uuid: str) -> str:
    return f"store/{uuid[:3]}/{uuid}"


def _steps(files: sqlite3.Connection, start: str) -> Iterator[str]:
    """A path of each table, where `start` is `store/`, else of each partition. A step is one search in the sorted
    table, past all that is of the same."""
    query = "SELECT path FROM files WHERE path >= ? AND path < ? ORDER BY path LIMIT 1"
    low, depth = start, 3 if start == "store/" else 4
    for _ in range(_MOST):
        found = files.execute(query, (low, start + _LAST)).fetchone()
        if found is None:
            return
        path: str = found[0]
        yield path
        *above, name = path.split("/")[:depth]
        part = _PART.match(name) if depth > 3 else None
        # `:` is what follows the digits, and `0` what follows the `/`.
        low = "/".join((*above, f"{part['partition']}_:" if part else f"{name}0"))


def _part_files(files: sqlite3.Connection, start: str) -> Iterator[str]:
    query = "SELECT path FROM files WHERE path >= ? AND path < ? AND path GLOB '*/part.json' LIMIT ?"
    return (path for (path,) in files.execute(query, (start, start + _LAST, _MOST)))


def _listed(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read(path: str, read: Callable[[sqlite3.Connection], Iterable[Any]]) -> list[Any]:
    """What is read of the database, which is not made and not changed; nothing where it cannot be read now."""
    how = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"  # nobody has it open: leave no file beside it
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=_BUSY_SECONDS)) as connection:
            return list(read(connection))
    except sqlite3.Error:
        return []
