"""What another replica says of a part's objects is believed in nothing that is not proved (P61)."""

from __future__ import annotations

import hashlib
import zlib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from disks.base import FileInfo
from oplog import bounds
from oplog.errors import Damaged
from oplog.revision import blob_key
from tiering.table.part import PART_FILE, DataFile, Part
from zerocopy.interserver import offer
from zerocopy.interserver.offer import Offer, OfferedPart, Offers

SHA = hashlib.sha256(b"bytes").hexdigest()
SET = "1" * 32
KEY = blob_key(7)
DIRECTORY = "store/000/00000001-0000-4000-8000-000000000000/all_0_0_0"


def made(**file: Any) -> Offer:
    infos = {
        "data.parquet": FileInfo("x", 5, SHA, KEY, SET),
        PART_FILE: FileInfo("x", 9, SHA),
    }
    found = offer.offered(infos, store="2" * 32, log="a", directory=DIRECTORY)
    assert isinstance(found, Offer)
    if file:
        first, *others = found.files
        found = msgspec.structs.replace(found, files=(msgspec.structs.replace(first, **file), *others))
    return found


def decoded(one: Offer) -> Offer | None:
    answers = Offers(parts={"all_0_0_0": OfferedPart(part=msgspec.Raw(b"{}"), offer=one)})
    return offer.decode(offer.encode(answers), path="there").parts["all_0_0_0"].offer


def test_an_offer_comes_as_it_was_made() -> None:
    assert decoded(made()) == made()
    answers = Offers(parts={"p": OfferedPart(part=msgspec.Raw(b"{}"), why="no")}, missing=("q",))
    assert offer.decode(offer.encode(answers), path="there") == answers


@pytest.mark.parametrize(
    "file",
    [
        {"key": "../../secret"},
        {"key": "operations/r0-commit"},
        {"key": None},
        {"blob_set": None},
        {"blob_set": "../x"},
        {"blob_set": "A" * 32},
        {"sha256": "x"},
        {"size_bytes": -1},
    ],
    ids=str,
)
def test_a_file_that_is_no_object_of_a_set_is_refused(file: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="no offer of a part"):
        decoded(made(**file))


@pytest.mark.parametrize("what", [{"store": "x"}, {"log": "a/b"}, {"log": ""}, {"directory": "../x"}], ids=str)
def test_a_place_that_is_none_is_refused(what: dict[str, str]) -> None:
    with pytest.raises(Damaged, match="no offer of a part"):
        decoded(msgspec.structs.replace(made(), **what))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"parts": {"p": {"part": {}, "offer": 3}}}', b"\xff"])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    for sent in (data, zlib.compress(data)):
        with pytest.raises(Damaged):
            offer.decode(sent, path="there")


@pytest.mark.in_turn
def test_what_unpacks_without_end_is_refused() -> None:
    bomb = zlib.compress(b" " * (bounds.LARGEST_DOCUMENT_BYTES + 1))
    with pytest.raises(Damaged):
        offer.decode(bomb, path="there")


def part(name: str = "data.parquet", size_bytes: int = 5, sha256: str = SHA) -> Part:
    files = (DataFile(name, 1, size_bytes, sha256),)
    return Part(
        table="t", name="all_0_0_0", rows=1, size_bytes=5, created=datetime(2026, 1, 1, tzinfo=UTC), files=files
    )


def test_the_files_come_to_this_machines_place() -> None:
    rows = offer.rows(made(), part(), b"description", "here/p")
    assert not isinstance(rows, str)
    assert [(row.path, row.key, row.inline, row.blob_set) for row in rows] == [
        ("here/p/data.parquet", KEY, None, SET),
        (f"here/p/{PART_FILE}", None, b"description", None),
    ]
    assert rows[1].sha256 == hashlib.sha256(b"description").hexdigest()


@pytest.mark.parametrize("wanted", [{"name": "other.parquet"}, {"size_bytes": 6}, {"sha256": "0" * 64}], ids=str)
def test_files_that_are_not_those_of_the_part_are_not_taken(wanted: dict[str, Any]) -> None:
    assert "than th" in str(offer.rows(made(), part(**wanted), b"", "here/p"))


def test_what_was_written_before_sharing_is_not_offered() -> None:
    found = offer.offered({"data.parquet": FileInfo("x", 5, SHA, KEY, None)}, store="2" * 32, log="a", directory="p")
    assert found is not None
    assert found.startswith("data.parquet was written before")
