"""The numbers of a store: right, bounded, readable by Prometheus' own parser, served beside the daemon's work. Guards
I11's other half: what waits, fails or is away can be seen from outside."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from oplog.errors import FrostlineError, Transient, UsageError
from tests.command_line import Frostline
from tiering.catalog import reachability
from tiering.config.settings import DaemonConfig, PacingConfig, embedded
from tiering.daemon import daemon
from tiering.daemon.hooks.outbox import HookStatus
from tiering.daemon.jobs.row import JobRow
from tiering.daemon.jobs.status import job_rows
from tiering.daemon.status import DaemonStatus, LaneStatus
from tiering.engine import replication as replicas
from tiering.engine.store import Store
from tiering.facts.metrics import collect, exposition
from tiering.facts.metrics.families import families
from tiering.facts.metrics.family import Family
from tiering.facts.metrics.health import judge
from tiering.facts.metrics.process import Calls, Process, Traffic
from tiering.facts.metrics.snapshot import (
    OTHERS,
    Amount,
    DiskSeen,
    InboxSeen,
    Overdue,
    PartsSeen,
    ReplicaSeen,
    Seen,
    WorkSeen,
    overdue,
)
from tiering.facts.metrics.watching import Metrics
from tiering.journal.records import NewMove
from tiering.policy.plan import Budget
from tiering.table.definitions import define_table

CONFIGS = Path(__file__).parents[5] / "configs"
NOW = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
NEW = NOW - timedelta(days=1)
OLD = NOW - timedelta(days=90)
FULL = Seen(
    at=NOW,
    places={PartsSeen("d.t", "ssd", "hot", "active"): Amount(2, 20, 200)},
    overdue={"d.t": Overdue(1, 100, OLD)},
    disks=(
        DiskSeen("ssd", "local", True, 50, 100),
        DiskSeen("s3", "object_disk", False, revision=7, looked=OLD.timestamp()),
    ),
    moves=(WorkSeen("failed", "ttl", 1, 100),),
    merges=(WorkSeen("done", "level", 3, 30),),
    failing_moves=1,
    pins=2,
    paused={"moves": 1},
    broken=1,
    set_aside=1,
    backups={"d.t": {"taken": OLD, "verified": OLD, "drilled": OLD}, "d.u": {}},
    failed_proofs=1,
    inbox={"d.t": InboxSeen(2, 20, 1, OLD.timestamp())},
    crowded={"d.t": 101},
    replicas={"d.t": ReplicaSeen(OLD, 1)},
    budgets=(Budget("hot_cold", "money", 0.5, 0.5, NOW),),
    day_money=0.25,
    currency="USD",
)


def job(name: str, result: str, moment: datetime, figures: dict[str, int] | None = None) -> JobRow:
    return JobRow(
        job=name,
        state="idle",
        schedule="every 1 h",
        last_run=moment,
        last_end=moment,
        result=result,
        said="",
        figures=figures or {},
        runs=3,
        failures_in_a_row=0,
        wanted=False,
        next_run=moment,
    )


RUNNING = Process(
    up=True,
    passes=4,
    moved=3,
    merged=2,
    failures=1,
    last_pass=NOW,
    jobs=[job("policy", "done", NOW), job("gc", "done", NOW, figures={"orphaned": 2, "orphaned_bytes": 9})],
    lanes=[LaneStatus(lane="large moves", doing="moving parts", since=NOW, bytes=100, bytes_done=40)],
    hooks=[HookStatus(hook="pager", delivered=3)],
    held={"window": 4},
    traffic=(Traffic("s3", {"PUT": 5, "GET": 0}, 10, 20),),
    concurrency=16,
    answered={"put": Calls(5, 0.5, 1, 2)},
)
ILL = Process(
    up=False,
    failures=1,
    last_pass=OLD,
    jobs=[job("gc", "failed", OLD, figures={"orphaned": 2, "orphaned_bytes": 10**12})],
    lanes=[LaneStatus(lane="large moves", doing="moving parts", since=OLD)],
    hooks=[HookStatus(hook="pager", waiting=2, given_up=1)],
    concurrency=1,
)
TROUBLED = Process(up=True, is_troubled=True, needs_restart=True)

TROUBLE = "frostline_daemon_trouble"
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def values(text: bytes | str) -> Values:
    """Every sample, as Prometheus' own parser reads it."""
    read = text.decode() if isinstance(text, bytes) else text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(read)
        for sample in family.samples
    }


def one(found: Values, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def all_of(seen: Seen | None = FULL, process: Process = RUNNING) -> list[Family]:
    return families(seen, process, version="1")


def raised(error: Exception) -> None:
    raise error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(embedded(tmp_path), clock=lambda: NOW, workers=1) as opened:
        columns = ["ts:timestamp[us, UTC]", "n:int64"]
        ttl = ["30d on ts to volume cold"]
        opened.create_table(define_table("d.t", columns=columns, order_by="n", policy="hot_cold", ttl=ttl))
        yield opened


def insert(store: Store, *times: datetime, table: str = "d.t") -> None:
    """A part on the SSD for each time: they are made while nothing is due."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    store.context.clock, now = (lambda: OLD), store.context.clock
    for number, time in enumerate(times):
        store.table(table).insert([pa.record_batch([[time] * 10, [number] * 10], schema=schema)])
    store.context.clock = now
    store.refresh()


class TestSeen:
    def test_rows_that_come_late_wait_since_they_came(self, store: Store) -> None:
        """Not since their rule was due, months before."""
        insert(store, OLD)
        stored, config = store.parts("d.t")[0], store.context.config
        late = msgspec.structs.replace(stored.part, created=NEW)
        part = SimpleNamespace(definition=stored.definition, part=late, name=late.part_name, disk="ssd")
        assert overdue([part], config.policies, NOW)["d.t"].oldest == NEW

    def test_parts_by_table_and_tier_and_what_is_due(self, store: Store) -> None:
        insert(store, OLD, NEW)
        stored = store.parts("d.t")
        found = values(exposition.text(families(collect.look(store), Process(up=False), version="1")))
        where = {"table": "d.t", "disk": "ssd", "volume": "hot", "state": "active"}
        assert one(found, "frostline_parts", **where) == 2
        assert one(found, "frostline_part_rows", **where) == 20
        assert one(found, "frostline_part_bytes", **where) == sum(part.facts.size_bytes for part in stored)
        assert one(found, "frostline_due_parts", table="d.t") == 1
        due = OLD + timedelta(days=30)
        assert one(found, "frostline_oldest_due_timestamp_seconds", table="d.t") == due.timestamp()
        store.tick(only="moves")  # a merge of the two would be as young as the younger
        store.refresh()
        found = values(exposition.text(families(collect.look(store), Process(up=False), version="1")))
        assert one(found, "frostline_parts", table="d.t", disk="s3", volume="cold", state="active") == 1
        assert not [name for name, _ in found if name.startswith("frostline_due")], "nothing waits any more"
        assert one(found, "frostline_moves", state="done", reason="ttl") == 1

    def test_what_waits_for_another_try_is_still_due(self, store: Store) -> None:
        """A move that failed is no planned move for a while; its part is due all the same."""
        insert(store, OLD)
        (part,) = store.parts("d.t")
        table = part.definition
        new = NewMove(
            table="d.t",
            table_uuid=table.uuid,
            part=part.facts.name,
            source="ssd",
            target="s3",
            bytes=1,
            reason_kind="ttl",
            reason_detail="",
        )
        (number,) = store.context.journal.work.plan_moves([new])
        store.context.journal.work.set_move(number, "failed", error="no route to host")
        store.context.clock = lambda: datetime.now(UTC)
        assert not store.plan(rest="none").moves
        seen = collect.look(store)
        assert (seen.overdue["d.t"].parts, seen.failing_moves) == (1, 1)

    def test_the_inbox(self, store: Store, tmp_path: Path) -> None:
        """What waits there, and what failed; what is neither is not counted."""
        home = tmp_path / "inbox" / "d.t"
        (home / "failed").mkdir(parents=True)
        for name in ("a.csv", "b.csv", "c.csv.tmp", "failed/d.csv", "failed/d.csv.report.json"):
            (home / name).write_text("12345")
        config = store.context.config
        inbox = msgspec.structs.replace(config.inbox, path=str(tmp_path / "inbox"))
        store.context.config = msgspec.structs.replace(config, inbox=inbox)
        seen = collect.look(store).inbox["d.t"]
        assert (seen.waiting, seen.bytes, seen.failed) == (2, 10, 1)
        assert seen.oldest == min((home / name).stat().st_mtime_ns for name in ("a.csv", "b.csv")) / 1e9
        store.context.config = msgspec.structs.replace(
            config, inbox=msgspec.structs.replace(inbox, path=str(tmp_path / "nowhere"))
        )
        assert collect.look(store).inbox == {}

    def test_each_policy_s_spent_budget_is_told(self, tmp_path: Path) -> None:
        """Also while that of another is."""
        config, told = embedded(tmp_path), list[tuple[str, str]]()
        pacing = PacingConfig(bytes=1, every_seconds=10**9)
        policy = msgspec.structs.replace(config.policies["hot_cold"], pacing=pacing)
        config = msgspec.structs.replace(config, policies={"hot_cold": policy, "other": policy})
        with Store.open(config, clock=lambda: NOW, workers=1) as store:
            store.context.journal.overrides.pause(None, ["merges"], actor="test")
            one = daemon._Daemon(store, DaemonConfig(), threading.Event())
            one.trouble._tell = lambda event, where, text, phase: told.append((where, phase))
            for table, name in (("d.t", "hot_cold"), ("d.u", "other")):
                columns, ttl = ["ts:timestamp[us, UTC]", "n:int64"], ["30d on ts to volume cold"]
                store.create_table(define_table(table, columns=columns, order_by="n", policy=name, ttl=ttl))
                insert(store, OLD, OLD + timedelta(seconds=1), table=table)
                one.tick()
                told.clear()
                one.tick()
        budgets = {where: phase for where, phase in told if where.startswith("budget")}
        assert budgets == {"budget of policy hot_cold": "begins", "budget of policy other": "begins"}

    def test_what_moves_took_from_budgets_and_what_is_held(self, store: Store) -> None:
        """A spent budget stops the second of two moves, and both the numbers and the daemon's status say so."""
        pacing = PacingConfig(bytes=1, every_seconds=10**9)
        policy = msgspec.structs.replace(store.context.config.policies["hot_cold"], pacing=pacing)
        store.context.config = msgspec.structs.replace(store.context.config, policies={"hot_cold": policy})
        assert [(one.spent, one.limit) for one in collect.look(store).budgets] == [(0, 1)]
        insert(store, OLD, OLD + timedelta(seconds=1))
        sizes = {part.facts.name: part.facts.size_bytes for part in store.parts("d.t")}
        store.context.journal.overrides.pause(None, ["merges"], actor="test")
        done = daemon.run(store, DaemonConfig(), threading.Event(), once=True)
        done = daemon.run(store, DaemonConfig(), threading.Event(), once=True)
        assert (done.held, len(done.budgets)) == ({"budget": 1}, 1)
        seen = collect.look(store)
        (moved,) = store.context.journal.work.moves()
        assert [one.spent for one in seen.budgets] == [sizes[moved.part]]
        assert seen.day_money is not None
        assert seen.day_money > 0
        process = collect.process(done, job_rows(store.context.config), store)
        found = values(exposition.text(families(seen, process, version="1")))
        assert one(found, "frostline_held_parts", reason="budget") == 1
        assert one(found, "frostline_budget_limit", policy="hot_cold", budget="bytes") == 1
        assert one(found, "frostline_job_trouble", daemon_job="gc") == 0

    def test_how_far_what_others_did_is_seen(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk by its last look that went well; a replica by its last pass that did, with what it left undone."""
        table = store.definition("d.t")
        replicated = msgspec.structs.replace(table, keeper="/tables/d.t")
        answers: list[list[str] | FrostlineError] = [["a part waits"], Transient("Keeper is away"), []]

        def tick(*_: object) -> list[str]:
            if isinstance(answer := answers.pop(0), FrostlineError):
                raise answer
            return answer

        monkeypatch.setattr(replicas, "work", lambda: SimpleNamespace(tick=tick))
        monkeypatch.setattr(reachability, "whole_tables", lambda _: [replicated])
        seen = []
        for passed in range(3):
            store.context.clock = lambda passed=passed: NOW + timedelta(minutes=passed)  # type: ignore[misc]
            replicas.tick(store.context)
            seen.append(collect.look(store).replicas["d.t"])
        assert seen == [ReplicaSeen(NOW, 1), ReplicaSeen(NOW, 1), ReplicaSeen(NOW + timedelta(minutes=2), 0)]

        disk: Any = store.object_disk("s3")
        store.refresh()
        (before,) = [one.looked for one in collect.look(store).disks if one.name == "s3"]
        assert before is not None
        monkeypatch.setattr(disk.cache, "refresh", lambda: raised(Transient("no route to host")))
        with pytest.raises(Transient):
            disk.refresh()
        assert disk.looked == before
        assert [one.looked for one in collect.look(store).disks if one.name == "ssd"] == [None]
        found = values(exposition.text(all_of()))
        assert one(found, "frostline_disk_looked_timestamp_seconds", disk="s3") == OLD.timestamp()
        assert one(found, "frostline_replica_synced_timestamp_seconds", table="d.t") == OLD.timestamp()
        assert one(found, "frostline_replica_waiting_entries", table="d.t") == 1

    def test_looking_sends_no_request(self, store: Store) -> None:
        insert(store, OLD)
        store.tick()
        disk: Any = store.object_disk("s3")
        before = disk.store.counts()
        collect.look(store)
        assert disk.store.counts() == before
        traffic = collect.process(DaemonStatus(), [], store).traffic
        assert [(one.disk, one.requests["PUT"] > 0) for one in traffic] == [("s3", True)]


class TestFamilies:
    def test_hostile_names_are_one_label_each(self) -> None:
        hostile = 'd.t"} 1\nfrostline_parts{table="forged\\'
        for name in (hostile, "d.\u202e", "d.\x00", "d.\ud800"):
            places = {PartsSeen(name, "ssd", "hot", "active"): Amount(2, 20, 200)}
            found = values(exposition.text(all_of(Seen(NOW, places, {name: Overdue(1, 1, OLD)}, ()))))
            (labels,) = [dict(labels) for family, labels in found if family == "frostline_parts"]
            assert labels["table"] == name.replace("\ud800", "\\ud800")

    def test_a_thousand_tables_and_reasons_are_bounded(self) -> None:
        places = {PartsSeen(f"d.t{n}", "ssd", "hot", "active"): Amount(1, 1, n) for n in range(1000)}
        moves = tuple(WorkSeen("failed", f"reason{n}", n, 1) for n in range(1000))
        backups = {f"d.t{n}": {"taken": OLD + timedelta(seconds=n)} for n in range(1000)}
        waiting = {f"d.t{n}": Overdue(1, 1, OLD + timedelta(seconds=n)) for n in range(1000)}
        found = values(exposition.text(all_of(Seen(NOW, places, waiting, (), moves, backups=backups))))
        assert len(found) < 4000
        where = {"disk": "ssd", "volume": "hot", "state": "active"}
        assert one(found, "frostline_parts", table="d.t999", **where) == 1
        assert one(found, "frostline_parts", table=OTHERS, **where) == 500
        assert one(found, "frostline_oldest_due_timestamp_seconds", table=OTHERS) == OLD.timestamp(), (
            "the worst of them"
        )
        assert sum(value for (name, _), value in found.items() if name == "frostline_moves") == sum(range(1000))

    def test_the_document_says_the_same(self) -> None:
        known = values(exposition.text(all_of()))
        listed = {
            (row.name, tuple(sorted(sample.labels.items()))): sample.value
            for row in exposition.rows(all_of())
            for sample in row.samples
        }
        assert listed == known

    def test_each_name_and_label_is_one_that_prometheus_takes(self) -> None:
        for family in all_of():
            assert re.fullmatch(r"frostline_[a-z_]+", family.name)
            assert family.samples, f"{family.name} has no sample where everything is known"
            assert (family.kind == "counter") == family.name.endswith("_total")


class TestHealth:
    def test_what_is_wrong_is_said(self) -> None:
        assert judge(None, working=True, last_problem="").not_ready == ("the first pass is not finished",)
        assert judge(FULL, working=True, last_problem="").not_ready == ("disk s3 is away",)
        assert judge(FULL, working=True, last_problem="no route").not_ready[0] == "the last pass failed: no route"
        assert not judge(FULL, working=True, last_problem="no route").not_alive
        assert judge(FULL, working=False, last_problem="").not_alive


def get(address: str, path: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"{address}{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class TestServing:
    def test_beside_a_daemon(self, store: Store) -> None:
        """Before the first pass it lives and is not ready; after it, the numbers are those of the pass."""
        insert(store, OLD)
        metrics = Metrics(store, 0, version="1")
        answers: list[tuple[int, str]] = []
        stop = threading.Event()

        class Watched:
            def begin(self, status: DaemonStatus, working: Any) -> None:
                metrics.begin(status, working)
                answers.append(get(metrics.server.address, "/ready"))
                answers.append(get(metrics.server.address, "/metrics"))

            def passed(self, status: DaemonStatus, problem: str) -> None:
                metrics.passed(status, problem)
                address = metrics.server.address
                answers.extend(get(address, path) for path in ("/health", "/ready", "/metrics", "/other"))
                answers.append(get(address, "/metrics", host="attacker.example"))
                stop.set()

            end = metrics.end

        daemon.run(store, DaemonConfig(), stop, watch=Watched())
        early, first, health, ready, numbers, other, rebound = answers
        assert (early[0], json.loads(early[1])["problems"]) == (503, ["the first pass is not finished"])
        assert (first[0], one(values(first[1]), "frostline_daemon_passes_total")) == (200, 0)
        assert (health[0], ready[0], other[0], rebound[0]) == (200, 200, 404, 403)
        found = values(numbers[1])
        assert one(found, "frostline_daemon_passes_total") == 1
        assert one(found, "frostline_daemon_moves_total") == 1
        assert one(found, "frostline_store_requests_total", disk="s3", verb="PUT") > 0
        with pytest.raises(OSError):
            get(metrics.server.address, "/health")

    def test_a_port_in_use_is_said_and_the_daemon_works_on(self, store: Store) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(UsageError, match=f"127.0.0.1:{port}: .*in use"):
                Metrics(store, port, version="1").begin(DaemonStatus(), lambda: True)
            stop = threading.Event()
            metrics = Metrics(store, port, version="1")
            done = daemon.run(store, DaemonConfig(), stop, on_tick=lambda _: stop.set(), watch=metrics)
        assert (done.ticks, done.failures) == (1, 1)
        assert str(port) in done.last_error
        assert str(port) in done.problem, "who goes by the exit code is told that nobody measures"

    def test_a_port_that_is_free_again_is_taken_by_a_later_pass(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        metrics = Metrics(store, taken.getsockname()[1], version="1")
        stop = threading.Event()
        answers: list[int] = []

        class Freeing:
            begin, end = metrics.begin, metrics.end

            def passed(self, status: DaemonStatus, problem: str) -> None:
                metrics.passed(status, problem)
                answers.append(get(metrics.server.address, "/health")[0])
                stop.set()

        done = daemon.run(
            store, DaemonConfig(tick_seconds=0.01), stop, on_tick=lambda _: taken.close(), watch=Freeing()
        )
        assert answers == [200]
        assert (done.unserved, done.problem) == ("", "")
        told = [record.message for record in caplog.records if record.message.startswith("the metrics")]
        assert len(told) == 2, "once when it begins and once when it is over"

    def test_a_pass_that_fails_is_not_ready_and_keeps_the_numbers(self, store: Store) -> None:
        metrics = Metrics(store, 0, version="1")
        metrics.begin(DaemonStatus(running=True), lambda: True)
        try:
            metrics.passed(DaemonStatus(running=True, ticks=1), "")
            metrics.passed(DaemonStatus(running=True, ticks=2), "no route to host")
            status, body = get(metrics.server.address, "/ready")
            assert status == 503
            (problem,) = json.loads(body)["problems"]
            assert problem.endswith("failed: no route to host")
            assert get(metrics.server.address, "/health")[0] == 200
            found = values(get(metrics.server.address, "/metrics")[1])
            assert one(found, "frostline_daemon_passes_total") == 2
            assert one(found, "frostline_disk_up", disk="ssd", kind="local") == 1
        finally:
            metrics.end()


class TestVerb:
    @pytest.fixture
    def frostline(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Frostline:
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        line = Frostline(capsys)
        line("table", "create", "d.t", "--column", "k:int64", "--order-by", "k")
        (tmp_path / "rows.csv").write_text("k\n1\n2\n")
        line("insert", "d.t", "rows.csv")
        return line

    def test_once_without_a_daemon(self, frostline: Frostline) -> None:
        found = values(frostline("metrics"))
        assert one(found, "frostline_parts", table="d.t", disk="ssd", volume="hot", state="active") == 1
        assert one(found, "frostline_daemon_up") == 0
        assert not [name for name, _ in found if name.startswith("frostline_store_")], "a daemon's, which there is not"
        listed = {family["name"]: family for family in frostline.json("metrics")["metrics"]}
        assert listed["frostline_part_rows"]["samples"][0]["value"] == 2

    def test_without_the_extra_it_says_what_to_install(
        self, frostline: Frostline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A plain install: the text, and the server, name the extra; everything else works."""
        monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        frostline("metrics", code=2)
        assert "pip install 'frostline[metrics]'" in frostline.error
        assert frostline.json("metrics")["metrics"]
        monkeypatch.setenv("FROSTLINE_METRICS__PORT", "0")
        frostline("daemon", "run", "--once")
        with Store.open(embedded(tmp_path)) as store, pytest.raises(FrostlineError, match="prometheus_client"):
            Metrics(store, 0, version="1").begin(DaemonStatus(), lambda: True)


class TestConfigs:
    """What `configs/` offers to Prometheus and Grafana asks for numbers that there are."""

    @pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
    def test_each_number_that_is_asked_for_exists(self, name: str) -> None:
        known = {family.name: set(family.labels) for family in all_of()}
        text = (CONFIGS / "prometheus" / name).read_text()
        asked = set(re.findall(r"\bfrostline_[a-z_]+", text))
        assert asked
        assert asked <= known.keys()
        for metric, labels in re.findall(r"\b(frostline_[a-z_]+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+) *[=!]~?", labels)) <= known[metric]

    def test_each_rule_fires_on_trouble_and_on_nothing_else(self) -> None:
        """Every rule is a comparison, so it can be tried without a Prometheus: on a store with every trouble there is,
        and on one that has none."""
        later = NOW + timedelta(days=400)
        ill = values(exposition.text(all_of(FULL, ILL)))
        ill["frostline_daemon_trouble", ()] = one(values(exposition.text(all_of(FULL, TROUBLED))), TROUBLE)
        recent = {"d.t": {"taken": NOW, "verified": NOW, "drilled": NOW}}
        place = {PartsSeen("d.t", "ssd", "hot", "active"): Amount(2, 20, 200)}
        disks = (DiskSeen("ssd", "local", True, 50, 100), DiskSeen("s3", "object_disk", True, looked=NOW.timestamp()))
        well = Seen(NOW, place, {}, disks, backups=recent, replicas={"d.t": ReplicaSeen(NOW, 0)})
        good = values(exposition.text(all_of(well)))
        groups = yaml.safe_load((CONFIGS / "prometheus" / "alerts.yaml").read_text())["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) >= 8
        full = {**ill, ("frostline_disk_free_bytes", (("disk", "ssd"),)): 1.0}
        for rule in rules:
            assert fires(rule["expr"], full, later), f"{rule['alert']} is silent in trouble"
            assert not fires(rule["expr"], good, NOW), f"{rule['alert']} fires where all is well"
            assert {"summary", "description"} <= rule["annotations"].keys()


def fires(expression: str, found: Values, now: datetime) -> bool:
    """Whether a rule `[time() -] metric [/ metric] OP number` holds for any sample."""
    shape = r"(time\(\) - )?(frostline_\w+)(?: / (frostline_\w+))? (<|>|==|>=) ([\d.]+)"
    match = re.fullmatch(shape, expression)
    assert match, f"too much for this test: {expression}"
    for (name, labels), value in found.items():
        if name != match[2]:
            continue
        value = now.timestamp() - value if match[1] else value
        value = value / found[match[3], labels] if match[3] else value
        limit = float(match[5])
        if {"<": value < limit, ">": value > limit, "==": value == limit, ">=": value >= limit}[match[4]]:
            return True
    return False
