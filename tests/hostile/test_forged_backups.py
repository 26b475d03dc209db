"""What somebody put into a backup repository, or where somebody said that one is, and what each verb answers: never a
crash, never memory without bound, never a table in part; what is wrong is named. I12, I15, P32, P46, P51.

Digests say that nothing changed, not who wrote it: everything here has the right ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.hostile.forge import ROWS, TABLE, Forged
from tests.hostile.kept import cached_store
from tests.worm import ACTIVE

DEEP = "[" * 200_000
NONCE = "0123456789abcdef"
UNKNOWN, WRONG, FOUND, NOWHERE, REFUSED = 2, 1, 4, 10, 13


class Vault:
    """The repository of one store, with one backup named `one`, and the tools to forge it."""

    def __init__(self, store: Forged) -> None:
        self.store = store
        self.root = store.home / "repository"

    # Documents

    def header_path(self) -> Path:
        (found,) = self.root.glob("backups/one/*.json")
        return found

    def header(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.header_path().read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[0])
        return document

    def seal(self, path: Path, body: bytes) -> None:
        path.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")

    def put_header(self, change: Callable[[dict[str, Any]], object]) -> str:
        document = self.header()
        change(document)
        self.seal(self.header_path(), json.dumps(document).encode())
        return self.header_path().name

    def list_path(self, ref: list[Any]) -> Path:
        digest = str(ref[0])
        return self.root / "lists" / digest[:2] / f"{digest}-{ref[1]}"

    def document(self, ref: list[Any]) -> dict[str, Any]:
        plain = zstandard.ZstdDecompressor().decompress(self.list_path(ref).read_bytes())
        found: dict[str, Any] = json.loads(plain)
        return found

    def put_list(self, data: bytes) -> list[Any]:
        ref = [hashlib.sha256(data).hexdigest(), NONCE, len(data)]
        path = self.list_path(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return ref

    # Forgeries of the tree, from the leaf to the header

    def put_table(self, data: bytes) -> str:
        ref = self.put_list(data)
        self.put_header(lambda header: header["tables"][0].update(list=ref))
        return str(ref[0])

    def in_table(self, change: Callable[[dict[str, Any]], object]) -> str:
        document = self.document(self.header()["tables"][0]["list"])
        change(document)
        return self.put_table(zstandard.compress(json.dumps(document).encode()))

    def put_partition(self, data: bytes) -> str:
        ref = self.put_list(data)
        self.in_table(lambda table: table["partitions"][0].__setitem__(1, ref))
        return str(ref[0])

    def in_partition(self, change: Callable[[dict[str, Any]], object]) -> str:
        table = self.document(self.header()["tables"][0]["list"])
        document = self.document(table["partitions"][0][1])
        change(document)
        return self.put_partition(zstandard.compress(json.dumps(document).encode()))

    def in_file(self, number: int, value: Any, *, name: str = "part.json") -> str:
        """A field of one file of the first part: name, size, SHA-256, place."""

        def change(document: dict[str, Any]) -> None:
            files = document["parts"][0][3]
            (file,) = (file for file in files if (file[0] == "part.json") == (name == "part.json"))
            file[number] = value

        return self.in_partition(change)

    def in_definition(self, **fields: Any) -> str:
        def change(table: dict[str, Any]) -> None:
            definition = json.loads(table["definition"])
            definition.update(fields)
            table["definition"] = json.dumps(definition)

        return self.in_table(change)

    def sparse(self, path: Path, size_bytes: int = 10 << 30) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(size_bytes)
        return path.name

    def state(self) -> list[tuple[str, int]]:
        """All that the store itself has, without what a look at it writes."""
        places = (self.store.home / "ssd" / "store", self.store.bucket)
        return sorted(
            (str(path), path.stat().st_size) for place in places for path in place.rglob("*") if path.is_file()
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vault")


@pytest.fixture
def vault(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Vault:
    store = cached_store(place, monkeypatch, capsys)
    monkeypatch.setenv("FROSTLINE_BACKUP", f"file://{store.home}/repository")
    made, kept = Vault(store), place / "repository"
    if not kept.exists():
        store.frostline("backup", "init")
        store.frostline("backup", "create", "one")
        shutil.copytree(made.root, kept)
    else:
        shutil.copytree(kept, made.root)
    return made


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """What takes memory without end fails here, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def bomb(document: str, filler: str, size_bytes: int = 1 << 30) -> bytes:
    """A list that says what `document` says and goes on for so long, in some kilobytes."""
    compressor = zstandard.ZstdCompressor(level=1)
    body = document.encode()
    rest = (filler * (1 << 20))[: 1 << 20].encode()
    made = compressor.compressobj(size=len(body) + (size_bytes >> 20) * len(rest))
    pieces = [made.compress(body)]
    pieces += [made.compress(rest) for _ in range(size_bytes >> 20)]
    return b"".join([*pieces, made.flush()])


def rows(text: str, size_bytes: int) -> str:
    return ",".join([text] * (size_bytes // (len(text) + 1)))


def partition_of(parts: str) -> bytes:
    body = f'{{"format":1,"minimum_reader":1,"partition":"all","packs":[],"parts":[{parts}]}}'
    return zstandard.ZstdCompressor(level=1).compress(body.encode())


def hostile_path(name: str) -> Callable[[Vault], str]:
    return lambda vault: vault.in_file(0, name, name="data")


def later(document: dict[str, Any]) -> None:
    document.update(format=9, minimum_reader=9)


def nested_header(vault: Vault) -> str:
    vault.seal(vault.header_path(), b'{"x":' + DEEP.encode())
    return vault.header_path().name


def cut_header(vault: Vault) -> str:
    path = vault.header_path()
    path.write_bytes(path.read_bytes()[:-20])
    return path.name


def other_place(vault: Vault) -> str:
    """A header that is moved to another name."""
    (vault.root / "backups" / "one").rename(vault.root / "backups" / "two")
    shutil.copytree(vault.root / "backups" / "two", vault.root / "backups" / "one")
    return "backups/two"


def linked(vault: Vault) -> str:
    path = next(path for path in sorted((vault.root / "packs").rglob("*")) if path.is_file())
    path.rename(vault.store.home / "elsewhere")
    path.symlink_to(vault.store.home / "elsewhere")
    return path.name


def fifo(vault: Vault) -> str:
    path = next(path for path in sorted((vault.root / "packs").rglob("*")) if path.is_file())
    path.unlink()
    os.mkfifo(path)
    return path.name


DELETED = 13 if ACTIVE else 0
"""A write-once store keeps the header, and says so."""

BROKEN = {"list": 0, "show": WRONG, "verify": FOUND, "create": 0, "restore": WRONG, "delete": WRONG}
"""A header that cannot be read."""
DAMAGED = {"list": 0, "show": WRONG, "verify": FOUND, "create": 0, "restore": WRONG, "delete": DELETED}
"""A table's list that cannot be read."""
DEEPER = {**DAMAGED, "show": 0}
"""A partition's list that cannot be read, or what it names."""

FORGERIES: dict[str, tuple[Callable[[Vault], str], dict[str, int]]] = {
    "a header cut short": (cut_header, BROKEN),
    "a header of 10 GiB": (lambda vault: vault.sparse(vault.header_path()), BROKEN),
    "a header nested": (nested_header, BROKEN),
    "a later header": (lambda vault: vault.put_header(later), {**BROKEN, "show": 2, "restore": 2, "delete": 2}),
    "a header's time without a zone": (
        lambda vault: vault.put_header(lambda header: header.update(taken="2026-01-01T00:00:00")),
        BROKEN,
    ),
    "a header's time at the end of the calendar": (
        lambda vault: vault.put_header(lambda header: header.update(taken="9999-12-31T23:59:59-14:00")),
        BROKEN,
    ),
    "a header's count": (
        lambda vault: vault.put_header(lambda header: header["tables"][0].update(rows=1 << 70)),
        BROKEN,
    ),
    "a header of another backup": (
        lambda vault: vault.put_header(lambda header: header.update(id="f" * 16)),
        BROKEN,
    ),
    "a header's list of 2^70 bytes": (
        lambda vault: vault.put_header(lambda header: header["tables"][0]["list"].__setitem__(2, 1 << 70)),
        BROKEN,
    ),
    "a table's list of 10 GiB": (
        lambda vault: (
            vault.sparse(vault.list_path(["ab" * 32, NONCE])),
            vault.put_header(lambda header: header["tables"][0].update(list=["ab" * 32, NONCE, 10 << 30])),
        )[1],
        BROKEN,
    ),
    "a table's list nested": (
        lambda vault: vault.put_table(zstandard.compress(b'{"format":1,"minimum_reader":1,"x":' + DEEP.encode())),
        DAMAGED,
    ),
    "a later table's list": (lambda vault: vault.in_table(later), {**DAMAGED, "show": 2, "restore": 2}),
    "a table's list that grows to 1 GiB": (
        lambda vault: vault.put_table(bomb('{"format":1,"minimum_reader":1,"x":"', " ")),
        DAMAGED,
    ),
    "a table's uuid": (lambda vault: vault.in_definition(uuid="../../../etc"), DAMAGED),
    "a table of another name": (lambda vault: vault.in_definition(name="other"), DEEPER),
    "a table's name": (lambda vault: vault.in_definition(name="../x"), DAMAGED),
    "a table nested": (lambda vault: vault.in_table(lambda table: table.update(definition=DEEP)), DAMAGED),
    "a block range": (lambda vault: vault.in_table(lambda table: table.update(ranges=[[1 << 70, "x", True]])), DAMAGED),
    "a negative block range": (
        lambda vault: vault.in_table(lambda table: table.update(ranges=[[-1, "x", True]])),
        DAMAGED,
    ),
    "a policy without volumes": (
        lambda vault: vault.in_table(lambda table: table.update(policy={"volumes": []})),
        {**DAMAGED, "show": 0, "verify": 0, "restore": 0},
    ),
    "a pin of nothing": (
        lambda vault: vault.in_table(lambda table: table.update(pins=[{"scope": "\0", "name": "x" * 5000}])),
        DAMAGED,
    ),
    "a partition's list nested": (
        lambda vault: vault.put_partition(zstandard.compress(b'{"format":1,"minimum_reader":1,"x":' + DEEP.encode())),
        DEEPER,
    ),
    "a partition's list that grows to 1 GiB": (
        lambda vault: vault.put_partition(bomb('{"format":1,"minimum_reader":1,"x":"', " ")),
        DEEPER,
    ),
    "a partition's list of 20 million empty parts": (
        lambda vault: vault.put_partition(partition_of(rows('["a","",0,[]]', 255 << 20))),
        DEEPER,
    ),
    "a partition of another name": (
        lambda vault: vault.in_partition(lambda partition: partition.update(partition="202601")),
        DEEPER,
    ),
    "a part's name": (
        lambda vault: vault.in_partition(lambda partition: partition["parts"][0].__setitem__(0, "../all_1_1_0")),
        DEEPER,
    ),
    "a part's rows": (
        lambda vault: vault.in_partition(lambda partition: partition["parts"][0].__setitem__(2, 1 << 70)),
        DEEPER,
    ),
    "a part twice": (
        lambda vault: vault.in_partition(lambda partition: partition["parts"].append(partition["parts"][0])),
        DEEPER,
    ),
    "a path above the part": (hostile_path("../../../../escaped"), DEEPER),
    "an absolute path": (hostile_path("/etc/frostline-escaped"), DEEPER),
    "a path of two steps": (hostile_path("a/b"), DEEPER),
    "a path with NUL": (hostile_path("a\0b"), DEEPER),
    "a path of 5,000 bytes": (hostile_path("x" * 5_000), DEEPER),
    "a file's digest": (lambda vault: vault.in_file(2, "zz"), DEEPER),
    "another file's digest": (lambda vault: (vault.in_file(2, "ab" * 32), "part.json")[1], DEEPER),
    "a negative size": (lambda vault: vault.in_file(1, -1), DEEPER),
    "a size of 2^70": (lambda vault: vault.in_file(1, 1 << 70), DEEPER),
    "a part.json of 10 GiB": (lambda vault: vault.in_file(1, 10 << 30), DEEPER),
    "a place beyond the pack": (lambda vault: vault.in_file(3, ["pack", 0, 1 << 40, 10, True]), DEEPER),
    "no such pack": (lambda vault: vault.in_file(3, ["pack", 7, 0, 10, True]), DEEPER),
    "a nonce": (lambda vault: vault.in_file(3, ["blob", "../../../../../x"]), DEEPER),
    "a disk that is not pinned": (
        lambda vault: (vault.in_file(3, ["disk", "cold", "r00"]), "r00")[1],
        {**DEEPER, "restore": NOWHERE},
    ),
    "a key of the log": (lambda vault: vault.in_file(3, ["disk", "cold", "operations/r1-commit"]), DEEPER),
    "a kind of place that is none": (lambda vault: vault.in_file(3, ["floppy", "a:"]), DEEPER),
    "a pack that is a link": (linked, {**DEEPER, "restore": REFUSED}),
    "a pack that is a FIFO": (fifo, {**DEEPER, "restore": NOWHERE}),
}


def test_forgeries_are_told(vault: Vault) -> None:
    """Nothing of them is needed for the verbs to answer as they should."""
    answers = {verb: vault.store.run("backup", *arguments)[0] for verb, arguments in VERBS.items()}
    assert answers == {**dict.fromkeys(VERBS, 0), "delete": DELETED}


VERBS = {
    "list": ["list"],
    "show": ["show", "one"],
    "verify": ["verify", "--all", "--read-data"],
    "create": ["create", "next"],
    "restore": ["restore", "one", "--map-table", f"{TABLE}:demo.copy"],
    "delete": ["delete", "one", "--yes"],
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", FORGERIES)
def test_what_each_verb_answers(vault: Vault, name: str) -> None:
    """I12, I15: each ends by itself with the exit code of the table; `verify` names what was forged; a restore makes no
    table and touches nothing else; the next backup is whole."""
    forge, expected = FORGERIES[name]
    named = forge(vault)
    for verb, arguments in VERBS.items():
        before = vault.state()
        code, out, err = vault.store.run("backup", *arguments)
        assert code == expected[verb], (verb, code, out, err)
        if code not in (0, FOUND):
            assert err.strip().count("\n") <= 4, "an error, and no traceback"
        if verb == "verify" and code:
            assert named in out, out
        if verb == "restore" and code:
            assert vault.state() == before
            assert vault.store.run("table", "show", "demo.copy")[0] == NOWHERE
    assert vault.store.count() == ROWS
    assert vault.store.problems() == []
    assert not (vault.store.home / "escaped").exists()
    assert vault.store.run("backup", "verify", "next", "--read-data")[0] == 0
    vault.store.frostline("backup", "restore", "next", "--map-table", f"{TABLE}:demo.next")
