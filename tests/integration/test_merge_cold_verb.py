"""`merge --cold` on the command line: what it takes on, why the rest stays, what it costs, what fails and what not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oplog.errors import Conflict
from tiering.cli.main import run
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.cold import job as cold_merge
from tiering.table.definitions import define_table

DAYS = [datetime(2026, month, 1, tzinfo=UTC) for month in (1, 2, 3)]


class Site:
    """A store with six parts in each of three months, in a bucket whose volume prefers not to merge."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.config: Config = embedded(home)
        self.path = home / "frostline.json"
        self.path.write_text(json.dumps(msgspec.to_builtins(self.config)))
        self.capfd = capfd
        with Store.open(self.config) as store:
            columns = ["host:string", "ts:timestamp", "n:int64"]
            options: dict[str, Any] = {"order_by": "host,ts", "partition_by": "month(ts)", "policy": "hot_cold"}
            store.create_table(define_table("d.t", columns=columns, settings=["row_group_rows=50"], **options))
            for number in range(6):
                store.table("d.t").insert(rows(number).to_batches())
            for partition in ("202601", "202602", "202603"):
                store.apply(store.plan_manual_move("d.t", partition=partition, to_disk="s3"))

    def frostline(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        self.capfd.readouterr()
        assert run(["-c", str(self.path), "--json", "--no-progress", *arguments]) == code
        answer = self.capfd.readouterr()
        return json.loads(answer.out) if answer.out else {}, answer.err

    def contents(self) -> tuple[int, int, list[str]]:
        with Store.open(self.config) as store:
            found = store.query("SELECT count(*) c, sum(n) s FROM d.t").read_all().to_pylist()[0]
            return found["c"], found["s"], [stored.part.name for stored in store.parts("d.t")]


def rows(number: int) -> pa.Table:
    hosts = [f"h{(n * 7 + number) % 13:02d}" for n in range(300)]
    stamps = [DAYS[n % 3] + timedelta(hours=n, minutes=number) for n in range(300)]
    columns = {"host": hosts, "ts": pa.array(stamps, pa.timestamp("us", "UTC")), "n": list(range(number, number + 300))}
    return pa.table(columns)


@pytest.fixture
def site(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capfd)


def test_parts_of_a_resting_volume_are_merged_by_this_verb_alone(site: Site) -> None:
    """I13: the rows are the same before and after; only one part a partition is left."""
    count, total, parts = site.contents()
    assert len(parts) == 18
    untouched, _ = site.frostline("merge", "d.t")
    assert untouched["merges"] == []
    assert {stay["reason"]["kind"] for stay in untouched["not_merged"]} == {"resting"}
    planned, _ = site.frostline("merge", "d.t", "--cold", "--dry-run")
    assert site.contents() == (count, total, parts)
    done, _ = site.frostline("merge", "d.t", "--cold")
    assert {item["partition"] for item in done["merges"]} == {"202601", "202602", "202603"}
    for before, after in zip(by_partition(planned), by_partition(done), strict=True):
        assert (before["inputs"], before["reason"]) == (after["inputs"], after["reason"])
        assert before["output"] is None
        assert before["rows_in"] == after["rows_in"] == after["rows_out"]
        # Nothing of the estimate is a guess but the size of the output.
        assert {**before["cost"], "bytes_up": 0} == {**after["cost"], "bytes_up": 0}
    summary = done["summary"]
    assert (summary["before"]["parts"], summary["after"]["parts"]) == (18, 3)
    assert summary["before"]["rows"] == summary["after"]["rows"] == 1800
    assert site.contents() == (count, total, ["202601_1_6_1", "202602_1_6_1", "202603_1_6_1"])
    nothing, error = site.frostline("merge", "d.t", "--cold", "--error-on-nothing", code=9)
    assert nothing["merges"] == []
    assert {stay["reason"]["kind"] for stay in nothing["not_merged"]} == {"single"}
    assert "Nothing to merge" in error
    site.frostline("fsck", "--read-data")


def by_partition(document: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(document["merges"], key=lambda item: str(item["partition"]))


def test_the_options_choose_partitions_and_groups(site: Site) -> None:
    planned, _ = site.frostline("merge", "d.t", "--cold", "-n", "--where", "ts >= '2026-02-20' and n >= 0")
    assert [item["partition"] for item in planned["merges"]] == ["202603"]
    assert {(stay["partition"], stay["reason"]["kind"]) for stay in planned["not_merged"]} == {
        ("202601", "where"),
        ("202602", "where"),
    }
    planned, _ = site.frostline("merge", "d.t", "--cold", "-n", "--min-inputs", "7")
    assert planned["merges"] == []
    assert {stay["reason"]["kind"] for stay in planned["not_merged"]} == {"few_inputs"}
    planned, _ = site.frostline("merge", "d.t", "--cold", "-n", "--target-size", "1KiB")
    assert {stay["reason"]["kind"] for stay in planned["not_merged"]} == {"large_enough"}
    size = planned_bytes(site)
    planned, _ = site.frostline("merge", "d.t", "--cold", "-n", "--final", "--max-group-size", f"{size // 2 + 50}")
    assert [len(item["inputs"]) for item in planned["merges"]] == [3] * 6
    site.frostline("merge", "d.t", "--cold", "--final", "--max-group-size", f"{size // 2 + 50}")
    assert len(site.contents()[2]) == 6


def planned_bytes(site: Site) -> int:
    planned, _ = site.frostline("merge", "d.t", "--cold", "-n", "--partition", "202601")
    return int(planned["merges"][0]["bytes_in"])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "ts > '2026-01-01'"], "for parts in buckets"),
        (["--master", "local[2]"], "--master"),
        (["--adopt-as", "older"], "--adopt-as"),
        (["--cold", "--where", "nonsense >"], "expression"),
        (["--cold", "--where", "length(host) = 3"], "comparisons"),
        (["--cold", "--shard-size", "3"], "--shard-size"),
        (["--cold", "--max-group-size", "many"], "many"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(site: Site, arguments: list[str], said: str) -> None:
    before = site.contents()
    _, error = site.frostline("merge", "d.t", *arguments, code=2)
    problem = json.loads(error.splitlines()[-1])["error"]
    assert said in problem["message"]
    assert site.contents() == before


def test_a_group_that_fails_keeps_no_other_from_its_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial progress: what is done is committed; the rest is as it was, and named."""
    count, total, _ = site.contents()
    original = cold_merge.check_counts

    def refusing(definition: Any, output: Any, **counts: Any) -> None:
        if output.partition == "202602":
            raise Conflict("somebody was faster", hint="plan again")
        original(definition, output, **counts)

    monkeypatch.setattr(cold_merge, "check_counts", refusing)
    done, error = site.frostline("merge", "d.t", "--cold", code=3)
    assert [item["partition"] for item in by_partition(done)] == ["202601", "202603"]
    (failed,) = done["failed"]
    assert (failed["partition"], failed["error"]["message"]) == ("202602", "somebody was faster")
    assert "1 of 3 groups failed" in error
    assert site.contents() == (
        count,
        total,
        ["202601_1_6_1", *(f"202602_{number}_{number}_0" for number in range(1, 7)), "202603_1_6_1"],
    )
    monkeypatch.undo()
    again, _ = site.frostline("merge", "d.t", "--cold")
    assert [item["partition"] for item in again["merges"]] == ["202602"]


def test_after_too_many_failures_no_more_begin(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*arguments: Any, **counts: Any) -> None:
        raise Conflict("no")

    monkeypatch.setattr(cold_merge, "check_counts", refusing)
    done, _ = site.frostline("merge", "d.t", "--cold", "--max-failed-groups", "0", code=1)
    failed, left = len(done["failed"]), len(done["not_begun"])
    assert failed in (1, 2), "two groups are in work at once: the second may have begun before the first failed"
    assert (failed + left, done["merges"]) == (3, [])
    assert len(site.contents()[2]) == 18


def test_a_rule_that_recompresses_reaches_what_rests(site: Site) -> None:
    """Without company, too; and once."""
    count, total, _ = site.contents()
    site.frostline("merge", "d.t", "--cold")
    site.frostline("table", "alter", "d.t", "--ttl", "1d on ts recompress zstd(15)")
    planned, _ = site.frostline("merge", "d.t", "--cold", "--dry-run")
    assert {item["reason"] for item in planned["merges"]} == {"due: 1d on ts recompress zstd(15)"}
    done, _ = site.frostline("merge", "d.t", "--cold")
    assert len(done["merges"]) == 3
    with Store.open(site.config) as store:
        assert {stored.part.compression_level for stored in store.parts("d.t")} == {15}
    assert site.contents()[:2] == (count, total)
    nothing, _ = site.frostline("merge", "d.t", "--cold")
    assert (nothing["merges"], set(nothing)) == ([], set(done)), "scripts find the same keys"
    assert nothing["summary"]["before"] == nothing["summary"]["after"] == done["summary"]["after"]
    by_spark, _ = site.frostline("merge", "d.t", "--spark")
    assert (by_spark["spark"], set(by_spark)) == (None, {*done, "spark"}), "no Spark is started for nothing"
