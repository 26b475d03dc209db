"""What the word at the cursor is: a verb, an option, or the name of something, by the generated list of all verbs."""

import json
import os
from dataclasses import dataclass, field
from typing import TypedDict

FILE = os.path.join(os.path.dirname(__file__), "verbs.json")
"""Every verb: its options, its arguments, what each names. Written by `make generate`."""


ONE_OF = "one of "
"""How the kind begins of what has a fixed set of words: `one of csv,json`."""


@dataclass(frozen=True)
class Wanted:
    """What stands at the cursor."""

    kind: str = ""
    """`verb`, `option`, what a name is of (`table`, `part`, …), the words to choose from (`ONE_OF`), or "" for
    anything, such as a file."""
    verb: str = ""
    """`table create`; "" for `frostline` itself."""
    typed: str = ""
    """As much of it as is there."""
    before: str = ""
    """What of the same word stands before it: `--disk=`."""
    given: dict[str, list[str]] = field(default_factory=dict)
    """Parameter -> what was said for it."""


class WordKind(TypedDict):
    """An argument or an option."""

    name: str
    kind: str
    help: str
    values: int
    """How many words follow an option."""
    many: bool
    """Of the last argument: it may be repeated."""


class VerbWords(TypedDict, total=False):
    """A verb or a group, as the generated file has it."""

    help: str
    options: dict[str, WordKind]
    arguments: list[WordKind]
    verbs: list[str]


class Words:
    """The verbs and their options."""

    def __init__(self) -> None:
        with open(FILE, encoding="utf-8") as stream:
            self._verbs: dict[str, VerbWords] = json.load(stream)

    def verbs(self, group: str) -> list[tuple[str, str]]:
        """Those of a group, with what each does."""
        names = self._verbs[group]["verbs"]
        return [(name, self._verbs[f"{group} {name}".strip()]["help"]) for name in names]

    def options(self, verb: str) -> list[tuple[str, str]]:
        """The long ones that its help shows, with what each does."""
        options = self._verbs[verb]["options"]
        return [(name, option["help"]) for name, option in options.items() if name.startswith("--")]

    def request(self, typed: list[str], word: str) -> Wanted:
        """What comes after these words, of which `word` is the beginning."""
        verb, given, places, plain = "", dict[str, list[str]](), 0, False
        everywhere = self._verbs[""]["options"]
        rest = iter(typed)
        for piece in rest:
            known = self._verbs[verb]
            if piece.startswith("-") and len(piece) > 1 and not plain:
                plain = piece == "--"
                name, equals, value = piece.partition("=")
                option = known["options"].get(name) or everywhere.get(name)
                if option is None or not option["values"]:
                    continue
                values = [value] if equals else [value for _, value in zip(range(option["values"]), rest, strict=False)]
                given.setdefault(option["name"], []).extend(values)
                if not equals and len(values) < option["values"]:
                    return Wanted("" if values else option["kind"], verb, word, given=given)
            elif "verbs" in known:
                verb = f"{verb} {piece}".strip()
                if verb not in self._verbs:
                    return Wanted()
            else:
                argument = _argument(known, places)
                given.setdefault(argument["name"] if argument else "", []).append(piece)
                places += 1
        return self._at_the_end(verb, word, given, places, plain=plain)

    def _at_the_end(self, verb: str, word: str, given: dict[str, list[str]], places: int, *, plain: bool) -> Wanted:
        known = self._verbs[verb]
        if word.startswith("-") and not plain:
            name, equals, value = word.partition("=")
            if not equals:
                return Wanted("option", verb, word)
            option = known["options"].get(name) or self._verbs[""]["options"].get(name)
            return Wanted(option["kind"] if option else "", verb, value, f"{name}=", given)
        if "verbs" in known:
            return Wanted("verb", verb, word)
        argument = _argument(known, places)
        return Wanted(argument["kind"] if argument else "", verb, word, given=given)


def _argument(verb: VerbWords, position: int) -> WordKind | None:
    arguments = verb["arguments"]
    if position < len(arguments):
        return arguments[position]
    return arguments[-1] if arguments and arguments[-1]["many"] else None
