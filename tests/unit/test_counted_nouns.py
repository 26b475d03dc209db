"""A number and its noun agree: messages count with `counted`, which says `1 part` and `2 parts`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("tiering", "restore", "backup", "zerocopy", "spark_tiering", "tui")
_VERBS = {"names", "moves", "merges", "copies", "marks", "uses", "columns", "lacks", "entries", "backups"}
"""Words that stand behind a name, too."""


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            yield path.relative_to(_ROOT), ast.parse(path.read_text())


def _is_counted(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "counted"


def _nouns(trees: list[tuple[Path, ast.Module]]) -> set[str]:
    """The plurals that `counted` is asked for."""
    found = set()
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_counted(node):
                words = [str(one.value) for one in node.args[1:] if isinstance(one, ast.Constant)]
                found |= {words[-1] if len(words) > 1 else f"{words[0]}s"} if words else set()
    return {noun for noun in found if noun.isalpha()} - _VERBS


def _uncounted(tree: ast.Module, nouns: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            word = re.match(r" ([a-z]+)\b", str(text.value))
            expression = value.value
            if word is None or word[1] not in nouns or isinstance(expression, ast.Constant):
                continue
            if value.format_spec is not None and ast.unparse(value.format_spec)[-2] in "fg":
                continue
            # A constant of the code, in capitals, is more than one.
            if getattr(expression, "id", "").isupper() or getattr(expression, "id", "").startswith("_"):
                continue
            yield value.lineno, ast.unparse(node)


def test_numbers_and_nouns_agree() -> None:
    trees = list(_trees())
    nouns = _nouns(trees)
    assert {"parts", "rows", "objects", "policies"} <= nouns
    wrong = [f"{path}:{line}: {text[:120]}" for path, tree in trees for line, text in _uncounted(tree, nouns)]
    assert wrong == []
