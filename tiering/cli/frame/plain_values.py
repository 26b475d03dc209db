"""Plain values of options and arguments, taken unchanged.

typer converts every value by an adapter of pydantic, whose import takes as long as all that most verbs do: 70 ms. Text,
flags, numbers within their bounds and words of a choice need none. Everything else, and with it every message about a
wrong value, stays typer's; so does all of it where a typer of another version works differently inside.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin


def install() -> None:
    """Spare plain values the conversion, in this process."""
    from typer import core

    parameter: Any = getattr(core, "_TyperParameter", None)
    convert = getattr(parameter, "get_runtime_param", None)
    if convert is not None and not isinstance(convert, _Conversion):
        parameter.get_runtime_param = _Conversion(convert)


class _Conversion:
    """Stands where typer looks for the converter of a parameter."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def __get__(self, parameter: Any, owner: object = None) -> Any:
        return self if parameter is None else lambda: _Converter(lambda: self._usual(parameter))


class _Converter:
    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the verb wants it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        known = param.type_descriptor
        if param.nargs == 1 and _is_word_of(value, known.annotation):
            return value
        special = known.is_path or known.is_choice or known.parameter_info.parser is not None
        plain = None if special or param.nargs != 1 else _plain(value, known.annotation, known.parameter_info)
        return self._usual().coerce(value, param=param, ctx=ctx) if plain is None else plain


def _is_word_of(value: Any, kind: Any) -> bool:
    """Whether it is one of the words that a `Literal` names."""
    return get_origin(kind) is Literal and type(value) is str and value in get_args(kind)


_PLAIN_DIGITS = 30
"""The parser itself says what is wrong with a longer number."""


def _plain(value: Any, kind: Any, details: Any) -> str | int | float | None:
    """None: not as plain as that."""
    if type(value) not in (str, kind):
        return None
    if kind is str:
        return str(value)
    if kind not in (int, float) or (
        type(value) is str and not (value.isascii() and value.isdecimal() and len(value) <= _PLAIN_DIGITS)
    ):
        return None
    number: int | float = kind(value)
    low, high = details.min, details.max
    return number if (low is None or low <= number) and (high is None or number <= high) else None
