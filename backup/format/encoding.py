"""How the documents of a repository become bytes and are read back: bounded, and never more than what was asked for."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, TypeVar

import msgspec
import zstandard

from backup.format.names import FORMAT
from oplog import bounds
from oplog.errors import Damaged, UsageError

LIST_LIMIT_BYTES = 256 * 1024 * 1024
"""A list that says it is longer is not read: nothing writes such."""
HEADER_LIMIT_BYTES = 64 * 1024 * 1024
_LEVEL = 3
_DIGEST_LENGTH = 64
VERIFY = "'frostline backup verify --all' names what else is damaged"
_ID_LENGTH = 16

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder(order="deterministic")
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
"""Held while a decoder is made: msgspec does that for a type at its first use, and a second thread that uses the type
meanwhile reads what is not there yet and ends the process."""


class UnknownBackupFormat(UsageError):
    """Written by a later version, in a format that this one cannot read."""

    kind = "unknown_format"


class _Versions(msgspec.Struct):
    format: int
    minimum_reader: int


_versions = msgspec.json.Decoder(_Versions)


def check_versions(data: bytes, where: str) -> None:
    """Raise `UnknownBackupFormat` when the document says that this version must not read it."""
    try:
        versions = _versions.decode(data)
    except bounds.UNREADABLE as error:
        raise Damaged(f"{where} cannot be read: {error}", hint=VERIFY) from error
    if versions.minimum_reader > FORMAT:
        raise UnknownBackupFormat(
            f"{where} has format {versions.format}, which needs a reader of format {versions.minimum_reader}; "
            f"this version reads up to {FORMAT}",
            hint="use a newer frostline; nothing was changed",
        )


def sealed(document: msgspec.Struct) -> bytes:
    """A document with its own digest behind it: a changed or shortened one is recognised."""
    body = _encoder.encode(document)
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def others_can(where: str) -> str:
    """What to do about a header that cannot be read. Its key ends with the id of its backup."""
    backup_id = where.removesuffix(".json")[-_ID_LENGTH:]
    return f"this backup cannot be used, others can: 'frostline backup delete {backup_id}' takes it out"


def unsealed(data: bytes, kind: type[_T], where: str, *, hint: str = "") -> _T:
    """The document. Raises `UnknownBackupFormat` for one of a later version, `Damaged` for one that was changed, with
    the hint (default: of a backup's header)."""
    body, _, digest = data.removesuffix(b"\n").rpartition(b"\n")
    if len(data) > HEADER_LIMIT_BYTES or len(digest) != _DIGEST_LENGTH:
        raise Damaged(f"{where} is cut short or no header at all", hint=hint or others_can(where))
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise Damaged(f"{where} does not have the digest that it ends with", hint=hint or others_can(where))
    check_versions(body, where)
    return _decoded(body, kind, f"{where} cannot be read")


def packed_list(document: msgspec.Struct) -> bytes:
    """A list's bytes; the same for the same content."""
    return compressor().compress(_encoder.encode(document))


def unpacked_list(data: bytes, kind: type[_T], where: str) -> _T:
    """The list. Raises `Damaged` for bytes that are none, or that would grow beyond the limit."""
    body = decompressed(data, LIST_LIMIT_BYTES, where)
    check_versions(body, where)
    return _decoded(body, kind, f"{where} is no list of a backup")


def compressor() -> zstandard.ZstdCompressor:
    """What makes everything of a repository smaller. Not for several threads at once."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)


def decompressed(data: bytes, limit_bytes: int, where: str) -> bytes:
    """The bytes, at most `limit_bytes` of them. Raises `Damaged` before anything larger is made."""
    try:
        size_bytes = zstandard.frame_content_size(data)
        if not 0 <= size_bytes <= limit_bytes:
            raise Damaged(f"{where} says that it holds {size_bytes} bytes; at most {limit_bytes} are read", hint=VERIFY)
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data)
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be unpacked: {error}", hint=VERIFY) from error


def _decoded(body: bytes, kind: type[_T], source: str) -> _T:
    with _making:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        decoder: msgspec.json.Decoder[_T] = _decoders[kind]
    try:
        return decoder.decode(body)
    except bounds.UNREADABLE as error:
        raise Damaged(f"{source}: {error}", hint=VERIFY) from error
