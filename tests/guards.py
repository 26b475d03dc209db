"""Which tests guard which invariant and know which pitfall: `python -m tests.guards`, a step of `make static`.

Tests say it in docstrings, their own or their module's: I6, P14, or `I1 to I8`. An invariant of docs/design.md or a
pitfall of docs/pitfalls.md that no test names is a fault; so is a number in a file below tests/ that neither defines,
and a check of docs/security.md that names no test.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NUMBER = re.compile(r"\b([IP])([1-9]\d?)\b(?:\s+to\s+\1([1-9]\d?)\b)?")
_TABLES = (("design.md", "invariant", "I"), ("pitfalls.md", "pitfall", "P"))
_ROW = re.compile(r"^\| ([IP]\d+) \| ([^|]+)", re.MULTILINE)


@dataclass(slots=True)
class Guards:
    """What tests say of themselves."""

    tests: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number -> file -> how many of its tests guard that."""
    unknown: list[str] = field(default_factory=list)
    """Where a number is named that nothing defines."""


def numbers(text: str) -> Iterator[str]:
    """`I2, P14 to P16`: I2, P14, P15, P16."""
    for letter, first, last in _NUMBER.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


def defined(document: str) -> dict[str, str]:
    """The numbers of a table, each with the beginning of its second column."""
    return {number: re.split(r"[:;.]", text)[0].strip() for number, text in _ROW.findall(document)}


def guarded(source: str) -> Iterator[tuple[str, list[str]]]:
    """Each test of a module, with what its docstring and those around it name."""
    module = ast.parse(source)
    yield from _tests(module, [])


def _tests(node: ast.Module | ast.ClassDef, outer: list[str]) -> Iterator[tuple[str, list[str]]]:
    here = [*outer, *numbers(ast.get_docstring(node) or "")]
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, here)
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            yield child.name, [*here, *numbers(ast.get_docstring(child) or "")]


def collect(files: Mapping[str, str], known: Iterable[str]) -> Guards:
    """What the test modules say, by name and source, with the numbers of the documents."""
    guards = Guards({number: {} for number in known})
    for name, source in files.items():
        guards.unknown += [f"{name}: {number}" for number in sorted({*numbers(source)} - guards.tests.keys())]
        if not name.rpartition("/")[2].startswith("test_"):
            continue
        for _, named in guarded(source):
            for number in set(named) & guards.tests.keys():
                guards.tests[number][name] = guards.tests[number].get(name, 0) + 1
    return guards


def faults(guards: Guards) -> list[str]:
    """What must not be: sentences."""
    return [
        *(
            f"docs/{name} defines no {what}"
            for name, what, letter in _TABLES
            if not any(n[0] == letter for n in guards.tests)
        ),
        *(f"no test names {number}" for number, found in guards.tests.items() if not found),
        *(f"{place} is defined neither in docs/design.md nor in docs/pitfalls.md" for place in guards.unknown),
    ]


def unproved(document: str) -> list[str]:
    """The checks of docs/security.md that no test shows: sentences."""
    rows = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", document, re.MULTILINE)]
    claims = [(row[0].strip(), row[-1].strip()) for row in rows if not set(row[0].strip()) <= {"-"}]
    claims = [(claim, test) for claim, test in claims if claim != "what is checked"]
    if not claims:
        return ["docs/security.md has no checks"]
    return [
        f"docs/security.md: no test shows that {claim}"
        for claim, test in claims
        if not re.fullmatch(r"`tests/[\w/.]+\.py(::\w+)*`", test)
    ]


def main() -> int:
    """Print the invariants and pitfalls with their tests; 1 when something is missing on either side."""
    root = Path(__file__).resolve().parent.parent
    known: dict[str, str] = {}
    for name, _, letter in _TABLES:
        known |= {n: text for n, text in defined((root / "docs" / name).read_text()).items() if n[0] == letter}
    files = {str(path.relative_to(root / "tests")): path.read_text() for path in sorted((root / "tests").rglob("*.py"))}
    guards = collect(files, known)
    for number, what in known.items():
        found = guards.tests[number]
        print(f"{number:4}{sum(found.values()):4} tests  {what}")
        if number[0] == "I":
            places = (f"{name.removesuffix('.py')} ({count})" for name, count in found.items())
            print(textwrap.fill(", ".join(places), 116, initial_indent=" " * 15, subsequent_indent=" " * 15))
    found_faults = faults(guards) + unproved((root / "docs" / "security.md").read_text())
    for fault in found_faults:
        print(fault, file=sys.stderr)
    return 1 if found_faults else 0


if __name__ == "__main__":
    sys.exit(main())
