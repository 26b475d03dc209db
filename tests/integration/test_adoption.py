"""Parts of a machine that is gone are rewritten as this machine's own: no row is lost or doubled, gone or not
(I1, I2, I13, P40)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from oplog.errors import Conflict
from tests.homes import Home
from tiering.catalog import tables
from tiering.cli.main import run
from tiering.config.settings import Config, PolicyConfig, VolumeConfig, embedded
from tiering.engine.store import Store
from tiering.merge import merger
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table


def machine(tmp_path: Path, name: str) -> Config:
    """A machine of its own; the bucket is shared, and parts in it may be merged."""
    config = embedded(tmp_path / name)
    shared = ObjectDiskConfig(url=(tmp_path / "bucket").as_uri() + "/")
    volumes = (VolumeConfig(name="hot", disks=("ssd",)), VolumeConfig(name="cold", disks=("s3",)))
    policies = {"hot_cold": PolicyConfig(volumes=volumes)}
    return msgspec.structs.replace(config, disks={**config.disks, "s3": shared}, policies=policies)


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Config, Config]:
    """Machine a inserted 1 to 5; 1, 3 and 5 are in the bucket, 2 and 4 on its SSD. Machine b has inserted nothing."""
    first, second = machine(tmp_path, "a"), machine(tmp_path, "b")
    with Store.open(first) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        for number in range(1, 6):
            store.table("d.t").insert(pa.table({"k": [number]}).to_batches())
        for number in (1, 3, 5):
            to_bucket(store, number)
    return first, second


def to_bucket(store: Store, number: int) -> None:
    report = store.apply(store.plan_manual_move("d.t", part=f"all_{number}_{number}_0", to_disk="s3"))
    assert not report.failed
    store.refresh()


def keys(store: Store) -> list[int]:
    store.refresh()
    return sorted(store.query("SELECT k FROM d.t").read_all().column("k").to_pylist())


def test_parts_of_a_machine_that_is_gone_become_one(configs: tuple[Config, Config], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "a")
    with Store.open(configs[0]) as store:
        assert store.merge("d.t", MergeRequest(final=True)) == []
        (plan,) = store.plan_adoptions("d.t", MergeRequest())
        assert [stored.part.name for stored in plan.parts] == ["all_1_1_0", "all_3_3_0", "all_5_5_0"]
        store.merge("d.t", MergeRequest(final=True, adopt=True))
        (stored,) = store.parts()
        assert stored.disk == "s3"
        assert stored.name.min_block > 1_000_000
        assert stored.part.replaces == ("all_1_1_0", "all_3_3_0", "all_5_5_0")
        assert keys(store) == [1, 3, 5]
        assert store.plan_adoptions("d.t", MergeRequest()) == []
        for number in (7, 8):
            store.table("d.t").insert(pa.table({"k": [number]}).to_batches())
        store.table("d.t").insert(pa.table({"k": [3]}).to_batches())  # a repeat of what the lost machine inserted
        store.merge("d.t", MergeRequest(final=True))
        assert keys(store) == [1, 3, 5, 7, 8]
    with Store.open(configs[0]) as store:
        assert not store.recovered


def test_a_machine_that_is_not_gone_keeps_all_its_rows(configs: tuple[Config, Config]) -> None:
    """What it has on its SSD lies between the replaced parts, and is not covered by the new one."""
    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        b.merge("d.t", MergeRequest(adopt=True))
        assert keys(b) == [1, 3, 5]
        assert keys(a) == [1, 2, 3, 4, 5]
        for number in (2, 4):
            to_bucket(a, number)
        assert keys(a) == keys(b) == [1, 2, 3, 4, 5]
        b.merge("d.t", MergeRequest(adopt=True))
        b.merge("d.t", MergeRequest(final=True))
        assert len(b.parts()) == 1
        assert keys(a) == keys(b) == [1, 2, 3, 4, 5]
    with Store.open(configs[0]) as a:
        assert keys(a) == [1, 2, 3, 4, 5]


def test_a_copy_that_a_crash_left_elsewhere_counts_no_more(configs: tuple[Config, Config], tmp_path: Path) -> None:
    """Machine a died between the two commits of a move; b adopted the part meanwhile."""
    with Store.open(configs[0]) as a:
        directory = next(stored.directory for stored in a.parts() if stored.part.name == "all_2_2_0")
        shutil.copytree(tmp_path / "a" / "ssd" / directory, tmp_path / "left")
        to_bucket(a, 2)
        shutil.copytree(tmp_path / "left", tmp_path / "a" / "ssd" / directory)
    with Store.open(configs[1]) as b:
        b.merge("d.t", MergeRequest(adopt=True))
        assert keys(b) == [1, 2, 3, 5]
        with Store.open(configs[0], recover=False) as a:
            assert keys(a) == [1, 2, 3, 4, 5]
        with Store.open(configs[0]) as a:
            assert any("all_2_2_0" in sentence for sentence in a.recovered)
            assert keys(a) == [1, 2, 3, 4, 5]
            assert not (tmp_path / "a" / "ssd" / directory).exists()
        b.refresh()
        tables.drop_parts(b.context, b.parts(), reason="test")
        assert keys(b) == []


def test_one_of_two_machines_that_change_parts_gets_a_conflict(
    configs: tuple[Config, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both change the same parts."""
    with Store.open(configs[0]) as a, Store.open(configs[1]) as b:
        original = merger.check_counts

        def meanwhile(*arguments: Any, **counts: Any) -> None:
            monkeypatch.undo()
            a.refresh()
            a.apply(a.plan_manual_move("d.t", part="all_3_3_0", to_disk="ssd"))
            original(*arguments, **counts)

        monkeypatch.setattr(merger, "check_counts", meanwhile)
        with pytest.raises(Conflict):
            b.merge("d.t", MergeRequest(adopt=True))
        assert keys(a) == [1, 2, 3, 4, 5]
        b.refresh()
        b.merge("d.t", MergeRequest(adopt=True))
        assert keys(b) == [1, 5]
        assert keys(a) == [1, 2, 3, 4, 5]


def test_the_command_adopts_and_shows_it_first(
    configs: tuple[Config, Config], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frostline.yaml"
    path.write_text(json.dumps(msgspec.to_builtins(configs[1])))
    assert run(["-c", str(path), "merge", "d.t"]) == 0
    assert "'merge --adopt' rewrites them" in capfd.readouterr().err
    assert run(["-c", str(path), "--json", "-n", "merge", "d.t", "--adopt"]) == 0
    (planned,) = json.loads(capfd.readouterr().out)["merges"]
    assert planned["inputs"] == ["all_1_1_0", "all_3_3_0", "all_5_5_0"]
    assert run(["-c", str(path), "--json", "merge", "d.t", "--adopt"]) == 0
    (done,) = json.loads(capfd.readouterr().out)["merges"]
    assert (done["inputs"], done["rows_out"]) == (planned["inputs"], 3)


@pytest.mark.parametrize("mode", [("--final",), ("--cold", "--min-inputs", "3")])
def test_a_partition_that_fails_keeps_no_other_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: tuple[str, ...]
) -> None:
    """Each that fails is named, and the end is that of a merge (3). Where all fail it is the error of the first."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--partition-by", "k")
    a.insert(1, 2, 3)
    for partition in "123":
        before = set((tmp_path / "s3").glob("*-file-*"))
        a("move", "d.t", "--partition", partition, "--to-disk", "s3")
        if partition == "1":
            (damaged,) = set((tmp_path / "s3").glob("*-file-*")) - before
    data = bytearray(damaged.read_bytes())
    data[6] ^= 0xFF
    damaged.write_bytes(data)
    document = b.json("merge", "d.t", "--adopt", *mode, code=3)
    assert sorted(row["partition"] for row in document["merges"]) == ["2", "3"]
    (failed,) = document["failed"]
    assert (failed["partition"], failed["error"]["kind"]) == ("1", "damaged")
    assert "failed: 1 (1 part)" in b.error
    b("merge", "d.t", "--adopt", code=1)
    assert "data-0000.parquet" in b.error
