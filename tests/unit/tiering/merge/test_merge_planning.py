"""Why nothing is merged: each partition that stays as it is has a reason that names the obstacle."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from tests.unit.tiering.merge.parts import MIB, NOW, part
from tiering.cli.main import run
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.merge.selection import explain_rest
from tiering.policy.plan import Reason
from tiering.table.definitions import define_table
from tiering.table.schema import TableSettings


def reason(parts: list[object], **options: object) -> Reason:
    rules: dict[str, object] = {"why_not": lambda stored: None, "why_apart": lambda left, right: None, **options}
    (stay,) = explain_rest(parts, TableSettings(), NOW, **rules)  # type: ignore[arg-type]
    assert stay.parts == len(parts)
    return stay.reason


def test_one_part_has_no_company() -> None:
    assert reason([part(1, MIB)]).kind == "single"


def test_parts_that_are_not_worth_it_say_by_how_much() -> None:
    found = reason([part(1, 100 * MIB), part(2, MIB)])
    assert found.kind == "not_worth"
    assert "1.0 times their largest; 5.0 times is asked" in found.detail


def test_two_parts_that_are_too_large() -> None:
    assert reason([part(1, 3 * MIB), part(2, 3 * MIB)], max_size_bytes=4 * MIB).kind == "too_large"


def test_an_obstacle_counts_only_when_no_two_parts_lack_it() -> None:
    parts = [part(1, MIB), part(2, MIB), part(3, MIB)]
    busy = Reason("busy", "a move works on it")
    assert reason(parts, why_not=lambda stored: busy if stored.name.min_block == 2 else None) == busy
    assert reason(parts, why_not=lambda stored: busy if stored.name.min_block == 3 else None).kind == "not_worth"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    shared = ObjectDiskConfig(url=(tmp_path / "bucket").as_uri() + "/")
    config = embedded(tmp_path / "a")
    policies = json.loads(msgspec.json.encode(config.policies))
    policies["hot_cold"]["volumes"][1]["prefer_not_to_merge"] = False
    policies["resting"] = msgspec.to_builtins(config.policies["hot_cold"])
    made = msgspec.structs.replace(config, disks={**config.disks, "s3": shared})
    return msgspec.convert({**msgspec.to_builtins(made), "policies": policies}, Config)


def fill(config: Config, policy: str = "hot_cold", *, cold: str = "") -> None:
    with Store.open(config) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy=policy))
        for number in range(4):
            store.table("d.t").insert(pa.table({"k": [number]}).to_batches())
        names = [stored.part.name for stored in store.parts()]
        for name in names if cold == "all" else names[1::2] if cold else []:
            store.apply(store.plan_manual_move("d.t", part=name, to_disk="s3"))


def why(config: Config) -> Reason:
    with Store.open(config) as store:
        assert store.plan_merges("d.t", MergeRequest(final=True)) == []
        (stay,) = store.explain_merges("d.t", [], MergeRequest())
        return stay.reason


def test_parts_on_several_volumes(config: Config) -> None:
    fill(config, cold="some")
    assert why(config).kind == "volumes"


def test_a_volume_that_prefers_not_to_merge(config: Config) -> None:
    fill(config, "resting", cold="all")
    assert why(config) == Reason("resting", "merges are disabled on volume cold")


def test_parts_of_a_machine_that_is_gone(config: Config, tmp_path: Path) -> None:
    """What was between them may lie on its disk: that is said, with the block numbers (P40)."""
    fill(config, cold="all")
    with Store.open(config) as store:
        (name,) = [stored.part.name for stored in store.parts() if "_2_2_" in stored.part.name]
        store.apply(store.plan_manual_move("d.t", part=name, to_disk="ssd"))
        (name,) = [stored.part.name for stored in store.parts() if "_4_4_" in stored.part.name]
        store.apply(store.plan_manual_move("d.t", part=name, to_disk="ssd"))
    shutil.rmtree(tmp_path / "a")
    found = why(config)
    assert found.kind == "foreign_gap"
    assert "blocks 2 to 2" in found.detail


def test_the_command_says_it(config: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill(config, "resting", cold="all")
    path = tmp_path / "frostline.yaml"
    path.write_text(json.dumps(msgspec.to_builtins(config)))
    for arguments in (["merge", "d.t"], ["-n", "merge", "d.t", "--final"]):
        assert run(["-c", str(path), *arguments]) == 0
        assert "1 partition (all): merges are disabled" in capfd.readouterr().err
    assert run(["-c", str(path), "--json", "merge", "d.t"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["not_merged"] == [
        {"partition": "all", "parts": 4, "reason": {"kind": "resting", "detail": "merges are disabled on volume cold"}}
    ]


def test_age_lowers_what_is_asked() -> None:
    old = NOW - timedelta(days=30)
    parts = [part(1, 100 * MIB, created=old), part(2, MIB, created=old)]
    assert "1.0 times their largest; 1." in reason(parts).detail
    assert old < datetime.now(UTC)
