"""Documents: what Frostline writes down to read it again, in a bucket, on a disk, in Keeper or in its state.

Each kind of document is one `Document`, which its module makes beside the struct. `encode` reads back what it has
encoded, with the reader of that kind, and compares, before anybody gets the bytes: so nothing is written that its own
reader refuses or understands differently. `DOCUMENTS` has every kind of the modules that are imported; the tests
generate values from it. Only output, requests and fingerprints are encoded elsewhere
(`tests/unit/test_documents.py` has the list). Pure; no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

from oplog import bounds
from oplog.errors import FrostlineError, Refused

T = TypeVar("T")

DOCUMENTS: dict[str, Document[Any]] = {}
"""By name."""


class Document(Generic[T]):
    """One kind of document, as JSON unless `write` and `read` say otherwise. `fault` says what is wrong with a
    value whose fields have the right types; None when nothing is."""

    def __init__(
        self,
        name: str,
        kind: type[T],
        *,
        fault: Callable[[T], str | None] | None = None,
        order: Literal["deterministic"] | None = None,
        write: Callable[[T], bytes] | None = None,
        read: Callable[[bytes], T] | None = None,
    ) -> None:
        assert name not in DOCUMENTS, name
        self.name = name
        self.kind = kind
        self._fault = fault
        self._write = write or msgspec.json.Encoder(order=order).encode
        self._read: Callable[[bytes | str], T] = read or msgspec.json.Decoder(kind).decode  # type: ignore[assignment]
        DOCUMENTS[name] = self

    def encode(self, value: T) -> bytes:
        """The bytes. Raises `Refused` for a value that could not be read back."""
        try:
            data = self._write(value)
            why = None if _is_same(value, self.decode(data)) else "it reads back as something else"
        except (FrostlineError, TypeError, *bounds.UNREADABLE) as error:
            why = error.message if isinstance(error, FrostlineError) else str(error)
        if why is None:
            return data
        raise not_written(self.name, why)

    def decode(self, data: bytes | str) -> T:
        """The value. Raises one of `bounds.UNREADABLE`, or what the kind's own reader raises."""
        value = self._read(data)
        fault = self._fault(value) if self._fault is not None else None
        if fault is not None:
            raise ValueError(fault)
        return value


def not_written(name: str, why: str) -> Refused:
    """The error for a document that its own reader would refuse."""
    return Refused(
        f"this {name} could not be read back, and was not written: {why}",
        hint="nothing was changed; use a value that can be stored, and report this error if you gave none",
    )


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal. Fields that take any JSON come back as lists where they were tuples."""
    return bool(value == other) or _plain(value) == _plain(other)


def _plain(value: Any) -> Any:
    return _with_lists(msgspec.to_builtins(value))


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(one) for key, one in value.items()}
    return [_with_lists(one) for one in value] if isinstance(value, list | tuple) else value
