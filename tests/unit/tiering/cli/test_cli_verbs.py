"""Every verb on a real store: the documented JSON shapes, exit codes, dry runs and refusals."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.command_line import Frostline

START = datetime(2020, 1, 1, tzinfo=UTC)
ROWS = 4_000


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    return Frostline(capsys)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two months of rows, four a quarter of an hour."""
    table = pa.table(
        {
            "ts": pa.array([START + timedelta(minutes=20 * row) for row in range(ROWS)], pa.timestamp("us", "UTC")),
            "id": pa.array(range(ROWS), pa.int64()),
            "name": pa.array([f"n{row % 7}" for row in range(ROWS)]),
        }
    )
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture
def store(frostline: Frostline, data: Path) -> Frostline:
    """A table with the rows in it. Its rule is due when the clock says so, which `plan --at` lets it say."""
    years = (datetime.now(UTC) - START).days // 365 + 1
    frostline(
        *("table", "create", "db.t", "--column", "ts:timestamp[us, UTC]", "--column", "id:int64"),
        *("--column", "name:string", "--order-by", "name,ts", "--partition-by", "month(ts)"),
        *("--ttl", f"{years}y on ts to volume cold"),
    )
    frostline("insert", "db.t", str(data))
    return frostline


FAR = f"{datetime.now(UTC).year + 5}-01-01"


def everything(frostline: Frostline) -> list[list[Any]]:
    rows: list[list[Any]] = frostline.json("query", "SELECT * FROM db.t ORDER BY id")["rows"]
    return rows


class TestTables:
    def test_create_list_show_drop(self, store: Frostline) -> None:
        shown = store.json("table", "show", "db.t")
        assert shown["table"] == "db.t"
        assert shown["order_by"] == ["name", "ts"]
        assert shown["partition_by"] == ["month(ts)"]
        assert [column["name"] for column in shown["columns"]] == ["ts", "id", "name"]
        listed = store.json("table", "list")["tables"]
        assert [(table["table"], table["rows"]) for table in listed] == [("db.t", ROWS)]
        store("table", "create", "db.t", "--column", "a:int64", "--order-by", "a", code=1)
        assert "exists already" in store.error
        store("table", "create", "db.t", "--column", "a:int64", "--order-by", "a", "--if-not-exists")
        assert len(store.json("table", "show", "db.t")["columns"]) == 3

    def test_drop_asks_and_never_hangs(self, store: Frostline) -> None:
        store("table", "drop", "db.t", code=13)
        assert "--yes" in store.error
        assert store.json("table", "drop", "db.t", "-n")["dry_run"] is True
        assert len(store.json("table", "list")["tables"]) == 1
        dropped = store.json("table", "drop", "db.t", "--yes")
        assert dropped["parts"] == 2
        assert store.json("table", "list")["tables"] == []
        store("parts", "db.t", code=10)

    def test_like_takes_the_columns_of_a_file(self, frostline: Frostline, data: Path) -> None:
        frostline("table", "create", "db.u", "--like", str(data), "--order-by", "id")
        columns = frostline.json("table", "show", "db.u")["columns"]
        assert [(column["name"], column["type"]) for column in columns] == [
            ("ts", "timestamp[us, UTC]"),
            ("id", "int64"),
            ("name", "string"),
        ]

    def test_alter(self, store: Frostline) -> None:
        store("table", "alter", "db.t", "--add-column", "score:float64", "--default", "1.5")
        assert store.json("query", "SELECT sum(score) FROM db.t")["rows"] == [[ROWS * 1.5]]
        store("table", "alter", "db.t", "--rename-column", "score:points")
        assert store.json("query", "SELECT min(points) FROM db.t")["rows"] == [[1.5]]
        store("table", "alter", "db.t", "--drop-column", "points", code=13)
        store("table", "alter", "db.t", "--drop-column", "points", "-y")
        store("table", "alter", "db.t", "--ttl", "10y on ts delete")
        assert store.json("table", "show", "db.t")["ttl"] == ["3650d on ts delete"]
        store("table", "alter", "db.t", "--ttl", "")
        assert store.json("table", "show", "db.t")["ttl"] == []
        store("table", "alter", "db.t", code=2)
        store("table", "alter", "db.t", "--policy", "nope", code=10)

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["--order-by", "a"], 2),
            (["--column", "a:nonsense", "--order-by", "a"], 2),
            (["--column", "a:int64", "--order-by", "b"], 10),
            (["--column", "a:int64", "--order-by", "a", "--policy", "nope"], 10),
            (["--column", "a:int64", "--order-by", "a", "--ttl", "soon"], 2),
            (["--column", "a:int64", "--order-by", "a", "--setting", "x=1"], 2),
        ],
    )
    def test_mistakes_change_nothing(self, frostline: Frostline, arguments: list[str], code: int) -> None:
        frostline("table", "create", "db.t", *arguments, code=code)
        assert frostline.json("table", "list")["tables"] == []

    def test_dry_run_creates_nothing(self, frostline: Frostline) -> None:
        document = frostline.json("table", "create", "db.t", "--column", "a:int64", "--order-by", "a", "-n")
        assert document["dry_run"] is True
        assert frostline.json("table", "list")["tables"] == []


class TestData:
    def test_insert_is_idempotent_and_says_so(self, store: Frostline, data: Path) -> None:
        again = store.json("insert", "db.t", str(data))
        assert set(again) >= {"table", "rows", "parts", "duplicates", "bytes"}
        assert (again["rows"], again["parts"]) == (0, [])
        assert again["duplicates"] > 0
        store("insert", "db.t", str(data), "--error-on-nothing", code=9)
        assert len(everything(store)) == ROWS

    def test_insert_dry_run_reads_and_writes_nothing(self, store: Frostline, data: Path) -> None:
        before = store.json("parts")
        assert store.json("insert", "db.t", str(data), "--dry-run")["rows"] == ROWS
        assert store.json("parts") == before

    def test_insert_of_nothing_readable(self, store: Frostline, tmp_path: Path) -> None:
        store("insert", "db.t", str(tmp_path / "missing.parquet"), code=10)
        store("insert", "db.nope", str(tmp_path / "rows.parquet"), code=10)
        (tmp_path / "broken.parquet").write_bytes(b"PAR1nonsense")
        store("insert", "db.t", str(tmp_path / "broken.parquet"), code=2)
        assert "broken.parquet" in store.error

    def test_query_document(self, store: Frostline) -> None:
        document = store.json("query", "SELECT name, count(*) AS n FROM db.t GROUP BY name ORDER BY name LIMIT 1")
        assert set(document) == {
            "columns",
            "rows",
            "row_count",
            "parts_read",
            "bytes_read",
            "requests",
            "bytes_fetched",
        }
        assert document["columns"][0] == {"name": "name", "type": "string"}
        assert document["rows"] == [["n0", 572]]
        assert document["row_count"] == 1
        assert document["parts_read"] > 0

    def test_query_formats(self, store: Frostline, tmp_path: Path) -> None:
        sql = "SELECT id, ts FROM db.t ORDER BY id LIMIT 2"
        assert "2020-01-01" in store("query", sql)
        store("query", sql, "-o", "out.csv")
        assert pyarrow.csv.read_csv(tmp_path / "out.csv").num_rows == 2
        store("query", sql, "--output-format", "parquet", "-o", "out.parquet")
        assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["id"].to_pylist() == [0, 1]
        store("query", sql, "-o", "out.json")
        assert json.loads((tmp_path / "out.json").read_text())["row_count"] == 2
        store("query", sql, "-o", "out.what", code=2)
        store("query", sql, "-o", "missing/out.csv", code=2)
        store("query", sql, "--output-format", "nonsense", code=2)
        assert not list(tmp_path.glob(".out*"))

    def test_query_mistakes(self, store: Frostline) -> None:
        store("query", "SELECT nope FROM db.t", code=2)
        store("query", "SELEKT", code=2)
        store("query", "SELECT * FROM db.nope", code=10)

    def test_parts_and_disks_documents(self, store: Frostline) -> None:
        parts = store.json("parts", "db.t")["parts"]
        assert set(parts[0]) == {
            "table", "part", "partition", "disk", "volume", "rows", "bytes", "level", "state", "min_time", "max_time",
            "revision",
        }  # fmt: skip
        assert sum(part["rows"] for part in parts) == ROWS
        assert parts[0]["min_time"].startswith("2020-01-01T00:00:00")
        assert {part["partition"] for part in parts} == {"202001", "202002"}
        assert len(store.json("parts", "db.t", "--partition", "202001")["parts"]) == 1
        assert store.json("parts", "--disk", "s3")["parts"] == []
        store("parts", "--disk", "nope", code=10)
        disks = {disk["name"]: disk for disk in store.json("disks")["disks"]}
        assert set(disks["ssd"]) == {
            "name", "kind", "volume", "total_bytes", "free_bytes", "used_bytes", "parts", "revision", "read_only",
            "broken", "unreachable", "drained",
        }  # fmt: skip
        assert disks["s3"]["total_bytes"] is None
        assert disks["ssd"]["parts"] == 2
        parts_bytes = sum(part["bytes"] for part in parts)
        assert parts_bytes < disks["ssd"]["used_bytes"] < parts_bytes + 100_000, "more than what lies on the disk"
        assert "PARTITION" not in store("parts", "db.t")

    def test_the_level_of_parts_counts_their_merges(self, store: Frostline, data: Path) -> None:
        """Everywhere the same: the last number of the name. One partition is merged, the other not."""
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(data).slice(0, 10), data)
        store("insert", "db.t", str(data))
        store("merge", "db.t", "--partition", "202001", "--final")
        levels = {part["part"]: part["level"] for part in store.json("parts", "db.t")["parts"]}
        assert {name.split("_")[0]: level for name, level in levels.items()} == {"202001": 1, "202002": 0}
        assert levels == {name: int(name.rpartition("_")[2]) for name in levels}
        queried = store.json("query", "SELECT part, level FROM system.parts WHERE state = 'active'")["rows"]
        assert dict(queried) == levels
        titles, *lines = (line.split() for line in store("parts", "db.t", "--disk", "ssd").splitlines())
        assert titles[:6] == ["PART", "DISK", "VOLUME", "ROWS", "SIZE", "LEVEL"]
        shown = {words[0]: int(words[6]) for words in lines}  # a size is two words, such as `2.0 KiB`
        assert shown == levels


class TestTiering:
    @pytest.mark.in_turn
    def test_plan_apply_and_back(self, store: Frostline, tmp_path: Path) -> None:
        before = everything(store)
        assert store.json("plan")["moves"] == []
        store("plan", "--error-on-nothing", code=9)
        plan = store.json("plan", "db.t", "--at", FAR, "-o", "plan.json")
        assert set(plan) >= {"moves", "stays", "bytes", "requests"}
        assert set(plan["moves"][0]) >= {"table", "part", "from", "to", "bytes", "reason", "cost"}
        assert set(plan["moves"][0]["reason"]) == {"kind", "detail"}
        assert len(plan["moves"]) == 2
        assert plan["requests"] == 3  # a PUT each and one commit
        preview = store.json("apply", "plan.json", "-n")
        assert preview["dry_run"] is True
        assert len(preview["moved"]) == 2
        assert store.json("parts", "--disk", "s3")["parts"] == []
        done = store.json("apply", "plan.json")
        assert set(done) >= {"moved", "failed", "skipped"}
        assert set(done["moved"][0]) == {"table", "part", "from", "to", "bytes", "seconds", "requests"}
        assert len(store.json("parts", "--disk", "s3")["parts"]) == 2
        assert everything(store) == before
        again = store.json("apply", "plan.json")
        assert again["moved"] == []
        assert len(again["skipped"]) == 2
        back = store.json("move", "db.t", "--partition", "202001", "--to-volume", "hot")
        assert [item["to"] for item in back["moved"]] == ["ssd"]
        assert everything(store) == before

    def test_apply_mistakes(self, store: Frostline, tmp_path: Path) -> None:
        store("apply", "missing.json", code=2)
        (tmp_path / "bad.json").write_text('{"moves": 3}')
        store("apply", "bad.json", code=2)
        store("move", "db.t", "--partition", "202001", code=2)
        store("move", "db.t", "--to-volume", "cold", code=2)
        store("move", "db.t", "--partition", "202001", "--to-disk", "nope", code=10)
        store("move", "db.t", "--part", "209901_1_1_0", "--to-disk", "s3", code=10)

    def test_explain_names_the_rule_and_the_time(self, store: Frostline) -> None:
        part = store.json("parts")["parts"][0]["part"]
        document = store.json("explain", "db.t", part)
        assert document["decision"] == "stay"
        assert document["reason"]["kind"] == "not_due"
        assert document["next_due"] is not None
        assert "next" in store("explain", "db.t", part)
        store("explain", "db.t", "202001_9_9_0", code=10)

    def test_what_is_due_and_held_back_is_not_told_as_nothing(
        self, store: Frostline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FROSTLINE_POLICIES__HOT_COLD__PACING__WINDOW", "03:00-04:00")
        store("plan", "--at", FAR)
        assert "Nothing is due" not in store.error
        assert "postponed" in store.error
        assert "Postponed (window): " in store("plan", "--at", FAR)
        document = store.json("plan", "--at", FAR)
        assert document["moves"] == []
        assert {one["reason"]["kind"] for one in document["held"]} == {"window"}
        assert all(one["next_due"] for one in document["held"])
        opens = datetime.now(UTC) + timedelta(hours=12)
        monkeypatch.setenv(
            "FROSTLINE_POLICIES__HOT_COLD__PACING__WINDOW", f"{opens:%H:%M}-{opens + timedelta(minutes=1):%H:%M}"
        )
        store("table", "alter", "db.t", "--ttl", "30d on ts to volume cold")
        held = store.json("tick", "--only", "moves")["held"]
        assert held == {"window": len(store.json("parts", "db.t")["parts"])}
        store("tick", "--only", "moves")
        assert "postponed (window): " in store.error
        assert "Nothing was due" not in store.error

    def test_pin_pause_and_their_ends(self, store: Frostline) -> None:
        store("pin", "db.t", "--partition", "202001")
        assert len(store.json("plan", "--at", FAR)["moves"]) == 1
        store("pause", "db.t", "--moves")
        assert store.json("plan", "--at", FAR)["moves"] == []
        store("plan", "--at", FAR)
        assert "are paused" in store.error
        store("tick")
        assert "waits: moves of db.t are paused" in store.error
        assert "Nothing was due" not in store.error
        assert "Nothing is due" not in store.error
        status = store.json("status")
        assert status["pauses"][0]["kind"] == "moves"
        assert status["pins"][0]["partition"] == "202001"
        assert store.json("move", "db.t", "--partition", "202002", "--to-disk", "s3")["moved"]  # by hand it still works
        store("resume", "db.t")
        store("unpin", "db.t", "--partition", "202001")
        store("unpin", "db.t", "--partition", "202001", code=10)
        store("pin", "db.t", "--partition", "202001", "--to-volume", "nope", code=10)
        store("pin", "db.t", "--partition", "209901", code=10)
        assert len(store.json("plan", "--at", FAR)["moves"]) == 1

    def test_moves_list_wait_and_cancel(self, store: Frostline) -> None:
        store("move", "db.t", "--partition", "202001", "--to-disk", "s3")
        moves = store.json("moves", "list")["moves"]
        assert [(move["state"], move["from"], move["to"]) for move in moves] == [("done", "ssd", "s3")]
        assert store.json("moves", "list", "--active")["moves"] == []
        assert store.json("moves", "wait")["moves"] == []
        assert store.json("moves", "cancel", str(moves[0]["id"]))["cancel"] is False
        store("moves", "cancel", "999", code=10)

    def test_merge(self, store: Frostline, data: Path) -> None:
        half = pyarrow.parquet.read_table(data).slice(0, 10)
        pyarrow.parquet.write_table(half, data)
        store("insert", "db.t", str(data))
        before = everything(store)
        planned = store.json("merge", "db.t", "--final", "--dry-run")
        assert planned["dry_run"] is True
        assert [len(merge["inputs"]) for merge in planned["merges"]] == [2]
        done = store.json("merge", "db.t", "--final")["merges"]
        assert set(done[0]) == {
            "table", "partition", "inputs", "output", "rows_in", "rows_out", "bytes_in", "bytes_out", "seconds", "kept",
        }  # fmt: skip
        assert everything(store) == before
        store("merge", "db.t", "--final", "--error-on-nothing", code=9)

    def test_a_damaged_part_keeps_no_other_from_merging(self, store: Frostline, data: Path, tmp_path: Path) -> None:
        """P17, I15"""
        store("insert", "db.t", str(data), "--dedup-by", "none")
        path = next((tmp_path / "home" / "ssd" / "store").glob("*/*/202001_*/*.parquet"))
        whole = path.read_bytes()
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        store("merge", "db.t", "--partition", "202001", "--final", code=1)
        report = store.json("merge", "db.t", "--final", code=3)
        assert [merged["partition"] for merged in report["merges"]] == ["202002"]
        assert [failed["partition"] for failed in report["failed"]] == ["202001"]
        assert "is not what was written" in report["failed"][0]["error"]["message"]
        path.write_bytes(whole)
        assert [merged["partition"] for merged in store.json("merge", "db.t", "--final")["merges"]] == ["202001"]

    def test_a_move_that_failed_is_told_while_it_waits(self, store: Frostline, tmp_path: Path) -> None:
        store("table", "alter", "db.t", "--ttl", "30d on ts to volume cold")
        path = next((tmp_path / "home" / "ssd" / "store").glob("*/*/202001_*/*.parquet"))
        whole = path.read_bytes()
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        store.any("tick", "--only", "moves")
        waits = store.json("tick", "--only", "moves")
        assert not waits["moved"]
        assert "next try at" in waits["waiting"][0]
        store("tick", "--only", "moves")
        assert "Nothing was due" not in store.error

    def test_a_pass_recompresses_once_despite_one_damaged_part(self, store: Frostline, tmp_path: Path) -> None:
        """P17, and the TTL rule that rewrites parts."""
        store("table", "alter", "db.t", "--ttl", "30d on ts recompress zstd(9)")
        path = next((tmp_path / "home" / "ssd" / "store").glob("*/*/202001_*/*.parquet"))
        whole = path.read_bytes()
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        report = store.json("tick", "--only", "merges", code=3)
        assert [merged["partition"] for merged in report["merges"]] == ["202002"]
        assert "is not what was written" in report["problems"][0]
        path.write_bytes(whole)
        waits = store.json("tick", "--only", "merges")
        assert not waits["merges"]
        assert "next try at" in waits["waiting"][0], "what failed is not tried in every pass"
        assert [merged["partition"] for merged in store.json("merge", "db.t")["merges"]] == ["202001"]
        store("tick", "--only", "merges", "--error-on-nothing", code=9)

    def test_a_plan_that_no_longer_fits_is_skipped_part_by_part(self, store: Frostline, tmp_path: Path) -> None:
        plan = str(tmp_path / "plan.json")
        store("plan", "--at", FAR, "-o", plan)
        moved = store.json("apply", plan)["moved"]
        again = store.json("apply", plan, "--error-on-nothing", code=9)
        assert [item["part"] for item in again["skipped"]] == [item["part"] for item in moved]
        store("apply", str(tmp_path / "none.json"), code=2)
        assert "No such file or directory\n" in store.error

    def test_what_is_to_be_deleted_is_something_to_do(self, store: Frostline) -> None:
        store("table", "alter", "db.t", "--ttl", "30d on ts delete")
        store("tick", "--only", "snapshots", "--believe-clock")
        assert len(store.json("plan", "--error-on-nothing")["deletes"]) == 2

    def test_a_pause_is_no_end(self, store: Frostline) -> None:
        store("pause", "db.t", "--moves")
        part = store.json("parts", "db.t")["parts"][0]["part"]
        assert "next        when it is resumed" in store("explain", "db.t", part)

    def test_a_new_store_has_no_garbage(self, frostline: Frostline) -> None:
        assert frostline.json("gc")["refused"] is None

    def test_tick(self, store: Frostline) -> None:
        document = store.json("tick")
        assert set(document) >= {"moved", "failed", "skipped", "merges"}
        store("tick", "--error-on-nothing", code=9)
        store("tick", "--only", "nonsense", code=2)
        assert store.json("tick", "--only", "gc")["gc"][0]["disk"] == "s3"
        assert store.json("tick", "--only", "snapshots")["snapshots"] == {"s3": 1}
        assert store.json("tick", "--dry-run")["dry_run"] is True
        assert store.json("daemon", "status", code=1)["running"] is False
        assert store.json("daemon", "run", "--once")["ticks"] == 1


class TestRecovery:
    def test_lose_the_local_state_and_get_it_back(self, store: Frostline, tmp_path: Path) -> None:
        store("move", "db.t", "--partition", "202001", "--to-disk", "s3")
        parts, rows = store.json("parts"), everything(store)
        shutil.rmtree(tmp_path / "home" / "state" / "disks" / "s3")
        preview = store.json("restore", "s3")
        assert set(preview) >= {
            "disk", "revision", "files", "bytes", "created", "removed", "unchanged", "missing_objects", "applied",
            "requests", "seconds",
        }  # fmt: skip
        assert preview["applied"] is False
        assert preview["created"] == preview["files"] > 0
        assert not (tmp_path / "home" / "state" / "disks" / "s3" / "files.db").exists()
        assert store.json("restore", "s3", "--apply")["applied"] is True
        assert store.json("parts") == parts
        assert everything(store) == rows

    def test_an_older_revision_needs_a_yes(self, store: Frostline) -> None:
        store("move", "db.t", "--partition", "202001", "--to-disk", "s3")
        log = store.json("log", "s3")["entries"]
        assert set(log[0]) == {"revision", "time", "kind", "actor", "reason", "operations", "bytes"}
        assert [entry["kind"] for entry in log] == ["create_table", "move"]
        assert [entry["kind"] for entry in store.json("log", "db.t", "--limit", "1")["entries"]] == ["move"]
        assert store.json("restore", "s3", "--revision", "1")["removed"] > 0
        store("restore", "s3", "--revision", "1", "--apply", code=13)
        assert "their only copies" in store.error
        store("restore", "s3", "--revision", "99", code=10)
        store("restore", "ssd", code=2)
        store("restore", "nope", code=10)
        store("log", "ssd", code=2)

    @pytest.mark.in_turn
    def test_a_dropped_table_comes_back(self, store: Frostline) -> None:
        for partition in ("202001", "202002"):
            store("move", "db.t", "--partition", partition, "--to-disk", "s3")
        rows = everything(store)
        revision = store.json("log", "s3", "--limit", "1")["entries"][0]["revision"]
        store("table", "drop", "db.t", "-y")
        store("query", "SELECT 1 FROM db.t", code=10)
        # Nothing is taken away, so nothing is asked.
        restored = store.json("restore", "s3", "--revision", str(revision), "--table", "db.t", "--apply")
        assert restored["applied"] is True
        assert everything(store) == rows
        store("restore", "s3", "--revision", str(revision), "--table", "db.nope", code=10)

    def test_a_dropped_table_does_not_return_beside_its_namesake(self, store: Frostline) -> None:
        revision = str(store.json("log", "s3", "--limit", "1")["entries"][0]["revision"])
        store("table", "drop", "db.t", "-y")
        store("table", "create", "db.t", "--column", "id:int64", "--order-by", "id")
        store("restore", "s3", "--revision", revision, "--table", "db.t", "--apply", "-y", code=13)
        assert "brings back a table db.t" in store.error
        assert len(store.json("table", "list")["tables"]) == 1
        store("table", "drop", "db.t", "-y")
        store("restore", "s3", "--revision", revision, "--table", "db.t", "--apply")
        assert [column["name"] for column in store.json("table", "show", "db.t")["columns"]] == ["ts", "id", "name"]

    @pytest.mark.in_turn
    def test_fsck_finds_what_is_missing(self, store: Frostline, tmp_path: Path) -> None:
        store("move", "db.t", "--partition", "202001", "--to-disk", "s3")
        good = store.json("fsck", "--read-data")
        assert good["ok"] is True
        assert set(good["checked"]) >= {"parts", "files", "objects", "bytes"}
        next((tmp_path / "home" / "bucket" / "store").glob("r*-file-*")).unlink()
        bad = store.json("fsck", code=4)
        assert bad["ok"] is False
        assert set(bad["problems"][0]) >= {"invariant", "table", "part", "path", "object", "what"}
        assert store.json("gc", code=4)["refused"]
        store("gc", "--delete", "-y", code=13)
        store("fsck", "--read-data", "--read-data-subset", "5%", code=2)
        dry = store.json("fsck", "--repair", "--dry-run", code=4)
        assert (dry["dry_run"], dry["set_aside"]) == (True, [])
        assert "would set part" in dry["repaired"][0]
        assert "set part" in store("fsck", "--repair")
        after = store.json("fsck")
        assert after["ok"] is True
        assert "detached/missing_202001_" in after["set_aside"][0]
        assert "set aside earlier" in store("fsck")
        assert store.json("query", "SELECT count(*) FROM db.t")["rows"][0][0] < ROWS
        assert store.json("gc", "--delete", "-y")["refused"] is None

    def test_fsck_reads_another_share_each_time(self, store: Frostline) -> None:
        one, two = (store.json("fsck", "--read-data-subset", "50%")["shares"] for _ in range(2))
        assert {share["share"] for share in (*one, *two)} == {1, 2}
        assert one[0]["shares"] == 2
        assert store.json("fsck", "--read-data-subset", "2/2")["shares"][0]["share"] == 2
        assert "of 2" in store("fsck", "--read-data-subset", "1/2")
        store("fsck", "--read-data-subset", "3/2", code=2)

    def test_a_copy_that_was_to_stay_is_no_problem(self, store: Frostline) -> None:
        store("move", "db.t", "--partition", "202001", "--to-disk", "s3", "--keep-source")
        assert store.json("fsck")["ok"] is True
        assert everything(store)[0] is not None

    def test_a_move_of_a_damaged_part_names_the_file_that_is_damaged(self, store: Frostline, tmp_path: Path) -> None:
        path = next((tmp_path / "home" / "ssd" / "store").glob("*/*/202001_*/*.parquet"))
        raw = bytearray(path.read_bytes())
        raw[40] ^= 1
        path.write_bytes(raw)
        printed = store("move", "db.t", "--partition", "202001", "--to-disk", "s3", code=1)
        assert f"ssd:store/{path.relative_to(tmp_path / 'home' / 'ssd' / 'store')} does not have the SHA-256" in printed
        assert "the move failed" in store.error

    def test_a_query_that_must_leave_out_a_part_says_so_with_exit_3(self, store: Frostline, tmp_path: Path) -> None:
        """I15: damage is loud, even with --quiet and --json."""
        part = next((tmp_path / "home" / "ssd" / "store").glob("*/*/202001_*/part.json"))
        whole = part.read_bytes()
        part.write_bytes(b"")
        (tmp_path / "home" / "state" / "catalog.db").unlink()  # what was known of it
        document = json.loads(store("query", "SELECT count(*) FROM db.t", "--json", "--quiet", code=3))
        assert document["rows"][0][0] < ROWS
        assert "part.json" in json.loads(store.error)["error"]["message"]
        assert "broken: ssd:" in store("parts") + store.error
        part.write_bytes(whole)
        assert store.json("query", "SELECT count(*) FROM db.t")["rows"] == [[ROWS]]

    def test_gc_reports_and_asks(self, store: Frostline) -> None:
        document = store.json("gc")
        assert set(document) >= {
            "referenced", "pending", "orphaned", "orphaned_bytes", "deleted", "deleted_bytes", "refused",
        }  # fmt: skip
        store("gc", "--delete", code=13)
        assert store.json("gc", "--delete", "--yes")["deleted"] == 0
        assert store.json("gc", "--delete", "--yes", "--quarantine", "1d")["quarantined"] == 0

    def test_gc_has_a_floor_for_its_guard_interval(self, store: Frostline, caplog: pytest.LogCaptureFixture) -> None:
        """P28: below it only with a long flag, and the log says so."""
        store("gc", "--guard-interval", "59m", code=13)
        store("gc", "--delete", "--yes", "--guard-interval", "0s", code=13)
        assert not caplog.messages
        store("gc", "--guard-interval", "1s", "--allow-short-guard-interval")
        assert "guard interval of only 1 s" in caplog.text

    def test_snapshot(self, store: Frostline, tmp_path: Path) -> None:
        bucket = tmp_path / "home" / "bucket" / "store"
        for early in bucket.glob("snapshots/*"):
            early.unlink()
        assert store.json("snapshot", "s3", "-n")["dry_run"] is True
        assert not list(bucket.glob("snapshots/*"))
        store("snapshot", "s3")
        assert len(list(bucket.glob("snapshots/*"))) == 1

    def test_status_and_du(self, store: Frostline) -> None:
        status = store.json("status")
        assert status["rows"] == ROWS
        assert status["daemon"]["running"] is False
        assert "not a backup" in store("status") + store.error
        usage = store.json("du", "db.t")
        assert usage["bytes"] == status["bytes"]
