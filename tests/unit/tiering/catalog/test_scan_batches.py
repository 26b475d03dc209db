"""First scans of very many parts, some at a time: none is held, and the index is what the disks say (I1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from disks.local.disk import LocalDisk
from disks.workers.progress import Silent
from tests.crash.as_read import index_is_as_read
from tests.unit.tiering.catalog.histories import TABLE, cached_store, drop, insert, move
from tiering.catalog.freshness import Freshness
from tiering.catalog.index import scan
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.table.part import PART_FILE


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """Of a store with five parts of which nothing is kept."""
    with cached_store(tmp_path) as config:
        with Store.open(config) as store:
            insert(store, 3)
            insert(store, 41)
        forget(config)
        yield config


def forget(config: Config) -> None:
    for file in config.state_directory.glob("catalog.db*"):
        file.unlink()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts on the SSD whose `part.json` were read, in their order."""
    seen: list[str] = []
    look_over = LocalDisk.look_over

    def looked(self: LocalDisk, *arguments: object) -> object:
        found = look_over(self, *arguments)  # type: ignore[arg-type]
        if arguments[1] == PART_FILE:
            seen.extend(file.path.split("/")[-2] for file in found if file.data is not None)
        return found

    monkeypatch.setattr(LocalDisk, "look_over", looked)
    return seen


def before_batch(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Once, before that batch is looked at."""
    batches, waiting = scan._batches, [act]

    def interrupted(names: Sequence[str]) -> Iterator[tuple[Sequence[str], str, str]]:
        for index, batch in enumerate(batches(names)):
            if index == number and waiting:
                waiting.pop()()
            yield batch

    monkeypatch.setattr(scan, "_batches", interrupted)


def test_all_is_kept_and_nothing_held(config: Config, read: list[str]) -> None:
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert len(read) == 5
        table = store.context.catalog._now.parts[store.definition(TABLE).uuid]
        assert table._everything is None
        assert [*index_is_as_read(store)] == []
        assert sum(stored.facts.rows for stored in store.parts(TABLE)) == 5
        read.clear()
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert read == []
        assert [*index_is_as_read(store)] == []


def test_who_looks_at_all_parts_has_them_afterwards(config: Config, read: list[str]) -> None:
    with Store.open(config) as store:
        assert len(read) == 5
        assert len(store.parts(TABLE)) == 5
        assert [*index_is_as_read(store)] == []


def test_what_one_that_was_killed_has_kept_is_not_read_again(
    config: Config, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    before_batch(monkeypatch, 1, killed)
    with pytest.raises(KeyboardInterrupt):
        Store.open(config, freshness=Freshness.CHANGES)
    assert len(read) == 2
    with Store.open(config, freshness=Freshness.CHANGES) as store:
        assert len(read) == 5
        assert [*index_is_as_read(store)] == []


@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(3))
def test_what_is_committed_between_two_batches_is_seen(
    config: Config, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Also if commits did not wait for the look."""
    with Store.open(config) as acting:
        forget(config)

        def act() -> None:
            insert(acting, 2)
            drop(acting)
            move(acting, "cold")

        before_batch(monkeypatch, number, act)
        monkeypatch.setattr(LocalDisk, "steady", lambda self: nullcontext())
        with Store.open(config, freshness=Freshness.CHANGES):
            pass
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            assert [*index_is_as_read(store)] == []


def test_parts_that_replace_others_are_found_batch_by_batch(config: Config, tmp_path: Path) -> None:
    """Where no part is held while it is found out."""
    with Store.open(config) as store:
        directory = tmp_path / "ssd" / store.parts(TABLE)[0].directory
        aside = tmp_path / "aside"
        aside.mkdir()
        for file in directory.iterdir():
            (aside / file.name).write_bytes(file.read_bytes())
        move(store, "cold")
        aside.rename(directory)
        forget(config)
        assert [*index_is_as_read(store)] == []
        store.refresh()
        assert store.context.catalog.has_inactive(store.definition(TABLE))


def test_it_shows_how_far_it_is(config: Config) -> None:
    shown: list[Any] = []

    class Shown(Silent):
        def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Shown:
            shown.append((title, items))
            return self

        def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
            shown.append(items)

    for _ in range(2):
        with Store.open(config, freshness=Freshness.CHANGES, progress=Shown()):
            pass
    (title, items), *steps = shown
    assert f"parts of {TABLE} on ssd" in title
    assert [items, *steps] == [5, 2, 2, 1]
