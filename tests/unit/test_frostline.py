"""The public module: it names what exists, costs little to import, and is in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import frostline
from oplog import errors

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", frostline.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(frostline, name).__doc__
    assert name in dir(frostline)


def test_what_it_does_not_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Catalog'"):
        frostline.Catalog  # noqa: B018 - looking is what is tried


def test_every_error_is_named() -> None:
    known = {name for name, value in vars(errors).items() if isinstance(value, type)}
    known = {name for name in known if issubclass(getattr(errors, name), errors.FrostlineError)}
    assert known <= set(frostline.__all__)
    assert all(getattr(frostline, name) is getattr(errors, name) for name in known)


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, frostline; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "frostline" in loaded.split()
    heavy = {"pyarrow", "boto3", "botocore", "duckdb", "polars", "numpy", "msgspec", "tiering", "backup", "rich"}
    assert heavy & set(loaded.split()) == set()


def test_the_wheel_has_it(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    assert {"frostline.py", "tiering/engine/store.py", "backup/repository.py"} <= set(names)
    static = (ROOT / "tui" / "serving" / "static").iterdir()
    assert {"tui/style.tcss", *(str(path.relative_to(ROOT)) for path in static)} <= set(names)
