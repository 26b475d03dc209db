"""ClickHouse's types as values, parsed by their grammar and written from the value. Pure.

    type     = name [ "(" argument { ", " argument } ")" ]
    argument = number | text [ " = " number ] | [ name " " ] type

A type of a bucket never becomes part of a statement by itself: `written` writes what `parse` understood.
"""

from __future__ import annotations

import re

import msgspec

from oplog.clickhouse.quoting import NAME, TEXT, quoted_name, quoted_text, unescaped

_SPACE = re.compile(r" *")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?", re.ASCII)
_DEEPEST = 32
_MOST_ARGUMENTS = 65_536
"""An Enum16 has no more."""


class NotAType(Exception):
    """The text is no type that the grammar knows."""


class Argument(msgspec.Struct, frozen=True):
    """What stands between the parentheses of a type. One of `number`, `text` and `type` is set."""

    number: str | None = None
    """With `text`: the number of an Enum's value."""
    text: str | None = None
    type: ColumnType | None = None
    name: str | None = None
    """Of the `type`, as an element of a Tuple has one."""


class ColumnType(msgspec.Struct, frozen=True):
    """A type: `Array(UInt8)` has the name `Array` and one argument."""

    name: str
    arguments: tuple[Argument, ...] | None = None
    """None without parentheses."""


def parse(text: str) -> ColumnType:
    """The type. Raises `NotAType` where the whole text is not one."""
    found, end = _type(text, 0, 0)
    if end != len(text):
        raise NotAType(text)
    return found


def written(column_type: ColumnType) -> str:
    """The type as a statement has it."""
    if column_type.arguments is None:
        return column_type.name
    return f"{column_type.name}({', '.join(map(_argument_text, column_type.arguments))})"


def _argument_text(argument: Argument) -> str:
    if argument.type is not None:
        name = "" if argument.name is None else f"{quoted_name(argument.name)} "
        return name + written(argument.type)
    if argument.text is not None:
        return quoted_text(argument.text) + ("" if argument.number is None else f" = {argument.number}")
    assert argument.number is not None
    return argument.number


def _type(text: str, at: int, depth: int) -> tuple[ColumnType, int]:
    word = _WORD.match(text, at)
    if word is None or depth > _DEEPEST:
        raise NotAType(text)
    at = word.end()
    if not text.startswith("(", at):
        return ColumnType(word[0]), at
    arguments: list[Argument] = []
    at += 1
    while not text.startswith(")", at):
        if arguments:
            at = _after(text, at, ",")
        argument, at = _argument(text, _past_space(text, at), depth)
        arguments.append(argument)
        if len(arguments) > _MOST_ARGUMENTS:
            raise NotAType(text)
    return ColumnType(word[0], tuple(arguments)), at + 1


def _argument(text: str, at: int, depth: int) -> tuple[Argument, int]:
    if (number := _NUMBER.match(text, at)) is not None:
        return Argument(number=number[0]), number.end()
    if (literal := TEXT.match(text, at)) is not None:
        value, at = unescaped(literal[1]), literal.end()
        equals = _past_space(text, at)
        if not text.startswith("=", equals):
            return Argument(text=value), at
        number = _NUMBER.match(text, _past_space(text, equals + 1))
        if number is None:
            raise NotAType(text)
        return Argument(text=value, number=number[0]), number.end()
    name, after = _element_name(text, at)
    found, at = _type(text, at if name is None else after, depth + 1)
    return Argument(type=found, name=name), at


def _element_name(text: str, at: int) -> tuple[str | None, int]:
    """The name of a Tuple's element, and where its type begins; None where the type itself is next."""
    if (literal := NAME.match(text, at)) is not None:
        return unescaped(literal[1]), _after(text, literal.end(), " ")
    word = _WORD.match(text, at)
    if word is None or not text.startswith(" ", word.end()):
        return None, at
    begin = _past_space(text, word.end())
    return (word[0], begin) if _WORD.match(text, begin) else (None, at)


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _after(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        raise NotAType(text)
    return _past_space(text, at + 1)
