"""I23: nothing is written that its own reader refuses, of any kind of document.

The kinds are those of `oplog.documents.DOCUMENTS`; values are made from the types of their fields, so a new kind is
tried without anybody adding it. A kind whose fields need text of a certain form has that in `PLAIN`.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import inspect

from oplog import snapshot
from oplog.documents import DOCUMENTS, Document
from oplog.entry import Commit
from oplog.errors import Refused
from oplog.kinds import KnownKind
from oplog.replay import FileRow
from oplog.stamps import CommitStamp

ROOT = Path(__file__).parents[2]
PACKAGES = ("oplog", "disks", "tiering", "restore", "backup", "spark_tiering", "tui", "zerocopy")

ELSEWHERE = {
    "oplog/documents.py": "the one place",
    "oplog/entry.py": "handed to its document",
    "oplog/kinds.py": "details of a log entry, which is read back as a whole",
    "oplog/snapshot.py": "rows stream through it: encode reads all of them back",
    "oplog/table_digest.py": "a fingerprint",
    "backup/format/encoding.py": "what the documents of a repository are made with: header.py and lists.py",
    "disks/file_table/sorted_run.py": "a scratch file of one process",
    "disks/file_table/views.py": "a parameter of a query, and the document beside it",
    "disks/garbage/listing.py": "between processes of one run",
    "disks/local/changes.py": "a text that lines are searched for",
    "disks/local/sizes.py": "a cache with a checksum; only SQLite reads it",
    "disks/stores/directory.py": "handed to its document",
    "restore/clickhouse/convert/process.py": "a request to a process",
    "spark_tiering/queries/frames.py": "an option of a data frame",
    "tiering/catalog/index/rows.py": "a cache with a checksum, of every part",
    "tiering/cli/completion/store_paths.py": "a cache of the shell's completion: read again when it changed",
    "tiering/cli/frame/output.py": "output",
    "tiering/cli/frame/terminal_progress.py": "output",
    "tiering/daemon/log_lines.py": "output",
    "tiering/config/reading.py": "a copy of the embedded configuration",
    "tiering/daemon/control.py": "requests to the daemon and its answers",
    "tiering/daemon/hooks/outbox.py": "the body of a request to a hook",
    "tiering/daemon/inbox/records.py": "a fingerprint, and a report for people",
    "tiering/daemon/jobs/runs.py": "an argument of a process",
    "tiering/facts/metrics/server.py": "output",
    "tiering/iceberg/manifests.py": "columns and partitions for the writer of manifests, and a fingerprint",
    "tiering/insert/bad_rows.py": "output",
    "tiering/insert/inputs/json/source.py": "input",
    "tiering/insert/inputs/json/texts.py": "input",
    "tiering/journal/journal.py": "a parameter of a query",
    "tiering/journal/work.py": "handed to its document, and a parameter of a query",
    "tiering/policy/due.py": "a fingerprint",
    "tiering/query/sql/plan.py": "text of a plan",
    "tiering/query/sql/statement.py": "a parameter of a query",
    "tiering/table/columns/nested.py": "values of rows",
    "tui/screens/list_view.py": "output",
    "tui/serving/viewer.py": "requests",
    "zerocopy/interserver/offer.py": "an answer to another machine",
    "zerocopy/replica/lifecycle.py": "a comparison of two values",
}
"""Where something is encoded that is no document of its own, and what it is."""

DIGEST, NONCE = "0f" * 32, "0f" * 8
UUID = "0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"
DEFINITION = (
    f'{{"format":1,"uuid":"{UUID}","database":"d","name":"t","columns":[{{"id":1,"name":"k","type":"int64"}}],'
    '"order_by":["k"],"policy":"p"}'
)
PART = "all_1_1_0"
PLAIN: dict[str, Any] = {
    "sha256": DIGEST,
    "previous": DIGEST,
    "table_digest": DIGEST,
    "digest": DIGEST,
    "digests": (DIGEST,),
    "uuid": UUID,
    "name": "k",
    "column": "k",
    "order_by": ("k",),
    "keeper": "/k",
    "format": 1,
    "minimum_reader": 1,
    "parameter": 1,
    "_Document.format": 1,
    "_Document.id": UUID,
    "Commit.format": 3,
    "Commit.earlier": b"",
    "Create.key": "x",
    "TableDefinition.format": 2,
    "TableDefinition.last_column_id": 2,
    "Column.type": "list<int64>",
    "Column.nested_ids": (2,),
    "Part.name": PART,
    "Part.sources": (PART,),
    "Part.replaces": (PART,),
    "DataFile.name": "data-0000.parquet",
    "Marker.id": NONCE,
    "Ref.nonce": NONCE,
    "InBlob.nonce": NONCE,
    "PartEntry.name": PART,
    "PartitionList.partition": "all",
    "FileEntry.name": "part.json",
    "InPack.pack": 0,
    "InBucket.key": "x",
    "TreeList.parts": (),
    "TreeList.sources": ((DIGEST, DIGEST, 1),),
    "TableList.definition": DEFINITION,
    "BackupHeader.id": NONCE,
    "BackupHeader.machine": "host-0f0f0f0f",
    "Get.part": PART,
    "Field.type": "long",
    "TableMetadata.format_version": 2,
    "Merge.output": "all_1_2_1",
    "Merge.inputs": (PART, "all_2_2_0"),
    "DropRange.ranges": ("all_1_2_999999999",),
    "DropRange.spared": (),
    "_Written.commit": msgspec.Raw(b"{}"),
    "WriterState.journal": "0f" * 8,
    "WriterState.disks": {UUID: CommitStamp(1, "0f" * 8)},
    "WriterState.buckets": {UUID: 1},
    "CommitStamp.token": "0f" * 8,
}
"""By the name of a field, or by struct and field."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = ["", "\0", "\ud800", "../x", "a/b", "\n", "é𝄞", "x" * 70_000]
NUMBERS = [0, -1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**20, -(1 << 63) - 1]
FLOATS = [float("inf"), float("nan"), -0.0, 1e308]
TIMES = [
    datetime(2026, 1, 1),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, seconds=7))),
]
ANY = [None, float("nan"), float("inf"), 10**20, "\ud800", (1, (2, "x")), {"a": 1}, NOW, b"x"]


def all_documents() -> dict[str, Document[Any]]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.startswith(("spark_tiering", "tui")):  # these write none, and are slow to load
                importlib.import_module(found.name)
    return DOCUMENTS


def fields(kind: Any) -> list[inspect.Field]:
    return list(kind.fields)


def plain(kind: Any, name: str = "") -> Any:
    """A value that a document may well hold."""
    match kind:
        case inspect.StructType():
            return kind.cls(**{one.name: field_of(kind, one) for one in fields(kind)})
        case inspect.Metadata():
            return plain(kind.type, name)
        case inspect.UnionType():
            return plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), name)
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 1.0
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"x"
        case inspect.DateTimeType():
            return NOW
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.VarTupleType():
            return (plain(kind.item_type, name),)
        case inspect.TupleType():
            return tuple(plain(one, name) for one in kind.item_types)
        case inspect.ListType():
            return [plain(kind.item_type, name)]
        case inspect.DictType():
            return {plain(kind.key_type, name): plain(kind.value_type, name)}
        case inspect.NoneType():
            return None
    return PLAIN.get(name, "x")


def field_of(kind: inspect.StructType, field: inspect.Field) -> Any:
    own = PLAIN.get(f"{kind.cls.__name__}.{field.name}", PLAIN)
    if own is not PLAIN:
        return own
    if field.name in PLAIN and not isinstance(field.type, inspect.StructType):
        return PLAIN[field.name]
    return plain(field.type, field.name)


def variants(kind: Any, value: Any, within: frozenset[type] = frozenset()) -> Iterator[Any]:
    """The value with one field at a time that has an extreme of its type, or is of another kind of a union. A struct
    within one of its own kind, `within`, stays."""
    match kind:
        case inspect.StructType() if kind.cls not in within:
            within |= {kind.cls}
            for one in fields(kind):
                for changed in variants(one.type, getattr(value, one.name), within):
                    yield from replaced(value, one.name, changed)
        case inspect.Metadata():
            yield from variants(kind.type, value, within)
        case inspect.UnionType():
            for one in kind.types:
                made = None if isinstance(one, inspect.NoneType) else plain(one)
                yield made
                yield from variants(one, made, within)
        case inspect.IntType():
            yield from NUMBERS
        case inspect.FloatType():
            yield from FLOATS
        case inspect.BoolType():
            yield from (True, False)
        case inspect.StrType():
            yield from TEXTS
        case inspect.BytesType():
            yield from (b"", b"\0\xff")
        case inspect.DateTimeType():
            yield from TIMES
        case inspect.LiteralType():
            yield from kind.values
        case inspect.AnyType():
            yield from ANY
        case inspect.VarTupleType() | inspect.ListType():
            make = tuple if isinstance(kind, inspect.VarTupleType) else list
            yield from (make(()), make((*value, *value)))
            yield from (make((changed,)) for changed in variants(kind.item_type, plain(kind.item_type), within))
        case inspect.TupleType():
            for number, one in enumerate(kind.item_types):
                for changed in variants(one, plain(one), within):
                    yield (*value[:number], changed, *value[number + 1 :])
        case inspect.DictType():
            yield {}
            key, held = plain(kind.key_type), plain(kind.value_type)
            yield from ({changed: held} for changed in variants(kind.key_type, key, within))
            yield from ({key: changed} for changed in variants(kind.value_type, held, within))


def replaced(value: Any, name: str, changed: Any) -> Iterator[Any]:
    try:
        yield msgspec.structs.replace(value, **{name: changed})
    except ValueError:  # the struct itself refuses it
        return


def builtins(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: builtins(one) for key, one in value.items()}
    return [builtins(one) for one in value] if isinstance(value, list | tuple) else value


def type_of(document: Document[Any]) -> Any:
    """What the document holds; of a log entry one with a kind of commit after the other."""
    if document.kind is not Commit:
        return [inspect.type_info(document.kind)]
    hints = get_type_hints(Commit)
    types = []
    for kind in get_args(KnownKind):
        same = [(name, kind if name == "kind" else hint) for name, hint in hints.items()]
        info = inspect.type_info(msgspec.defstruct("Commit", same, kw_only=True, frozen=True))
        types.append(msgspec.structs.replace(info, cls=Commit))
    return types


NAMES = sorted(all_documents())


@pytest.mark.parametrize("name", NAMES)
def test_a_document_that_is_encoded_reads_back(name: str) -> None:
    """I23: of each kind something is written, and no extreme of any field that its reader does not take."""
    document = DOCUMENTS[name]
    for kind in type_of(document):
        assert document.encode(plain(kind)), "where a field needs text of a certain form, add it to PLAIN"
        for value in variants(kind, plain(kind)):
            try:
                data = document.encode(value)
            except Refused:
                continue
            back = document.decode(data)
            assert back == value or builtins(msgspec.to_builtins(back)) == builtins(msgspec.to_builtins(value))


def test_all_kinds_of_documents_are_tried() -> None:
    """I23: a name that is no more has gone with its document."""
    assert {"log entry", "table.json", "part.json", "pin", "header of a backup", "restore.json"} <= set(NAMES)
    assert len(NAMES) > 60


@pytest.mark.parametrize(
    "changes", [{"size_bytes": -1}, {"path": "../x"}, {"sha256": "x"}, {"revision": 1 << 64}, {"key": "gc/x"}]
)
def test_a_snapshot_that_is_encoded_reads_back(changes: dict[str, Any]) -> None:
    """I23"""
    row = FileRow("t/x", 1, DIGEST, "r1", None, None, 1)
    assert list(snapshot.decode(snapshot.encode(1, DIGEST, [row]), name="x")[1]) == [row]
    with pytest.raises(Refused, match="was not written"):
        snapshot.encode(1, DIGEST, [msgspec.structs.replace(row, **changes)])


def encoders(source: str) -> Iterator[str]:
    """What a module encodes with, but for `Document`."""
    if not any(word in source for word in ("Encoder(", "json.encode(", "json.dumps(", "pack.encode(")):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] == "Encoder" or called.endswith(("json.encode", "json.dumps", "pack.encode")):
                yield called


def test_nothing_is_encoded_elsewhere() -> None:
    """I23: a module that encodes something by itself is on the list, with what that is."""
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if any(encoders(path.read_text()))
    }
    assert found - set(ELSEWHERE) == set(), "make a Document of it, or say in ELSEWHERE why it is none"
    assert set(ELSEWHERE) - found == set(), "these encode nothing any more"


def test_an_encoder_is_found() -> None:
    assert list(encoders("x = msgspec.json.Encoder(order='sorted')\ny = json.dumps(x)")) == [
        "msgspec.json.Encoder",
        "json.dumps",
    ]
