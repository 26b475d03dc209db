"""One word, one meaning: a public class of the product has its name for itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("oplog", "disks", "tiering", "restore", "backup", "zerocopy", "spark_tiering", "tui")


def test_no_two_public_classes_have_one_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(REPOSITORY)))
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
