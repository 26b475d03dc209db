"""Two at once insert the same data: it goes in once, or where nobody can know, it is reported (I1, I13)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from tiering.catalog.new_parts import repeated
from tiering.cli.main import run
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.insert import insert as inserting
from tiering.insert.insert import InsertResult
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table

ROWS = pa.table({"k": list(range(100)), "p": [number % 3 for number in range(100)]})


def machine(tmp_path: Path, name: str) -> Config:
    config = embedded(tmp_path / name)
    shared = ObjectDiskConfig(url=(tmp_path / "bucket").as_uri() + "/")
    return msgspec.structs.replace(config, disks={**config.disks, "s3": shared})


def create(store: Store) -> None:
    store.create_table(
        define_table("d.t", columns=["k:int64", "p:int64"], order_by="k", partition_by="identity(p)", policy="hot_cold")
    )


def both_at_once(configs: list[Config], monkeypatch: pytest.MonkeyPatch) -> list[InsertResult]:
    """Each knows what was there, and has written its parts, before either commits."""
    written = threading.Barrier(len(configs), timeout=60)
    original: Callable[..., Any] = inserting._all_results

    def meet(futures: Any) -> Any:
        results = original(futures)
        written.wait()
        return results

    monkeypatch.setattr(inserting, "_all_results", meet)

    def work(config: Config) -> InsertResult:
        with Store.open(config) as store:
            return store.table("d.t").insert(ROWS.to_batches())

    with ThreadPoolExecutor(len(configs)) as pool:
        return list(pool.map(work, configs))


def test_two_processes_insert_the_same_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = machine(tmp_path, "a")
    with Store.open(config) as store:
        create(store)
    results = both_at_once([config, config], monkeypatch)
    assert sorted((result.rows, result.duplicates, result.duplicate_rows) for result in results) == [
        (0, 3, 100),
        (100, 0, 0),
    ]
    with Store.open(config) as store:
        assert len(store.parts()) == 3
        assert store.query("SELECT count(*) AS n FROM d.t").read_all().to_pylist() == [{"n": 100}]
        assert not store.context.journal.claimed(store.definition("d.t").uuid)


def test_the_second_goes_in_when_the_first_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped is only what is there: a block whose other writer did not commit is written."""
    config = machine(tmp_path, "a")
    with Store.open(config) as store:
        create(store)
    failed = threading.Event()
    original = inserting.Inserting._commit

    def commit(self: Any, *arguments: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise inserting.FrostlineError("the first one fails")
        original(self, *arguments)

    monkeypatch.setattr(inserting.Inserting, "_commit", commit)
    with pytest.raises(inserting.FrostlineError, match="the first one fails"):
        both_at_once([config, config], monkeypatch)
    with Store.open(config) as store:
        assert store.query("SELECT count(*) AS n FROM d.t").read_all().to_pylist() == [{"n": 100}]


def test_two_machines_cannot_know_and_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [machine(tmp_path, "a"), machine(tmp_path, "b")]
    with Store.open(configs[0]) as store:
        create(store)
    with Store.open(configs[1]):
        pass
    results = both_at_once(configs, monkeypatch)
    assert [result.rows for result in results] == [100, 100]
    for config in configs:
        with Store.open(config) as store:
            for partition in {stored.name.partition for stored in store.parts() if stored.disk == "ssd"}:
                store.apply(store.plan_manual_move("d.t", partition=partition, to_disk="s3"))
    with Store.open(configs[0]) as store:
        found = repeated(store.parts())
        assert len(found) == 3
        assert all(one.part.digests == other.part.digests for one, other in found)
        assert all(one.name.partition == other.name.partition for one, other in found)


def test_status_names_what_two_machines_inserted_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    test_two_machines_cannot_know_and_it_is_reported(tmp_path, monkeypatch)
    path = tmp_path / "frostline.yaml"
    path.write_text(json.dumps(msgspec.to_builtins(machine(tmp_path, "a"))))
    assert run(["-c", str(path), "--json", "status"]) == 0
    found = json.loads(capfd.readouterr().out)["repeated"]
    assert [item["table"] for item in found] == ["d.t"] * 3
    assert run(["-c", str(path), "status"]) == 0
    assert capfd.readouterr().out.count("two machines inserted the same data") == 3


def test_an_insert_that_is_alone_does_not_look_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking costs a listing of all parts; whether anybody else was there, the journal knows for nothing."""
    looks: list[set[str]] = []
    monkeypatch.setattr(inserting.Inserting, "_learn", lambda self, partitions: looks.append(partitions))
    with Store.open(machine(tmp_path, "a")) as store, Store.open(machine(tmp_path, "a")) as other:
        create(store)
        store.table("d.t").insert(ROWS.to_batches())
        for number in range(3):
            store.table("d.t").insert(pa.table({"k": [1000 + number], "p": [1]}).to_batches())
        store.merge("d.t", MergeRequest(final=True))
        store.table("d.t").insert(ROWS.slice(10).to_batches())
        assert not looks
        original = inserting._all_results

        def meet(futures: Any) -> Any:
            monkeypatch.setattr(inserting, "_all_results", original)
            other.refresh()
            other.table("d.t").insert(pa.table({"k": [5000], "p": [2]}).to_batches())
            return original(futures)

        monkeypatch.setattr(inserting, "_all_results", meet)
        store.table("d.t").insert(pa.table({"k": [6000], "p": [2]}).to_batches())
        assert len(looks) == 2, "both met the other: one under way, one that came and went"
