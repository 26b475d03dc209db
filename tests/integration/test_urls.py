"""`frostline://` for fsspec: pandas reads a table by its URL, of all tiers; older definitions are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import fsspec
import pandas
import pytest

import frostline
from tests.homes import Home
from tiering.engine.store_files import StoreFiles

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Home]:
    """As an installed package has it: fsspec knows the entry point."""
    fsspec.register_implementation("frostline", StoreFiles, clobber=True)
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(*range(100))
    home.to_bucket()
    home.insert(*range(100, 150))
    yield home
    StoreFiles.clear_instance_cache()


def _read(home: Home, url: str = "frostline://d.t") -> pandas.DataFrame:
    return pandas.read_parquet(url, storage_options={"config": str(home.configuration)})


def test_the_package_names_it() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        named = tomllib.load(file)["project"]["entry-points"]["fsspec.specs"]["frostline"]
    module, _, name = named.partition(":")
    assert getattr(import_module(module), name) is StoreFiles


def test_a_table_is_read_by_its_url_and_looked_at_anew(home: Home) -> None:
    assert sorted(_read(home)["k"]) == list(range(150))
    home.insert(*range(150, 160))
    assert sorted(_read(home)["k"]) == list(range(160))
    files = fsspec.filesystem("frostline", config=str(home.configuration))
    assert [entry for entry in files.ls("frostline://", detail=False) if entry == "d.t"] == ["d.t"]
    (first, *_) = files.find("frostline://d.t")
    assert len(_read(home, f"frostline://{first}")) in (10, 50, 100)
    with pytest.raises(FileNotFoundError):
        _read(home, "frostline://d.none")


def test_parts_of_an_older_definition_are_refused(home: Home) -> None:
    """By the first file's columns the new one would be missing."""
    home("table", "alter", "d.t", "--add-column", "v:int64", "--default", "7")
    with pytest.raises(frostline.Refused, match="columns of an older definition"):
        _read(home)
