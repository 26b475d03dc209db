"""Imports point down and never in a circle, also those that the contracts of `pyproject.toml` do not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.imports import circles, folders, imports, upward_names

REPOSITORY = Path(__file__).parents[2]
SOURCES = {
    "pyproject.toml": """
[[tool.importlinter.contracts]]
name = "packages"
layers = ["high | other", "tiering"]

[[tool.importlinter.contracts]]
name = "folders"
containers = ["tiering"]
layers = ["verbs", "table | log"]
""",
    "frostline.py": 'import importlib\nvalue = importlib.import_module("high.top")\n',
    "high/__init__.py": "",
    "high/top.py": "from tiering.table import rows\nfrom tiering import plugins\n",
    "high/below.py": 'PLACE = "tiering.table.rows"\n',
    "other/__init__.py": "",
    "other/beside.py": "",
    "tiering/__init__.py": "",
    "tiering/plugins.py": 'from importlib import import_module\nTOP = import_module("high.top")\n',
    "tiering/verbs/__init__.py": "",
    "tiering/verbs/show.py": '"""high.top is named in a sentence."""\nfrom tiering.table import rows\n',
    "tiering/table/__init__.py": "",
    "tiering/table/rows.py": "NAMES = ('high.json', 'high', 'rows.top')\n",
    "tiering/log/__init__.py": "",
    "tiering/log/entries.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_no_modules_and_no_folders_import_in_a_circle() -> None:
    found = imports(REPOSITORY)
    assert len(found) > 700
    assert circles(found) == []
    assert circles(folders(found)) == []


def test_only_the_table_of_plugs_names_what_stands_above() -> None:
    assert upward_names(REPOSITORY) == []


def test_what_may_be_is_not_found(root: Path) -> None:
    assert circles(imports(root)) == circles(folders(imports(root))) == upward_names(root) == []


@pytest.mark.parametrize(
    "line",
    [
        "from high import top",
        "import high.top",
        "def f():\n    from high.top import value",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from high.top import value",
    ],
)
def test_a_circle_is_found_wherever_its_imports_stand(root: Path, line: str) -> None:
    (root / "tiering/table/rows.py").write_text(line)
    assert circles(imports(root)) == [["high.top", "tiering.table.rows"]]
    assert circles(folders(imports(root))) == [["high", "tiering"], ["high.top", "tiering.table"]]


def test_a_longer_circle_is_found_between_folders_alone(root: Path) -> None:
    (root / "tiering/log/entries.py").write_text("from tiering.verbs import show")
    (root / "tiering/table/schema.py").write_text("from tiering.log import entries")
    assert circles(imports(root)) == []
    assert circles(folders(imports(root))) == [["tiering.log", "tiering.table", "tiering.verbs"]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('TOP = "high.top"', "names high.top, which stands above"),
        ('TOP = "high.top:function"', "names high.top, which stands above"),
        ('TOP = "high.top.function"', "names high.top, which stands above"),
        ('def f(name):\n    return f"high.top.{name}"', "names high.top, which stands above"),
        ('TOP = {"tiering.verbs.show": ("show",)}', "names tiering.verbs.show, which stands above"),
        ('TOP = "tiering.log.entries"', "names tiering.log.entries, which stands above"),
        ("from importlib import import_module as load\nload", "imports by name: import_module"),
        ("import importlib\ndef f(name):\n    importlib.import_module(name)", "imports by name: import_module"),
        ('TOP = __import__("high")', "imports by name: __import__"),
        ('import pkgutil\nTOP = pkgutil.resolve_name("hi" "gh.top")', "imports by name: resolve_name"),
    ],
)
def test_an_import_by_text_is_found(root: Path, line: str, found: str) -> None:
    (root / "tiering/table/rows.py").write_text(line)
    assert any(found in one and one.startswith("tiering/table/rows.py:") for one in upward_names(root))
