"""`cost` on a real store: what lies where, what moves did cost, what a plan and another policy would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.command_line import Frostline

PUT, GET, DOWN = 3.0, 0.5, 2e9
"""Each 1,000 writes, each 1,000 reads, each 10^9 bytes down."""
BUCKET, LOCAL, HDD = 1e9, 10e9, 4e9
"""Each 10^9 bytes a month: 1, 10 and 4 a byte."""
ROWS = "ts,id\n2020-01-05T00:00:00Z,1\n2020-02-05T00:00:00Z,2\n2020-03-05T00:00:00Z,3\n"


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    """Three parts of three months on the SSD; no rule is due."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_CONFIG", str(tmp_path / "frostline.yaml"))
    write_configuration(tmp_path)
    (tmp_path / "rows.csv").write_text(ROWS)
    store = Frostline(capsys)
    store(
        *("table", "create", "db.t", "--column", "ts:timestamp[us, UTC]", "--column", "id:int64", "--order-by", "ts"),
        *("--partition-by", "month(ts)", "--policy", "hot_cold"),
    )
    store("insert", "db.t", "rows.csv")
    return store


def write_configuration(path: Path, **prices: object) -> None:
    disks = {name: {"type": "local", "path": str(path / name)} for name in ("ssd", "hdd")}
    disks["s3"] = {"type": "object_disk", "url": f"file://{path}/bucket/store"}
    volumes = {
        "hot_cold": [("hot", "ssd"), ("cold", "s3")],
        "frugal": [("slow", "hdd"), ("cold", "s3")],
    }
    priced = {
        "storage_gb_month": BUCKET,
        "local_gb_month": LOCAL,
        "disks": {"hdd": HDD},
        "put_per_1000": PUT,
        "get_per_1000": GET,
        "down_per_gb": DOWN,
        "currency": "EUR",
    }
    document = {
        "state_path": str(path / "state"),
        "disks": disks,
        "policies": {
            name: {"volumes": [{"name": volume, "disks": [disk]} for volume, disk in pairs]}
            for name, pairs in volumes.items()
        },
        "prices": priced | prices,
    }
    (path / "frostline.yaml").write_text(yaml.safe_dump(document))


def sizes(frostline: Frostline) -> dict[str, int]:
    return {part["partition"]: part["bytes"] for part in frostline.json("parts", "db.t")["parts"]}


def test_storage_by_table_and_disk(frostline: Frostline) -> None:
    frostline("move", "db.t", "--partition", "202001", "--to-volume", "cold")
    cold, *hot = sizes(frostline).values()
    document = frostline.json("cost")
    assert [(row["disk"], row["volume"], row["parts"], row["bytes"]) for row in document["storage"]] == [
        ("s3", "cold", 1, cold),
        ("ssd", "hot", 2, sum(hot)),
    ]
    assert [row["price_month"] for row in document["by_disk"]] == [cold, 10 * sum(hot)]
    assert [row["in_bucket"] for row in document["by_disk"]] == [True, False]
    assert document["price_month"] == document["share_price_month"] == cold + 10 * sum(hot)
    assert document["hot_price_month"] == 10 * (cold + sum(hot))
    assert document["times_cheaper"] == round(document["hot_price_month"] / document["price_month"], 2)
    assert (document["currency"], document["plan"], document["what_if"]) == ("EUR", None, None)
    text = frostline("cost", "db.t")
    assert f"Storage: {document['price_month']:,.2f} EUR a month; all of it" in text


def test_past_moves_there_and_back(frostline: Frostline) -> None:
    assert frostline.json("cost")["moves"] == {"since": None, "by_month": [], "price": 0}
    assert "none recorded" in frostline("cost")
    for volume in ("cold", "hot"):
        frostline("move", "db.t", "--partition", "202001", "--to-volume", volume)
    size = sizes(frostline)["202001"]
    moves = frostline.json("cost", "db.t")["moves"]
    there, back = moves["by_month"]
    assert (there["from"], there["to"], there["tries"], there["failed"], there["bytes"]) == ("ssd", "s3", 1, 0, size)
    assert (there["requests"], there["price"]) == (1, PUT / 1000)
    assert (back["from"], back["requests"], back["price"]) == ("s3", 1, GET / 1000 + 2 * size)
    assert moves["price"] == pytest.approx(there["price"] + back["price"])
    assert moves["since"] is not None


def test_a_plan_is_priced_before_it_is_carried_out(frostline: Frostline, tmp_path: Path) -> None:
    frostline("table", "alter", "db.t", "--ttl", "1d on ts to volume cold")
    frostline("plan", "-o", "plan.json")
    whole = sum(sizes(frostline).values())
    plan = frostline.json("cost", "--plan", "plan.json")["plan"]
    assert (plan["moves"], plan["deletes"], plan["bytes"], plan["bytes_up"]) == (3, 0, whole, whole)
    assert (plan["put"], plan["get"], plan["price"]) == (4, 0, 4 * PUT / 1000)  # a file each, and the commit
    assert (plan["before_price_month"], plan["after_price_month"]) == (10 * whole, whole)
    assert plan["saved_price_month"] == 9 * whole
    assert plan["pays_back_days"] == round(plan["price"] / (9 * whole) * 30.4375, 1)
    assert "3 moves" in (told := frostline("cost", "--plan", "plan.json"))
    assert "saves is by whole objects" not in told  # nobody shares any
    saved = json.loads((tmp_path / "plan.json").read_text())
    saved["moves"][0]["keep_source"] = True
    (tmp_path / "kept.json").write_text(json.dumps(saved))
    kept = frostline.json("cost", "--plan", "kept.json")["plan"]
    assert kept["after_price_month"] == whole + 10 * saved["moves"][0]["bytes"]


def test_a_plan_that_drops(frostline: Frostline) -> None:
    frostline("tick", "--believe-clock")
    frostline("table", "alter", "db.t", "--ttl", "1d on ts delete")
    frostline("plan", "-o", "plan.json")
    plan = frostline.json("cost", "--plan", "plan.json")["plan"]
    assert (plan["moves"], plan["deletes"], plan["after_price_month"]) == (0, 3, 0)
    assert plan["saved_price_month"] == 10 * sum(sizes(frostline).values())


def test_another_policy(frostline: Frostline) -> None:
    """The rule counts where the policy has the volume; what is on no disk of the policy is on its hottest one."""
    frostline("table", "alter", "db.t", "--ttl", "1d on ts to volume cold")
    whole = sum(sizes(frostline).values())
    found = frostline.json("cost", "--what-if", "hot_cold")["what_if"]
    assert found["by_disk"] == [{"disk": "s3", "parts": 3, "bytes": whole, "price_month": whole}]
    assert (found["moves"], found["saved_price_month"], found["kept"]) == (3, 9 * whole, {})
    frostline("table", "alter", "db.t", "--ttl", "36500d on ts to volume cold")
    found = frostline.json("cost", "--what-if", "frugal")["what_if"]
    assert found["by_disk"] == [{"disk": "hdd", "parts": 3, "bytes": whole, "price_month": 4 * whole}]
    assert (found["put"], found["price"], found["saved_price_month"]) == (0, 0, 6 * whole)
    frostline("table", "alter", "db.t", "--ttl", "1d on ts to volume hot")
    found = frostline.json("cost", "--what-if", "frugal")["what_if"]
    assert found["kept"] == {"no_such_volume": 3}
    assert "rule of the table wants it (no_such_volume)" in frostline("cost", "--what-if", "frugal")


def test_what_is_no_plan_policy_or_disk(frostline: Frostline, tmp_path: Path) -> None:
    frostline("cost", "--what-if", "nowhere", code=10)
    frostline("cost", "db.none", code=10)
    frostline("cost", "--plan", "none.json", code=2)
    (tmp_path / "bad.json").write_text('{"moves": 3}')
    frostline("cost", "--plan", "bad.json", code=2)
    frostline("move", "db.t", "--partition", "202001", "--to-volume", "cold", "-n")
    frostline("table", "alter", "db.t", "--ttl", "1d on ts to volume cold")
    frostline("plan", "-o", "plan.json")
    (tmp_path / "gone.json").write_text((tmp_path / "plan.json").read_text().replace('"s3"', '"tape"'))
    frostline("cost", "--plan", "gone.json", code=10)
    write_configuration(tmp_path, disks={"hdx": 1.0})
    frostline("cost", code=2)
    assert "did you mean 'hdd'?" in frostline.error


def test_a_table_by_its_uuid_costs_the_same(frostline: Frostline) -> None:
    """With its past moves, and those alone; under a new name, too."""
    columns = ("--column", "ts:timestamp[us, UTC]", "--column", "id:int64", "--order-by", "ts", "--policy", "hot_cold")
    frostline("table", "create", "db.other", *columns)
    frostline("insert", "db.other", "rows.csv")
    uuid = frostline.json("table", "show", "db.t")["uuid"]
    frostline("move", "db.t", "--partition", "202001", "--to-volume", "cold")
    frostline("move", "db.other", "--partition", "all", "--to-volume", "cold")
    cost = frostline.json("cost", "db.t")
    assert [month["tries"] for month in cost["moves"]["by_month"]] == [1]
    assert frostline.json("cost", uuid) == cost
    frostline("table", "rename", "db.t", "db.renamed")
    renamed = frostline.json("cost", "db.renamed")
    assert renamed["moves"] == cost["moves"]
    assert {row["table"] for row in renamed["storage"]} == {"db.renamed"}
