"""The kinds of commits: what is written is read again, and what nobody wrote is named. Guards I15, P46, P47."""

from __future__ import annotations

import typing
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplog import entry, kinds
from oplog.entry import GENESIS_DIGEST, Commit, now
from oplog.errors import Damaged, FrostlineError
from oplog.kinds import (
    BlocksAllocated,
    CommitKind,
    Dropped,
    Inserted,
    KnownKind,
    Merged,
    Moved,
    OtherKind,
    Repaired,
    Restored,
    SetAside,
    TableAltered,
    TableCreated,
    Tidied,
    Undone,
)

TEXT = st.text(max_size=20)
NUMBER = st.integers(0, 2**63 - 1)
VALUES: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: NUMBER,
    bool: st.booleans(),
    str | None: st.none() | TEXT,
    int | None: st.none() | NUMBER,
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    dict[str, tuple[int, str]]: st.dictionaries(TEXT, st.tuples(NUMBER, TEXT), max_size=3),
    dict[str, tuple[str, ...]]: st.dictionaries(TEXT, st.lists(TEXT, max_size=3).map(tuple), max_size=3),
}
KNOWN: tuple[type[KnownKind], ...] = typing.get_args(KnownKind)
WORDS = [kinds.encode(kind(undoes=1) if kind is Undone else kind())[0] for kind in KNOWN]  # type: ignore[call-arg]


def any_of(kind: type[KnownKind]) -> st.SearchStrategy[CommitKind]:
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: VALUES[field.type] for field in fields})


OTHERS = st.builds(OtherKind, TEXT.filter(lambda word: word not in WORDS), st.dictionaries(TEXT, TEXT, max_size=3))
KINDS = st.one_of(*map(any_of, KNOWN), OTHERS)


def commit(kind: CommitKind) -> Commit:
    return Commit(revision=1, previous=GENESIS_DIGEST, writer="w", time=now(), kind=kind)


def document(word: object, details: object) -> bytes:
    """An entry as anybody may put it into a bucket."""
    written = msgspec.json.decode(entry.encode(commit(OtherKind("x"))))
    return msgspec.json.encode({**written, "kind": word, "details": details})


@given(KINDS)
def test_a_kind_survives_the_way_to_the_bucket_and_back(kind: CommitKind) -> None:
    """P47."""
    data = entry.encode(commit(kind))
    again = entry.decode(data, name="x")
    assert again.kind == kind
    assert entry.encode(again) == data


@given(KINDS)
def test_versions_without_these_types_read_what_is_written(kind: CommitKind) -> None:
    """0.1 read a word and an object of texts."""

    class Old(msgspec.Struct):
        kind: str
        details: dict[str, str] = {}

    old = msgspec.json.decode(entry.encode(commit(kind)), type=Old)
    assert (old.kind, old.details) == kinds.encode(kind)
    assert kind.word == old.kind


@pytest.mark.parametrize(
    ("word", "details", "kind"),
    [
        ("insert", {}, Inserted()),
        (
            "insert",
            {"table": "d.t", "tasks_began": "1769936400", "job": "7"},
            Inserted(table="d.t", tasks_began=1769936400, job="7"),
        ),
        ("merge", {}, Merged()),
        (
            "move",
            {"table": "d.t", "sources": '{"hdd": ["b"], "ssd": ["a", "c"]}', "kept": '["a"]'},
            Moved(table="d.t", sources={"hdd": ("b",), "ssd": ("a", "c")}, kept=("a",)),
        ),
        ("move", {"moved_to": "ssd"}, Moved(moved_to="ssd")),
        ("drop", {}, Dropped()),
        ("tidy", {}, Tidied()),
        ("create_table", {}, TableCreated()),
        ("alter_table", {}, TableAltered()),
        ("alter_table", {"undoes": "18", "kind": "alter_table"}, TableAltered(undoes=18, undone="alter_table")),
        ("allocate", {}, BlocksAllocated()),
        ("undo", {"undoes": "15", "kind": "insert"}, Undone(undoes=15, undone="insert")),
        ("restore", {"revision": "21", "epoch": "ab", "scope": "a b"}, Restored(revision=21, epoch="ab", scope="a b")),
        (
            "restore",
            {"source": "s3://b/", "source_revision": "3", "epoch": "ab"},
            Restored(source="s3://b/", source_revision=3, epoch="ab"),
        ),
        ("repair", {}, Repaired()),
        ("set_aside", {}, SetAside()),
        ("freeze", {"depth": "3"}, OtherKind("freeze", {"depth": "3"})),
        ("drop", {"later": "?"}, Dropped()),
    ],
)
def test_entries_without_types_are_read(word: str, details: dict[str, str], kind: CommitKind) -> None:
    """What 0.1 wrote, and what a later version adds to a kind."""
    assert entry.decode(document(word, details), name="x").kind == kind


@pytest.mark.parametrize(
    ("word", "details", "field"),
    [
        ("move", {"sources": "junk"}, "sources"),
        ("move", {"sources": '["ssd"]'}, "sources"),
        ("move", {"sources": '{"ssd": [1]}'}, "sources"),
        ("move", {"kept": '"a"'}, "kept"),
        ("move", {"kept": "[" * 100_000}, "kept"),
        ("undo", {}, "undoes"),
        ("undo", {"undoes": "x"}, "undoes"),
        ("undo", {"undoes": "1.5"}, "undoes"),
        ("undo", {"undoes": "9" * 5000}, "undoes"),
        ("alter_table", {"undoes": ""}, "undoes"),
        ("restore", {"revision": "null and void"}, "revision"),
        ("drop", {"by_ttl": "yes"}, "by_ttl"),
        ("insert", {"tasks_began": "[]"}, "tasks_began"),
    ],
)
def test_forged_details_are_named(word: str, details: dict[str, str], field: str) -> None:
    """I15, P46: the entry and the field, and no crash."""
    with pytest.raises(Damaged) as error:
        entry.decode(document(word, details), name="file:///b/operations/r1-commit")
    assert "file:///b/operations/r1-commit" in error.value.message
    assert field in error.value.message
    assert word in error.value.message
    assert len(error.value.message) < 400
    assert error.value.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(sorted({field.encode_name for kind in KNOWN for field in msgspec.structs.fields(kind)})) | TEXT
TEXTS = TEXT | JSON.map(lambda value: msgspec.json.encode(value).decode())


@settings(max_examples=300)
@given(st.sampled_from(WORDS) | TEXT, st.dictionaries(KEYS, TEXTS, max_size=4) | JSON)
def test_whatever_an_entry_says_it_is_read_or_damaged(word: str, details: object) -> None:
    """What anybody puts there is read as the kind it says, or named; nothing else is raised."""
    with suppress(Damaged):
        assert entry.decode(document(word, details), name="x").kind.word == word


def test_an_entry_that_is_nested_too_deeply_is_damaged() -> None:
    data = entry.encode(commit(Inserted()))
    deep = data[:-1] + b',"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(FrostlineError, match="log entry x cannot be read"):
        entry.decode(deep, name="x")
