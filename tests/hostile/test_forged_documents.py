"""What somebody put into the bucket, and what is answered: a finding that names the object (exit 4), an answer with all
rows or an error of its own; never a crash, never memory or time without bound. I15: loud.

| forged | what used to happen |
|---|---|
| an entry or a snapshot numbered 2^62, or 2^63 | memory without end |
| a key, a path, a digest, a size, a time that is none; 200,000 × `[` | "unexpected …", and no finding |
| a log entry of 10 GiB | it was read whole |
| a part with the object of another part | 3,000 rows became 4,000, nothing was found |
| a version of the layout that is unknown | refused by fsck alone |
"""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from disks.garbage.listing import cut_ranges
from disks.stores.memory import MemoryStore
from oplog import entry, pins, snapshot
from oplog.errors import FrostlineError
from oplog.revision import DISK_KEY, commit_key, snapshot_key
from restore.check.unexpected import missing_ranges
from tests.hostile.forge import ROWS, SCHEMA_VERSION_KEY, TABLE, Forged
from tests.hostile.kept import cached_store
from tiering.table import part as part_format
from tiering.table import schema

pytestmark = pytest.mark.in_turn

FAR = 1 << 62
TOO_FAR = f"operations/r1{'0' * 63}-commit"
DEEP = b"[" * 200_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged")


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forged:
    return cached_store(place, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """What takes memory without end fails here, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def file_operation(**fields: Any) -> Callable[[Forged], str]:
    """An entry that creates a file of which one field is forged."""

    def forge(store: Forged) -> str:
        return store.append(store.create("store/abc/abcd/x/y", b"y") | fields)

    return forge


def in_entry(**fields: Any) -> Callable[[Forged], str]:
    return lambda store: store.append(**fields)


def in_row(number: int, value: Any) -> Callable[[Forged], str]:
    """A snapshot, whole and with the right digest, with one field of a row forged. Local state is gone: it is read."""

    def forge(store: Forged) -> str:
        def change(rows: list[bytes]) -> list[bytes]:
            row = json.loads(rows[-1])
            row[number] = value
            return [*rows[:-1], json.dumps(row).encode() + b"\n"]

        key = store.rewrite_snapshot(change)
        store.lose_state()
        return key

    return forge


def in_part(**fields: Any) -> Callable[[Forged], str]:
    """A part of its own, with one field of its `part.json` forged."""

    def forge(store: Forged) -> str:
        store.append(*store.create_part("all_7_7_0", lambda part: part.update(fields)))
        return "all_7_7_0"

    return forge


def in_data_file(**fields: Any) -> Callable[[Forged], str]:
    def forge(store: Forged) -> str:
        store.append(*store.create_part("all_7_7_0", lambda part: part["files"][0].update(fields)))
        return "all_7_7_0"

    return forge


def put(key: str, data: bytes) -> Callable[[Forged], str]:
    def forge(store: Forged) -> str:
        store.put(key, data)
        return key

    return forge


def large_entry(store: Forged) -> str:
    return sparse(commit_key(store.head() + 1))(store)


def sparse(key: str) -> Callable[[Forged], str]:
    """An object of 10 GiB, which takes no space."""

    def forge(store: Forged) -> str:
        with store.put(key, b"").open("r+b") as file:
            file.truncate(10 << 30)
        return key

    return forge


def large_document(*, honest: bool) -> Callable[[Forged], str]:
    """A part whose `part.json` is an object of 10 GiB; `honest`: as its entry says."""

    def forge(store: Forged) -> str:
        operations = store.create_part("all_7_7_0")
        key: str = operations[1]["key"]
        with (store.bucket / key).open("r+b") as file:
            file.truncate(10 << 30)
        if honest:
            operations[1]["size_bytes"] = 10 << 30
        store.append(*operations)
        return key

    return forge


def forged_id(store: Forged) -> str:
    """An id that is none; it is read where no state remembers it."""
    store.lose_state()
    return put(DISK_KEY, DEEP)(store)


def linked_blob(store: Forged) -> str:
    key = next(path.name for path in store.bucket.iterdir() if path.name.startswith("r0"))
    (store.bucket / key).rename(store.home / "elsewhere")
    (store.bucket / key).symlink_to(store.home / "elsewhere")
    return key


def linked_entry(store: Forged) -> str:
    key = commit_key(store.head() + 1)
    (store.bucket / key).symlink_to("/etc/hostname")
    return key


def one_object_twice(store: Forged) -> str:
    """A part whose data is the object of another one: every row of it counts twice."""
    operations = store.create_part("all_7_7_0")
    entries = map(store.entry, range(1, store.head() + 1))
    created = [one for document in entries for one in document["operations"]]
    key: str = next(one["key"] for one in created if one.get("path", "").endswith(".parquet"))
    operations[0]["key"] = key
    store.append(*operations)
    return key


def pin(**fields: Any) -> bytes:
    good = {"name": "p", "revision": 1, "holder": "h", "created": "2026-01-01T00:00:00Z"}
    return json.dumps({**good, **fields}).encode()


FORGERIES: dict[str, tuple[str, Callable[[Forged], str]]] = {
    "an entry far away": ("I6", lambda store: store.append(at=FAR)),
    "an entry beyond 63 bits": ("I6", put(TOO_FAR, b"{}")),
    "a snapshot far away": ("I6", put(snapshot_key(FAR), b"")),
    "a snapshot beyond 63 bits": ("I6", put(f"snapshots/r1{'0' * 63}.zst", b"")),
    "a number of a commit": ("I6", in_entry(revision=1 << 70)),
    "no previous": ("I6", in_entry(previous="zz")),
    "a time without a zone": ("I6", in_entry(time="2026-01-01T00:00:00")),
    "a time at the end of the calendar": ("I6", in_entry(time="9999-12-31T23:59:59-14:00")),
    "an undo of 2^70": ("I6", in_entry(kind="undo", details={"undoes": str(1 << 70)})),
    "details nested": ("I6", in_entry(kind="move", details={"sources": DEEP.decode()})),
    "an entry nested": ("I6", lambda store: put(commit_key(store.head() + 1), b'{"x":' + DEEP)(store)),
    "an entry of brackets": ("I6", lambda store: put(commit_key(store.head() + 1), DEEP)(store)),
    "an entry of 10 GiB": ("I15", large_entry),
    "an entry that is a link": ("I15", linked_entry),
    "a key above the bucket": ("I6", file_operation(key="../../x")),
    "an absolute key": ("I6", file_operation(key="/etc/passwd")),
    "a key with NUL": ("I6", file_operation(key="r\0")),
    "a key of 2,000 bytes": ("I6", file_operation(key="r" * 2_000)),
    "a key of the log": ("I6", file_operation(key=commit_key(1))),
    "an unsafe path": ("I6", file_operation(path="store/../../x")),
    "a digest": ("I6", file_operation(sha256="zz")),
    "a size of 2^70": ("I6", file_operation(size_bytes=1 << 70)),
    "a negative size": ("I6", file_operation(size_bytes=-1)),
    "a snapshot of 10 GiB": ("I6", sparse(snapshot_key(1))),
    "a snapshot's digest": ("I15", in_row(2, "zz")),
    "a snapshot's size": ("I15", in_row(1, 1 << 70)),
    "a snapshot's key": ("I15", in_row(3, "../../x")),
    "a snapshot's revision": ("I15", in_row(6, 1 << 70)),
    "a pin nested": ("I15", put("pins/p.json", b'{"x":' + DEEP)),
    "a pin of 2^70": ("I15", put("pins/p.json", pin(revision=1 << 70))),
    "a pin of another name": ("I15", put("pins/p.json", pin(name="../x"))),
    "a pin without a zone": ("I15", put("pins/p.json", pin(until="2026-01-01T00:00:00"))),
    "a pin for ever": ("I15", put("pins/p.json", pin(until="9999-12-31T23:59:59-14:00"))),
    "a pin of 10 GiB": ("I15", sparse("pins/p.json")),
    "an announcement of 10 GiB": ("I5", sparse("gc/p.json")),
    "an id of brackets": ("I16", forged_id),
    "a part's rows": ("I15", in_part(rows=-1)),
    "a part's size": ("I15", in_part(size_bytes=1 << 70)),
    "a part's time": ("I15", in_part(created="2026-01-01T00:00:00")),
    "a part's time at the end of the calendar": ("I15", in_part(created="9999-12-31T23:59:59-14:00")),
    "a part.json of 10 GiB": ("I15", large_document(honest=True)),
    "a part.json with an object of 10 GiB": ("I3", large_document(honest=False)),
    "a part of another name": ("I15", in_part(name=f"all_{'9' * 5_000}_1_0")),
    "a file above its part": ("I15", in_data_file(name="../all_1_1_0/x")),
    "a file's digest": ("I15", in_data_file(sha256="zz")),
    "a file's size": ("I15", in_data_file(size_bytes=-1)),
    "a row group's rows": ("I15", in_data_file(row_groups=[{"rows": 1 << 70, "offset_bytes": 4, "size_bytes": 1}])),
    "one object twice": ("I1", one_object_twice),
    "an object that is a link": ("I3", linked_blob),
}


ADDED = {"a part.json with an object of 10 GiB": ROWS + 1_000}
"""What is a part like any other, for all that its rows were forged."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named_and_nothing_wrong_is_answered(store: Forged, name: str) -> None:
    """I15 and I1: fsck names the object and the rule; a query gives all rows or says why not."""
    invariant, forge = FORGERIES[name]
    key = forge(store)
    problems = store.problems()
    named = [problem for problem in problems if key in json.dumps(problem)]
    assert invariant in [problem["invariant"] for problem in named], problems
    answer = store.count()
    assert answer == ADDED.get(name, ROWS) or isinstance(answer, str)


SEVERAL = (
    ["log", "cold"],
    ["diff", "cold", "1", "2"],
    ["blame", TABLE, "all_1_1_0"],
    ["undo", "cold", "3", "-n"],
    ["restore", "cold"],
    ["restore", "cold", "--time", "2026-06-01T00:00:00Z"],
    ["gc", "cold"],
    ["gc", "cold", "--delete", "--yes"],
    ["status"],
    ["plan"],
    ["fsck", "--read-data"],
    ["fsck", "--repair", "--yes"],
    ["tick"],
    ["merge", TABLE, "--final"],
    ["snapshot", "cold"],
)


@pytest.mark.parametrize("forge", [forge for _, forge in FORGERIES.values()], ids=FORGERIES)
def test_no_verb_dies_of_a_forgery(store: Forged, forge: Callable[[Forged], str]) -> None:
    """I15: each ends by itself, with an answer or an error of ours; `run` looks."""
    forge(store)
    for arguments in SEVERAL:
        store.run(*arguments)


READING = (
    ["query", f"SELECT 1 FROM {TABLE}"],
    ["table", "list"],
    ["parts", TABLE],
    ["status"],
    ["log", "cold"],
    ["plan"],
)
CHANGING = (
    ["insert", TABLE, "0.csv"],
    ["move", TABLE, "--part", "all_2_2_0", "--to-disk", "cold"],
    ["merge", TABLE],
    ["table", "drop", TABLE, "--yes"],
    ["snapshot", "cold"],
    ["explain", TABLE, "all_2_2_0"],
    ["blame", TABLE, "all_2_2_0"],
    ["du"],
    ["cost"],
    ["gc", "cold", "--delete", "--yes"],
    ["gc", "cold"],
    ["fsck"],
    ["fsck", "--repair", "--yes"],
    ["restore", "cold"],
    ["restore", "cold", "--apply", "--yes"],
    ["diff", "cold", "1", "2"],
    ["undo", "cold", "2", "--yes"],
    ["tick"],
    ["merge", TABLE, "--final"],
    ["merge", TABLE, "--cold"],
    ["table", "create", "demo.other", "--column", "id:int64", "--order-by", "id", "--policy", "tiers"],
    ["table", "alter", TABLE, "--add-column", "x:int64"],
    ["restore", "cold", "--revision", "2"],
    ["query", f"SELECT 1 FROM {TABLE}", "--revision", "2"],
    ["log", TABLE],
    ["clickhouse", "export", "cold", "exported"],
)


@pytest.mark.parametrize("arguments", [*READING, *CHANGING], ids=" ".join)
@pytest.mark.parametrize("fresh", [False, True], ids=["cached", "fresh"])
def test_every_verb_refuses_a_layout_it_does_not_know(store: Forged, arguments: list[str], fresh: bool) -> None:
    """The bucket is another version's: nothing of it is believed, and nothing is changed."""
    store.put(SCHEMA_VERSION_KEY, b"99")
    if fresh:
        store.lose_state()
    before = sorted((path, path.stat().st_size) for path in store.bucket.rglob("*"))
    code, out, err = store.run(*(str(store.home / one) if one.endswith(".csv") else one for one in arguments))
    assert code not in (0, 4) or arguments == ["gc", "cold"], out
    assert "99" in out + err
    assert "upgrade frostline" in out + err or arguments[0] == "gc"
    assert sorted((path, path.stat().st_size) for path in store.bucket.rglob("*")) == before


@pytest.mark.parametrize("key", [SCHEMA_VERSION_KEY, DISK_KEY])
def test_a_mark_of_ten_gib_is_refused_by_its_size(store: Forged, key: str) -> None:
    """What tells what a prefix is was read whole: nothing of it is, and nothing else is read or written there."""
    store.lose_state()
    sparse(key)(store)
    before = sorted((path, path.stat().st_size) for path in store.bucket.rglob("*"))
    for arguments in (
        ["query", f"SELECT 1 FROM {TABLE}"],
        ["fsck"],
        ["gc", "cold", "--delete", "--yes"],
        ["snapshot", "cold"],
    ):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code, out, err = store.run(*arguments)
        assert code != 0
        assert f"{key} has {10 << 30} bytes" in out + err
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 1 << 20, "it was read"
    assert sorted((path, path.stat().st_size) for path in store.bucket.rglob("*")) == before


def test_gaps_are_ranges() -> None:
    """I6: what is missing costs what is there."""
    assert list(missing_ranges({1, 2, 5, FAR}, 0, FAR)) == [range(3, 5), range(6, FAR)]
    assert list(missing_ranges({1, 2}, 0, 2)) == []
    assert list(missing_ranges((), 3, 3)) == []


def test_ranges_of_a_log_whose_end_is_far_away_are_few() -> None:
    class Nowhere:
        def open(self) -> MemoryStore:
            return MemoryStore()

    ranges = list(cut_ranges(Nowhere(), (), head=FAR))
    assert len(ranges) < 3_000
    assert ranges[0].after == ""
    assert ranges[-1].until is None


DECODERS: dict[str, tuple[Callable[[Forged], bytes], Callable[[bytes], object]]] = {
    "entry": (lambda store: (store.bucket / commit_key(2)).read_bytes(), lambda data: entry.decode(data, name="x")),
    "snapshot": (
        lambda store: max((store.bucket / "snapshots").iterdir()).read_bytes(),
        lambda data: list(snapshot.decode(data, name="x")[1]),
    ),
    "pin": (lambda store: pin(), lambda data: pins._decode(data, "x")),
    "part": (lambda store: json.dumps(store.cold_part()[0]).encode(), lambda data: part_format.decode(data, path="x")),
    "table": (
        lambda store: next((store.home / "ssd" / "store").rglob("table.json")).read_bytes(),
        lambda data: schema.decode(data, path="x"),
    ),
}
VALUES: tuple[object, ...] = (
    None,
    -1,
    1 << 70,
    1e300,
    "",
    "../x",
    "\0",
    "9" * 5_000,
    [],
    {},
    True,
    "2026-01-01T00:00:00",
    [[]],
    {"a": {}},
)


@pytest.mark.parametrize("kind", DECODERS)
def test_any_change_of_a_document_is_read_or_refused(store: Forged, kind: str) -> None:
    """I15: no change of bytes or of a value ends in anything but an error of ours."""
    original, decode = DECODERS[kind]
    data = original(store)
    decode(data)
    chance = random.Random(kind)
    for changed in _mutations(data, chance):
        with suppress(FrostlineError):
            decode(changed)


def _mutations(data: bytes, chance: random.Random) -> Iterator[bytes]:
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(changed))
            match chance.randrange(3):
                case 0:
                    changed[start] = chance.randrange(256)
                case 1:
                    del changed[start : start + chance.randint(1, 20)]
                case _:
                    changed[start:start] = chance.choice((b"[" * 3_000, b"9" * 30, b"\xff", b'{"', b"-"))
        yield bytes(changed)
    try:
        document = json.loads(data)
    except ValueError:
        return
    for _ in range(300):
        changed = json.loads(data)
        _set_somewhere(changed, chance)
        yield json.dumps(changed).encode()
    assert document == json.loads(data)


def _set_somewhere(value: Any, chance: random.Random) -> None:
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
        _set_somewhere(value[key], chance)
    else:
        value[key] = chance.choice(VALUES)
