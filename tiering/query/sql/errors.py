"""What the query engine says, in Frostline's errors."""

from __future__ import annotations

import re

import duckdb

from disks.system_errors import of_the_system
from oplog.errors import Damaged, FrostlineError, LimitReached, UsageError

READ_ONLY_HINT = "use 'frostline table create', 'frostline insert' and 'frostline table alter' to change something"
_WRAPPING = re.compile(
    r"(?:Parser|Binder|Catalog|Conversion|Out of Range|Invalid Input|Invalid|Not implemented|Constraint|IO|"
    r"Serialization|Sequence|Syntax|Permission|Missing Extension|Fatal|INTERNAL|Unknown) Error: ",
    re.IGNORECASE,
)
_DECODING = re.compile(
    r"TProtocolException|TTransportException|magic bytes|snappy|zstd|decompress|corrupt", re.IGNORECASE
)
_NO_TEXT = re.compile(r'Invalid string encoding found in Parquet file "[^"]*?([^/"]+)/[^/"]*"')


def sql_error(error: Exception) -> FrostlineError:
    """The engine's complaint about a statement, without its inner workings. Memory that is used up is none."""
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return LimitReached(f"the query needs more memory than it may use: {cleaned(text)[:300]}", hint="select less")
    return UsageError(cleaned(text), hint=_hint(text))


def cleaned(text: str) -> str:
    """The message itself: without wrappings, and without the statement again."""
    message = text.strip()
    while match := _WRAPPING.match(message):
        message = message[match.end() :].strip()
    message = re.split(r"\n\s*\n|\nLINE \d+:", message)[0]
    return " ".join(message.split()).replace('"temp".main.', "") or "the query failed"


def engine_error(error: Exception) -> FrostlineError:
    """What went wrong while a statement ran, when it was not a file."""
    text = str(error)
    if not isinstance(error, duckdb.Error) or isinstance(error, duckdb.IOException):
        refused = of_the_system(error)
        if refused is not None:
            refused.message += f" ({cleaned(text)[:300]})" if isinstance(error, duckdb.Error) else ""
            return refused
    if isinstance(error, duckdb.OutOfMemoryException):
        return sql_error(error)
    if match := _NO_TEXT.search(text):
        return Damaged(
            f"part {match[1]} has bytes that are no UTF-8 text, in a column that the query reads",
            hint="query the other columns; Table.dataset() in Python reads the bytes, to fix and insert them",
        )
    if isinstance(error, duckdb.IOException) or _DECODING.search(text):
        return Damaged(f"a part cannot be decoded: {cleaned(text)[:300]}", hint="run 'frostline fsck --read-data'")
    return sql_error(error)


def _hint(text: str) -> str:
    if "not found in FROM clause" in text or "not have a column named" in text:
        return "'frostline table show' lists the columns"
    if text.startswith("Parser Error"):
        return 'check the SQL near the place named; a column called like a word of SQL is quoted: "at", "offset"'
    if "overflow" in text.lower() or text.startswith("Out of Range"):
        return "cast to a wider type before: x::HUGEINT, x::DECIMAL(38, 2) or x::DOUBLE"
    return ""
