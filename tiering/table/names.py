"""Names of columns and fields, any text of UTF-8, and how they are written where a list, a rule or a type holds them.

A plain name stands as it is. One with other characters than letters, digits and `_` is in double quotes where something
else could follow it, a quote within it doubled, as in SQL: `"user id"`. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase

from oplog.errors import UsageError

NAME = re.compile(r'"(?:[^"]|"")+"')
_PLAIN = re.compile(r"[^\W\d]\w*\Z")
_BARE = re.compile(r"[^\s:,()<>\[\]\"=][^:,()<>\[\]\"=]*")
_LONGEST = 255
_FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)


def check_name(name: str) -> str:
    """The name. Raises `UsageError` for one that a column cannot have."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"not a column name: {name!r}", hint="it is no text of UTF-8") from None
    if not name.strip() or len(name) > _LONGEST:
        raise UsageError(f"not a column name: {name!r}", hint=f"a name has 1 to {_LONGEST} characters, not all blank")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise UsageError(f"not a column name: {name!r}", hint="control characters are no part of a name")
    return name


def listed(names: Sequence[str], most: int = 20) -> str:
    """The names, with commas between them; of more than `most` the first ones, and how many more there are."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1:,} more"


def folded(name: str) -> str:
    """The name as SQL compares it: ASCII letters without case, all others unchanged."""
    return name.translate(_FOLDED)


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that SQL takes for one; None where it tells all of them apart."""
    known: dict[str, str] = {}
    for name in names:
        if (first := known.setdefault(folded(name), name)) != name:
            return first, name
    return None


def check_told_apart(names: Iterable[str], kind: str, hint: str) -> None:
    """Raise `UsageError` where two names differ in case alone. `hint` may have the later one as `{}`."""
    if (pair := alike(names)) is not None:
        raise UsageError(
            f"{kind} {pair[0]} and {pair[1]} differ in case alone, and SQL takes them for one",
            hint=hint.replace("{}", name_text(pair[1])),
        )


def name_text(name: str) -> str:
    """The name as it is written where something else may follow."""
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def path_text(name: str, fields: Sequence[str]) -> str:
    """A field within the structs of what has the name, as SQL has it: `name.a."b c"`."""
    return ".".join([name, *map(name_text, fields)])


def read_name(text: str) -> tuple[str, str]:
    """The name at the beginning, and what follows it. Raises `UsageError`."""
    text = text.strip()
    match = NAME.match(text) or _BARE.match(text)
    if match is None:
        raise UsageError(f"not a column name: {text!r}", hint="quote a name of other characters: '\"a, b\"'")
    return check_name(unquoted(match[0].strip())), text[match.end() :].strip()


def unquoted(text: str) -> str:
    """The name that is written so."""
    return text[1:-1].replace('""', '"') if NAME.fullmatch(text) else text


def read_names(pieces: Sequence[str]) -> list[str]:
    """The names of a list that was split. Raises `UsageError`."""
    found = []
    for piece in pieces:
        name, rest = read_name(piece)
        if rest:
            raise UsageError(
                f"not a column name: {piece.strip()!r}", hint="quote a name of other characters: '\"a, b\"'"
            )
        found.append(name)
    return found


def split_pair(text: str, between: str) -> tuple[str, str] | None:
    """A name, which may be quoted, and what stands after `between`; None where that is not there."""
    if match := NAME.match(text.strip()):
        rest = text.strip()[match.end() :].lstrip()
        return (unquoted(match[0]), rest[len(between) :]) if rest.startswith(between) else None
    name, found, rest = text.partition(between)
    return (name.strip(), rest) if found else None
