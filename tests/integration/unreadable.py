"""Tables whose definition cannot be read."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.damage import unchecked_documents
from tests.homes import Home
from tiering.catalog import tables
from tiering.config.reading import load
from tiering.engine.store import Store


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """A machine with d.t, which has two versions, and d.u."""
    return begun(Home(tmp_path, "a", capsys))


def begun(home: Home) -> Home:
    for number, table in enumerate(("d.t", "d.u"), 1):
        home.create(table)
        home.insert(number, table=table)
    home("table", "alter", "d.t", "--setting", "deduplication_window=7")
    return home


def spoil(home: Home) -> None:
    """Give d.t a third version that nobody can read, as versions without bounds wrote it."""
    with Store.open(load(home.configuration)) as store:
        old = store.definition("d.t")
        settings = msgspec.structs.replace(old.settings, deduplication_window=10**20)
        with unchecked_documents(), mock.patch.object(tables, "check_change"):
            store.alter_table(old, msgspec.structs.replace(old, settings=settings))
