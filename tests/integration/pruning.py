"""A repository of backups whose time goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.garbage.rules import GcRules
from tests.backups import TABLE, Machine, events, insert, machine_on, move
from tests.servers import Server

ALL = GcRules(delete=True, max_delete_fraction=1.0)


def grown(machine: Machine) -> Machine:
    """A table with a part on the SSD and one in the bucket, and a repository."""
    with machine.open() as store:
        store.create_table(events())
        insert(store, 0, months=(1,))
        insert(store, 1000, months=(2,))
        move(store, "cold", "202601")
    machine.init()
    return machine


@pytest.fixture(params=["directory", "s3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    server: Server | None = request.getfixturevalue("ministack") if request.param == "s3" else None
    return grown(machine_on(tmp_path, server))


def later(days: float = 1.5) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def change(machine: Machine, key: int) -> None:
    """What the next backup has and none before: the parts of both months take the place of others."""
    with machine.open() as store:
        store.drop_table(TABLE)
        store.create_table(events(key))
        insert(store, key, months=(1,))
        insert(store, key + 500, months=(2,))
        move(store, "cold", "202601")
