"""P23: a clock that nobody confirms drops nothing, be the bucket a directory or out of reach, or the store new.

What is tested is a machine whose clock went 400 days ahead while it was off: by its clock the rows are past their TTL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from tests.servers import Server
from tiering.catalog import clock_check
from tiering.catalog.clock_check import Clocks
from tiering.cli import main as cli
from tiering.config.settings import Config, embedded
from tiering.doctor import doctor
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table

TRUE = datetime.now(UTC) - timedelta(days=400)
"""What time it really is."""
COUNT = "SELECT count(*) AS n FROM d.t"
Answer = Callable[..., int]


@pytest.fixture(autouse=True)
def _no_time_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_check, "kernel_clock_is_kept", lambda: False)


def fill(config: Config, *, confirmed: datetime | None) -> None:
    """Two inserts of rows of today, with a rule to delete them in 300 days."""
    with Store.open(config) as store:
        store.create_table(
            define_table(
                "d.t", columns=["ts:timestamp[us, UTC]"], order_by="ts", policy="hot_cold", ttl=["300d on ts delete"]
            )
        )
        for hour in range(2):
            store.table("d.t").insert(pa.table({"ts": [TRUE - timedelta(hours=hour)]}).to_batches())
        if confirmed is not None:
            store.context.journal.confirm_time(confirmed)


def count(store: Store) -> int:
    rows: list[dict[str, Any]] = store.query(COUNT).read_all().to_pylist()
    return int(rows[0]["n"])


def with_bucket(config: Config, bucket: str, endpoint_url: str | None = None) -> Config:
    disk = ObjectDiskConfig(url=f"s3://{bucket}/store/", endpoint_url=endpoint_url)
    return msgspec.structs.replace(config, disks={**config.disks, "s3": disk})


@pytest.mark.in_turn
@pytest.mark.parametrize("confirmed", [None, TRUE], ids=["first start", "confirmed 400 days ago"])
@pytest.mark.parametrize("bucket", ["directory", "S3 away"])
def test_what_nobody_confirms_drops_nothing(
    tmp_path: Path, bucket: str, confirmed: datetime | None, s3_environment: Server
) -> None:
    config = embedded(tmp_path)
    if bucket == "S3 away":
        config = with_bucket(config, name := s3_environment.new_bucket())
        fill(config, confirmed=confirmed)
        config = with_bucket(config, name, "http://127.0.0.1:1")
    else:
        fill(config, confirmed=confirmed)
    with Store.open(config) as store:
        assert store.unreachable() == (["s3"] if bucket == "S3 away" else [])
        report = store.tick()
        assert not report.deleted
        assert not report.merges
        assert any("no other clock" in problem for problem in report.problems), "and it says so"
        (merge,) = store.merge("d.t", MergeRequest(final=True))
        assert (merge.rows_in, merge.rows_out) == (2, 2)
        assert "no other clock" in merge.kept, "and it says so"
        assert count(store) == 2
        assert store.context.journal.confirmed_time() == confirmed, "a doubtful time is not noted"


def test_a_bucket_that_answers_confirms_the_clock(tmp_path: Path, s3_environment: Server) -> None:
    config = with_bucket(embedded(tmp_path), s3_environment.new_bucket())
    fill(config, confirmed=None)
    with Store.open(config) as store:
        assert len(store.tick().deleted) == 2
        known = store.context.journal.confirmed_time()
        assert known is not None
        assert abs(datetime.now(UTC) - known) < timedelta(hours=1)


def test_a_time_server_confirms_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = embedded(tmp_path)
    fill(config, confirmed=TRUE)
    monkeypatch.setattr(clock_check, "kernel_clock_is_kept", lambda: True)
    with Store.open(config) as store:
        assert len(store.tick().deleted) == 2


def test_a_person_confirms_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    fill(embedded(tmp_path), confirmed=None)
    assert cli.run(["tick"]) == 1
    assert "--believe-clock" in capsys.readouterr().err
    assert cli.run(["plan"]) == 0
    assert "Nothing moves" in capsys.readouterr().err
    assert cli.run(["tick", "--believe-clock", "--dry-run"]) == 0
    assert cli.run(["tick"]) == 1, "a dry run confirms nothing"
    assert cli.run(["tick", "--believe-clock"]) == 0
    assert "deleted" in capsys.readouterr().out


def test_a_part_of_a_wrong_clock_is_believed_when_a_person_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Rows came in while the clock was 400 days ahead: it is right again, and nothing would move for 400 days."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    fill(embedded(tmp_path), confirmed=None)

    def insert_when(ahead: timedelta) -> None:
        with Store.open(embedded(tmp_path), clock=lambda: datetime.now(UTC) + ahead) as store:
            store.table("d.t").insert(pa.table({"ts": [datetime.now(UTC) + ahead]}).to_batches())

    insert_when(timedelta(days=400))
    assert cli.run(["tick"]) == 1
    assert "'frostline tick --believe-clock'" in capsys.readouterr().err
    assert cli.run(["tick", "--believe-clock"]) == 0
    assert capsys.readouterr().out.count("deleted  d.t") == 2, "what is past its time by the right clock"
    assert cli.run(["tick"]) == 0, "and it is remembered"
    with Store.open(embedded(tmp_path)) as store:
        assert count(store) == 1
    insert_when(timedelta(days=500))
    assert cli.run(["tick"]) == 1, "another part, another doubt"
    assert "a part was written at" in capsys.readouterr().err


class TestDoubt:
    NOW = datetime(2026, 5, 1, tzinfo=UTC)
    HOUR = timedelta(hours=1)

    def doubt(self, confirmed: datetime | None, clocks: Clocks | None = None, now: datetime = NOW) -> str:
        return (clocks or Clocks()).doubt({}, now, confirmed, self.HOUR)

    def test_soon_after_the_confirmed_time_it_is_believed(self) -> None:
        assert self.doubt(self.NOW - self.HOUR) == ""
        assert "last confirmed at 2026-04-30 22:59Z" in self.doubt(self.NOW - self.HOUR - timedelta(minutes=1))
        assert self.doubt(self.NOW + timedelta(hours=2)), "nor long before it"

    def test_a_process_that_runs_on_needs_no_other_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = 0.0
        monkeypatch.setattr(clock_check.time, "clock_gettime", lambda which: ticks)
        clocks = Clocks()
        assert self.doubt(self.NOW, clocks) == ""
        ticks = 86_400.0 * 30
        assert self.doubt(self.NOW, clocks, self.NOW + timedelta(days=30)) == ""
        assert self.doubt(self.NOW, clocks, self.NOW + timedelta(days=31)), "a jump is none of its time"


def test_parts_merge_on_while_no_clock_confirms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """P23: where nothing can be due yet a merge just goes on; where rows may be due it keeps them, and says so."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    fill(embedded(tmp_path), confirmed=None)
    with Store.open(embedded(tmp_path)) as store:
        rules = ["36500d on ts delete"]
        store.create_table(
            define_table("d.young", columns=["ts:timestamp[us, UTC]"], order_by="ts", policy="hot_cold", ttl=rules)
        )
        for hour in range(2):
            store.table("d.young").insert(pa.table({"ts": [TRUE - timedelta(hours=hour)]}).to_batches())
    for name, says in (("d.t", True), ("d.young", False)):
        assert cli.run(["merge", name, "--final", "--json"]) == 0
        (merge,) = json.loads(capsys.readouterr().out)["merges"]
        assert (merge["rows_in"], merge["rows_out"]) == (2, 2)
        assert ("--believe-clock" in merge["kept"]) == says
    assert cli.run(["merge", "d.t", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["merges"] == [], "what is kept is not rewritten again and again"


def test_a_part_with_undated_rows_waits_for_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P23: such a part is rewritten only to delete its due rows, so it is not rewritten to keep them."""
    fill(config := embedded(tmp_path), confirmed=None)
    with Store.open(config) as store:
        store.table("d.t").insert(pa.table({"ts": pa.array([None, TRUE], pa.timestamp("us", "UTC"))}).to_batches())
        report = store.tick()
        assert not report.merges
        assert any("no other clock" in problem for problem in report.problems)
        monkeypatch.setattr(clock_check, "kernel_clock_is_kept", lambda: True)
        assert sum(merge.rows_in - merge.rows_out for merge in store.tick().merges) == 1


def test_a_final_merge_deletes_what_a_doubtful_one_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P23: one of three rows is due. The part that has all of them is alone in its partition."""
    fill(config := embedded(tmp_path), confirmed=None)
    with Store.open(config) as store:
        store.table("d.t").insert(pa.table({"ts": [datetime.now(UTC)]}).to_batches())
        (merge,) = store.merge("d.t", MergeRequest(final=True))
        assert (merge.rows_in, merge.rows_out) == (3, 3)
        assert not store.merge("d.t", MergeRequest(final=True))
        monkeypatch.setattr(clock_check, "kernel_clock_is_kept", lambda: True)
        (merge,) = store.merge("d.t", MergeRequest(final=True))
        assert (merge.rows_in, merge.rows_out) == (3, 1)
        assert not store.merge("d.t", MergeRequest(final=True))


def test_doctor_says_whether_a_clock_confirms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P23."""
    (finding,) = [one for one in doctor.run(embedded(tmp_path)) if one.check == "clock"]
    assert (finding.subject, finding.level) == ("node", "note")
    assert "--believe-clock" in finding.hint
    monkeypatch.setattr(clock_check, "kernel_clock_is_kept", lambda: True)
    (finding,) = [one for one in doctor.run(embedded(tmp_path)) if one.check == "clock"]
    assert finding.level == "ok"
