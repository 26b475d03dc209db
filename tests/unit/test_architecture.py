"""The diagrams of the packages show their imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.architecture import BEGIN, END, picture, with_picture

SOURCES = {
    "pyproject.toml": '[[tool.importlinter.contracts]]\nname = "down"\nlayers = ["high | other", "low"]\n',
    "high/__init__.py": '"""Above."""',
    "high/top.py": '"""Where it is called."""\ndef f():\n    from high.middle import thing\n    import low.bottom\n',
    "high/middle/__init__.py": '"""Half way: touches nothing."""',
    "high/middle/thing.py": '"""A thing."""\nfrom high.foot import value\nfrom low import bottom\n',
    "high/middle/room/__init__.py": '"""A room within."""',
    "high/foot.py": '"""The foot,\nin two | lines.\n\nAnd more."""\nvalue = 1\n',
    "other/__init__.py": '"""Beside it."""',
    "low/__init__.py": '"""Below."""',
    "low/bottom.py": '"""The bottom."""\nimport json\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def arrows(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if "-->" in line]


def test_arrows_are_the_imports_wherever_they_stand(root: Path) -> None:
    expected = ["high --> low", "high_middle --> high_foot", "high_top --> high_middle"]
    assert sorted(arrows(picture(root))) == expected


def test_a_longer_way_hides_its_short_cut_and_nothing_else(root: Path) -> None:
    (root / "high/top.py").write_text("import high.middle.thing\nimport high.foot\n")
    assert "high_top --> high_foot" not in picture(root)
    (root / "high/middle/thing.py").write_text("")
    assert "high_top --> high_foot" in picture(root)


def test_each_folder_has_the_first_clause_of_its_docstring(root: Path) -> None:
    shown = picture(root)
    assert "| `high/middle/` | Half way: touches nothing |" in shown
    assert "| `high/middle/room/` | A room within |" in shown
    assert r"| `high/foot.py` | The foot, in two \| lines |" in shown
    assert "thing.py" not in shown


def test_what_people_wrote_stays(root: Path) -> None:
    page = f"# Title\n\n{BEGIN}old\n{END}The end.\n"
    drawn = with_picture(page, root)
    assert drawn.startswith(f"# Title\n\n{BEGIN}")
    assert drawn.endswith(f"{END}The end.\n")
    assert "old" not in drawn
    assert with_picture(drawn, root) == drawn
