"""How bash, zsh and fish ask for words, and take them, by the scripts of `frostline --install-completion`."""

import re
import shlex
from collections.abc import Mapping

from tiering.cli.completion.names import Names
from tiering.cli.completion.words import ONE_OF, Wanted, Words

Item = tuple[str, str]
"""A word, and what it means."""

_SPECIAL = re.compile(r"([^\w@%+./:,=-])")
_BREAKS = "=:"
"""Characters at which bash begins a new word."""


def answer(shell: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """What to print, and the exit code."""
    typed, word = _bash_words(environment) if shell == "bash" else _line_words(environment)
    words = Words()
    wanted = words.request(typed[1:], word)
    found = _items(words, wanted, environment)
    if shell == "zsh":
        return (_zsh(found), 0)
    if shell == "fish":
        if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            return "", 0 if found else 1
        return "\n".join(f"{value}\t{meaning}" if meaning else value for value, meaning in found), 0
    cut = max((word.rfind(character) for character in _BREAKS), default=-1) + 1
    return "\n".join(_escaped(value[cut:]) for value, _ in found), 0


def _items(words: Words, request: Wanted, environment: Mapping[str, str]) -> list[Item]:
    """In order, and whole words: with what of the last one is not about a name."""
    if request.kind == "verb":
        candidates = words.verbs(request.verb)
    elif request.kind == "option":
        candidates = words.options(request.verb)
    elif request.kind.startswith(ONE_OF):
        candidates = [(value, "") for value in sorted(request.kind.removeprefix(ONE_OF).split(","))]
    elif request.kind:
        candidates = [(name, "") for name in Names(request, environment).of(request.kind)]
    else:
        return []
    return [(request.before + value, meaning) for value, meaning in candidates if value.startswith(request.typed)]


def _bash_words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The words before the cursor, and the one at it. Bash breaks `--disk=s3` and `a:b` into three: they are one."""
    text = environment["COMP_WORDS"]
    pieces = text.split("\n") if "\n" in text else text.split(" ")
    at = int(environment["COMP_CWORD"])
    pieces = (pieces + [""] * (at + 1))[: at + 1]
    joined: list[str] = []
    for index, piece in enumerate(pieces):
        glued = index > 1 and (piece in ("=", ":") or pieces[index - 1] in ("=", ":"))
        if glued:
            joined[-1] += piece
        else:
            joined.append(piece)
    return [_unquoted(piece) for piece in joined[:-1]], _unquoted(joined[-1])


def _line_words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    for closing in ("", "'", '"'):  # a quote that is still open
        try:
            words = shlex.split(line + closing)
            break
        except ValueError:
            words = line.split()
    return (words, "") if line.endswith((" ", "\t")) or not words else (words[:-1], words[-1])


def _unquoted(piece: str) -> str:
    for closing in ("", "'", '"'):
        try:
            return "".join(shlex.split(piece + closing))
        except ValueError:
            continue
    return piece


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def _zsh(candidates: list[Item]) -> str:
    if not candidates:
        return "_files"

    def safe(text: str) -> str:
        for character, written in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
            text = text.replace(character, written)
        return text

    lines = [f'"{safe(value)}":"{safe(meaning)}"' if meaning else f'"{safe(value)}"' for value, meaning in candidates]
    return "_arguments '*: :((" + "\n".join(lines) + "))'"
