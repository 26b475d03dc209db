"""Help, messages and pages use standard English: none of the odd words of `ODD`.

Messages are the texts of the product that are no docstrings; help is what `docs/reference/cli.md` shows. Docstrings are
not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("oplog", "disks", "tiering", "restore", "backup", "zerocopy", "spark_tiering", "tui")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")

ODD = {
    "again, from scratch": r"(?<!--)\banew\b",
    "anyone who": r"\bwhoever\b",
    "reports, shows": r"\b(?:is|are|was|were|been|being) told\b",
    "with a message": r"\bin words\b",
    "manually": r"\bby hand\b",
    "unchanged": r"\bas (?:it|they) (?:is|are)\b(?= *(?:$|[;,.]|and\b))",
    "is stored, is": r"\b(?:lies|lay|lie) (?:on|in|at|within|there|elsewhere|between|beside|outside|below)\b",
    "ignores": r"\bheeds?\b",
    "fix": r"\bmend(?:s|ed|ing)?\b",
    "check": r"\blook at (?:it|what)\b",
    "no longer": r"\bno more\b(?! than)(?=[.;,]|$)",
    "depends on": r"\bgo(?:es)? by (?:it|the)\b",
}
"""What to write instead -> what not to write."""
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in ODD.values()), re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")


def odd_words(text: str) -> list[str]:
    """The odd words of a text, in their order."""
    return [match[0] for match in _ANY.finditer(text)]


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every literal of several words that is no docstring. What f-strings insert is `…`."""
    module = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left_out.update(id(value) for value in node.values)
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            text = node.value
        else:
            continue
        if " " in text:
            yield node.lineno, text


def product() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def pages() -> list[Path]:
    return [path for name in PAGES for path in sorted([ROOT / name, *(ROOT / name).rglob("*.md")]) if path.is_file()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("create the file anew", ["anew"]),
        ("whoever asked is gone", ["whoever"]),
        ("the user is told, in words", ["is told", "in words"]),
        ("files lie on disk s3; the part lies in a bucket", ["lie on", "lies in"]),
        ("remove it by hand; it stays as it is", ["by hand", "as it is"]),
        ("gc heeds it no more", ["heeds", "no more"]),
        ("mend the line", ["mend"]),
        ("create the file again", []),
        ("files are on disk s3; as it is written", []),
        ("merge no more than ten parts", []),
    ],
)
def test_an_odd_word_is_seen(text: str, found: list[str]) -> None:
    assert odd_words(text) == found


def test_messages_are_literals_without_docstrings() -> None:
    source = """'It is told.'
class Error:
    'Lies there.'
    hint = f"look at {1}, or " "mend it"
    code = "mend"
"""
    assert list(messages(source)) == [(4, "look at …, or mend it")]


def test_messages_use_standard_words() -> None:
    count = 0
    for path in product():
        for line, text in messages(path.read_text()):
            count += 1
            assert odd_words(text) == [], f"{path.relative_to(ROOT)}:{line}: {text!r}"
    assert count > 3000


def test_pages_use_standard_words() -> None:
    checked = pages()
    assert len(checked) > 30
    for path in checked:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert odd_words(_CODE.sub("", line)) == [], f"{path.relative_to(ROOT)}:{number}: {line}"
