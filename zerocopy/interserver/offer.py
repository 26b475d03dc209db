"""What a replica says of parts instead of giving their bytes: which objects of which store they are. Pure.

    GET /v2/<uuid>?parts=<part>,<part>&stores=<id>,<id>   the parts that are wanted, the stores that the asker has

    {"protocol": 2, "missing": ["<part>"], "parts": {"<part>":
        {"part": {…}, "offer": {"store": …, "log": …, "directory": …, "files": […]}, "why": ""}}}

`offer` is null, and `why` says why, where the part lies in none of these stores. A part that is in neither list did not
fit into the answer, and is asked for again. Who asks believes nothing of it: the digest in Keeper vouches for each
`part.json`, that for the files, and the bucket for the objects.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from disks.base import FileInfo
from oplog import bounds
from oplog.errors import Damaged
from oplog.paths import is_safe
from oplog.replay import FileRow
from oplog.revision import is_blob_key
from tiering.table.part import PART_FILE, DataFile, Part

PROTOCOL = 2
PROTOCOL_HEADER = "Frostline-Protocol"
"""Every answer of a server says how high it speaks; one that says nothing speaks version 1."""
DIGEST_HEADER = "Frostline-Digest"
"""The content digest of the part that is asked for."""
WHOLE_HEADER = "Frostline-Whole"
"""Of a question: how many bytes of files may come behind the `part.json`, all of the part's or none. Of the answer: how
long the `part.json` is, where they do."""
WHOLE_BYTES = 1 << 20
ON_OWN_DISK = "it is on a disk of its machine"
"""Why nothing is offered of a part that nobody has moved to a bucket yet."""
ANSWER_BYTES = 8 << 20
"""An answer ends with the part that makes it so large."""
_NAMES_BYTES = 6 * 1024
"""Of the parts that are asked for at once: a server takes a line of 8 KiB."""
_ID = re.compile(r"[0-9a-f]{32}\Z")
_LOG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


class OfferedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, and the object that holds it; `part.json` may ride in the log."""

    name: str
    size_bytes: int
    sha256: str
    key: str | None = None
    blob_set: str | None = None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A part in a store that both have."""

    store: str
    log: str
    """Whose marks hold it."""
    directory: str
    """Where it lies on that log's disk."""
    files: tuple[OfferedFile, ...]


class OfferedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one part."""

    part: msgspec.Raw
    """The `part.json` as it is."""
    offer: Offer | None = None
    why: str = ""


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    parts: dict[str, OfferedPart]
    missing: tuple[str, ...] = ()
    """Those that the replica does not have."""
    protocol: int = PROTOCOL


_decoder = msgspec.json.Decoder(Offers)


def questions(names: Sequence[str]) -> Iterator[list[str]]:
    """The names in as few questions as go into a line each."""
    some: list[str] = []
    size = 0
    for name in names:
        if some and size + len(name) + 1 > _NAMES_BYTES:
            yield some
            some, size = [], 0
        some.append(name)
        size += len(name) + 1
    if some:
        yield some


def offered(infos: Mapping[str, FileInfo], *, store: str, log: str, directory: str) -> Offer | str:
    """The offer of a part with these files by name, or why there is none."""
    for name, info in infos.items():
        if info.sha256 is None or (info.key is not None and info.blob_set is None):
            return f"{name} was written before its objects could be shared"
    files = tuple(
        OfferedFile(
            name=name, size_bytes=info.size_bytes, sha256=info.sha256 or "", key=info.key, blob_set=info.blob_set
        )
        for name, info in infos.items()
    )
    return Offer(store=store, log=log, directory=directory, files=files)


def encode(answers: Offers) -> bytes:
    """The answer's body: a large part has some hundred row groups, and what is said of them packs well."""
    return zlib.compress(msgspec.json.encode(answers))


def decode(data: bytes, *, path: str) -> Offers:
    """An answer that may be believed in its form. Raises `Damaged`."""
    try:
        unpacking = zlib.decompressobj()
        answers = _decoder.decode(unpacking.decompress(data, bounds.LARGEST_DOCUMENT_BYTES))
        offers = (answer.offer for answer in answers.parts.values() if answer.offer is not None)
        fault = next(filter(None, map(_fault, offers)), None)
    except (zlib.error, *bounds.UNREADABLE) as error:
        fault = str(error)
    if fault is not None:
        raise Damaged(
            f"{path} answered what is no offer of a part: {fault}", hint="check which version of Frostline runs there"
        )
    return answers


def rows(offer: Offer, part: Part, description: bytes, directory: str) -> list[FileRow] | str:
    """The files as they become this machine's, or why they are not those of the part. `description`: the `part.json`,
    where it rides in the log."""
    wanted: dict[str, DataFile] = {file.name: file for file in part.files}
    by_name = {file.name: file for file in offer.files}
    if by_name.keys() != {*wanted, PART_FILE} or len(by_name) != len(offer.files):
        return "its files there are others than those of its part.json"
    found = []
    for name, file in by_name.items():
        known = wanted.get(name)
        if known is not None and (known.size_bytes, known.sha256) != (file.size_bytes, file.sha256):
            return f"{name} there is another file than that of its part.json"
        if file.key is None and name != PART_FILE:
            return f"{name} there is no object"
        path = f"{directory}/{name}"
        if file.key is not None:
            found.append(FileRow(path, file.size_bytes, file.sha256, file.key, None, file.blob_set, 0))
        else:
            sha256 = hashlib.sha256(description).hexdigest()
            found.append(FileRow(path, len(description), sha256, None, description, None, 0))
    return found


def _fault(offer: Offer) -> str | None:
    if not _ID.match(offer.store) or not _LOG.match(offer.log) or not is_safe(offer.directory):
        return "its store, log or directory is none"
    for file in offer.files:
        fault = bounds.fault_in_digest("sha256", file.sha256) or bounds.fault_in_count("size_bytes", file.size_bytes)
        if fault is not None:
            return fault
        if (file.key is None) != (file.blob_set is None):
            return "a file has an object without a set"
        if file.key is not None and not (is_blob_key(file.key) and _ID.match(file.blob_set or "")):
            return "what it names is no object of a set"
    return None
