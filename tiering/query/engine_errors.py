"""What the query engine says, in Frostline's errors: which part, disk and object, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from oplog.errors import Damaged, FrostlineError, LimitReached, UsageError
from tiering.query.parquet_tables import EngineSession

READ_ONLY_HINT = "use 'frostline table create', 'frostline insert' and 'frostline table alter' to change something"
_WRAPPINGS = re.compile(
    r"(?:DataFusion error|Error during planning|Schema error|SQL error|Execution error|Arrow error|External error|"
    r"Optimizer rule '[^']*' failed\s+caused by|Internal error|Parquet error|External|caused by|Context)\s*:?\s+"
)
_BLAME = re.compile(r"This issue was likely caused by a bug in DataFusion's code\..*?/issues\.?\s*", re.DOTALL)


@contextmanager
def translated(session: EngineSession) -> Iterator[None]:
    """Raise the engine's errors inside as `FrostlineError`s."""
    try:
        yield
    except (FrostlineError, GeneratorExit, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        # A panic of the engine is no `Exception`, but no reason to end the program either.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise session.error_of(str(error)) or _error(str(error)) from error


def sql_error(text: str) -> UsageError:
    """The engine's complaint about a statement, without its inner workings."""
    return UsageError(cleaned(text), hint=_sql_hint(text))


def cleaned(text: str) -> str:
    """The message itself: without wrappings, and without names that the user never wrote."""
    message = text.split("\nbacktrace:")[0].strip()
    while match := _WRAPPINGS.match(message):
        message = message[match.end() :].strip()
    if parsed := re.match(r'(?:ParserError|TokenizerError)\("(.*)"\)\Z', message, re.DOTALL):
        message = parsed[1].replace('\\"', '"')
    message = _BLAME.sub("", message).split("\n\tCandidate functions:")[0].strip()
    return message.replace("datafusion.", "").replace("?table?.", "") or "the query failed"


def _sql_hint(text: str) -> str:
    if "No field named" in text:
        return "names are case-sensitive, as in the table; 'frostline table show' lists the columns"
    if "not supported" in text and ("DDL" in text or "DML" in text or "Statement" in text):
        return READ_ONLY_HINT
    if "ParserError" in text or "TokenizerError" in text:
        return "check the SQL near the place named"
    return ""


def _error(text: str) -> FrostlineError:
    if "Resources exhausted" in text:
        return LimitReached(f"the query needs more memory than it may use: {cleaned(text)[:300]}", hint="select less")
    if "Parquet error" in text:
        return Damaged(f"a part cannot be decoded: {cleaned(text)[:300]}", hint="run 'frostline fsck --read-data'")
    return UsageError(cleaned(text), hint=_sql_hint(text))
