"""Three machines with a log each in one bucket, by the command line: as many objects as one machine has, and no byte of
a cold part from one to another (I3, I4, I9 to I11)."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import clean, collected, held
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from zerocopy.interserver import server as interserver
from zerocopy.keeper.client import Keeper

__all__ = ["machine"]

PARTS = ["all_0_0_0", "all_1_1_0", "all_2_2_0"]
ROWS = list(range(3000))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What replicas asked one another for from now on."""
    asked: list[str] = []
    original = interserver.PartServer._find

    def find(server: Any, request: Any) -> Any:
        asked.append(str(request.match_info.get("file", "")))
        return original(server, request)

    monkeypatch.setattr(interserver.PartServer, "_find", find)
    return asked


@pytest.mark.in_turn
def test_three_machines(
    a: Machine, b: Machine, machine: Any, bucket: str, s3_environment: Server, keeper: Keeper, given: list[str]
) -> None:
    c = machine("c")
    c.join("--policy", "cold")
    for begin in range(0, 3000, 1000):
        a.insert(*ROWS[begin : begin + 1000])
    with a.serving():
        b.sync()
        c.sync()
    given.clear()
    for one in (a, b, c):
        moved = one.json("move", "d.t", "--partition", "all", "--to-disk", "s3")["moved"]
        assert sorted(move["part"] for move in moved) == PARTS
    assert len(blobs_in(bucket, s3_environment)) == len(PARTS)
    assert not any(given)
    for one in (a, b, c):
        assert one.disks() == dict.fromkeys(PARTS, "s3")
        assert one.on_disk("ssd") == set()
        assert one.keys() == ROWS
        one("fsck", "--read-data")
    clean(a, b, c)

    b("table", "drop", "d.t")  # one goes; nothing of the others does
    assert [collected(one) for one in (a, b, c)] == [0, 0, 0]
    assert (a.keys(), c.keys()) == (ROWS, ROWS)
    clean(a, b, c)

    shutil.rmtree(c.path / "state")  # one loses what it knew of everything
    c("disk", "adopt", "s3")
    c("restore", "s3", "--apply")
    assert c.keys() == ROWS
    clean(a, b, c)

    a("partition", "drop", "d.t", "all")
    c.sync()
    assert (a.keys(), c.keys()) == ([], [])
    assert held(keeper) == {}
    assert sum(collected(one) for one in (a, b, c)) == len(PARTS)
    assert blobs_in(bucket, s3_environment) == []


def test_du_says_whose_the_bytes_are(
    a: Machine, b: Machine, settings: KeeperConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared, alone, what that costs, and not known."""
    a.write_configuration(settings, prices={"storage_gb_month": 500_000, "currency": "EUR"})
    a.insert(1, 2)
    a.insert(3)
    with a.serving():
        b.sync()
        a.move(PARTS[0])
        a.move(PARTS[1])
        b.move(PARTS[0])
    (first, second) = (a.json("du")["shared"], b.json("du", "d.t")["shared"])
    size = {part["part"]: part["bytes"] for part in a.json("parts", "d.t")["parts"]}
    share = size[PARTS[1]] + size[PARTS[0]] // 2
    assert first == [
        {
            "disk": "s3",
            "log": "a",
            "bytes": size[PARTS[0]] + size[PARTS[1]],
            "alone_bytes": size[PARTS[1]],
            "shared_bytes": size[PARTS[0]],
            "share_bytes": share,
            "price_month": round((size[PARTS[0]] + size[PARTS[1]]) / 1e9 * 500_000, 6),
            "alone_price_month": round(size[PARTS[1]] / 1e9 * 500_000, 6),
            "share_price_month": round(share / 1e9 * 500_000, 6),
            "currency": "EUR",
            "with": {"b": size[PARTS[0]]},
        }
    ]
    assert (second[0]["alone_bytes"], second[0]["with"]) == (0, {"a": size[PARTS[0]]})
    assert "other machines use as well (b" in a("du")
    assert f"({first[0]['price_month']:.2f} EUR a month)" in a("du")
    bill = a.json("cost")
    (cold,) = (row for row in bill["by_disk"] if row["disk"] == "s3")
    assert cold["share_price_month"] == pytest.approx(share / 1e9 * 500_000, rel=1e-6)
    assert cold["price_month"] == pytest.approx(first[0]["price_month"], rel=1e-6)
    assert bill["shared"] == first
    assert "share (log a), the rest" in (told := a("cost"))
    assert "saves is by whole objects" not in told
    assert "saves is by whole objects" in a("cost", "--what-if", "cold")
    assert a.json("cost", "--what-if", "cold")["what_if"]["before_price_month"] == bill["price_month"]
    b.move(PARTS[0], "ssd")
    (alone,) = a.json("du")["shared"]
    assert (alone["shared_bytes"], alone["with"]) == (0, {"b": 0})
    assert "other machines" not in a("du")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FROSTLINE_DISKS__S3__RETRY_SECONDS", "0")
    (unknown,) = a.json("du")["shared"]
    assert unknown.keys() == {"disk", "log", "error"}
    assert "is unknown" in a("du")
    assert "so all count as this machine's" in a("cost")


@pytest.mark.in_turn
def test_a_machine_that_lost_everything_comes_back(a: Machine, b: Machine, bucket: str, s3_environment: Server) -> None:
    """Its SSD as well: what is cold, and who it is, comes by its own log; what was on the SSD from the others."""
    a.insert(1, 2)
    a.insert(3)
    with a.serving():
        b.sync()
        a.move(PARTS[0])
        b.move(PARTS[0])
    for name in ("state", "ssd", "hdd"):
        shutil.rmtree(b.path / name)
    b("disk", "adopt", "s3")
    b("restore", "s3", "--apply")
    assert b.keys() == [1, 2]
    with a.serving():
        assert b.json("replica", "restore", "d.t")["fetched"] == [PARTS[1]]
    assert b.disks() == {PARTS[0]: "s3", PARTS[1]: "ssd"}
    assert b.keys() == [1, 2, 3]
    assert len(blobs_in(bucket, s3_environment)) == 1
    clean(a, b)
