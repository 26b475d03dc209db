"""A disk with marks, and what the verbs say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from oplog.kinds import Inserted
from tests.homes import Home
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.keeper.client import Keeper
from zerocopy.marks import census
from zerocopy.marks.nodes import ROOT, StoreNodes


class Marked(Home):
    """A machine whose cold disk has a log of its own, and that knows Keeper."""

    def know(self, settings: KeeperConfig, **more: Any) -> None:
        document = yaml.safe_load(self.configuration.read_text())
        document["keeper"] = {"hosts": list(settings.hosts), "root": settings.root, **more}
        self.configuration.write_text(yaml.safe_dump(document))

    def named(self) -> dict[str, set[str]]:
        """Set -> the directories in which this machine's log names objects of it."""
        found: dict[str, set[str]] = {}
        with Store.open(self.configuration) as store:
            for info in store.disk("s3").walk():
                if info.key is not None:
                    assert info.blob_set is not None
                    found.setdefault(info.blob_set, set()).add(info.path.rpartition("/")[0])
        return found


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: KeeperConfig, keeper: Keeper) -> Marked:
    made = Marked(tmp_path, "a", capsys, log="a")
    made.know(settings)
    made.create()
    return made


def marked(keeper: Keeper) -> dict[str, set[str]]:
    """Set -> the directories for which there is a mark; sets without one are left out."""
    if not keeper.exists(ROOT):
        return {}
    (store,) = keeper.children(ROOT)
    nodes = StoreNodes(store)
    names = [one.name for one in census.sets(keeper, nodes)]
    held = census.holders(keeper, nodes, names)
    return {name: {one.directory for one in holders} for name, holders in held if holders}


def listed(keeper: Keeper) -> set[str]:
    (store,) = keeper.children(ROOT)
    return {key for one in census.sets(keeper, StoreNodes(store)) for key in one.keys}


def disk_transaction(store: Store) -> Any:
    return store.disk("s3").transaction(Inserted(), actor="test")
