"""Replicas of a table, end to end: created, filled on any, fetched by the others, merged alike; and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.replicas.keeper.line import KeeperLine
from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from tiering.daemon.lock import daemon_lock
from tiering.daemon.status import read_status
from zerocopy.keeper.client import Keeper
from zerocopy.replica import entries


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create()
    return made


@pytest.fixture
def b(machine: Machines, a: Machine) -> Machine:
    made = machine("b")
    made.join()
    return made


@pytest.mark.in_turn
def test_what_one_inserts_the_other_fetches(a: Machine, b: Machine) -> None:
    assert a.insert(1, 2)["parts"] == ["all_0_0_0"]
    assert a.insert(3)["parts"] == ["all_1_1_0"]
    with a.serving():
        assert b.sync()["fetched"] == ["all_0_0_0", "all_1_1_0"]
    assert b.keys() == a.keys() == [1, 2, 3]
    assert b.files() == a.files()
    assert b.insert(4)["parts"] == ["all_2_2_0"]
    with b.serving():
        assert a.sync()["fetched"] == ["all_2_2_0"]
    assert a.keys() == b.keys() == [1, 2, 3, 4]


def test_the_same_block_anywhere_is_one(a: Machine, b: Machine) -> None:
    """I11, though the second machine has not even fetched what the first inserted."""
    a.insert(1, 2)
    assert b.insert(1, 2)["duplicates"] == 1
    assert b.keys() == []
    with a.serving():
        b.sync()
    assert b.keys() == [1, 2]


def test_files_that_one_attaches_the_other_fetches(a: Machine, b: Machine, tmp_path: Path) -> None:
    """Each file is in once, wherever it is attached again."""
    a.insert(1, 2)
    (part,) = (a.path / "ssd" / "store").rglob("data-0000.parquet")
    aside = tmp_path / "aside.parquet"
    aside.write_bytes(part.read_bytes())
    a("partition", "drop", "d.t", "all")
    done = a.json("partition", "attach", "d.t", str(aside))
    assert (done["rows"], len(done["parts"]), done["duplicates"]) == (2, 1, 0)
    assert b.json("partition", "attach", "d.t", str(aside))["duplicates"] == 1
    with a.serving():
        b.sync()
    assert b.keys() == a.keys() == [1, 2]
    assert b.files() == a.files()


def test_replicas_merge_alike(a: Machine, b: Machine) -> None:
    """I10: what two replicas make of one entry is equal, byte for byte."""
    for key in range(3):
        a.insert(key)
    with a.serving():
        b.sync()
        assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_0_2_1"]
        synced = b.sync()
    assert (synced["merged"], synced["fetched"]) == (["all_0_2_1"], [])
    assert a.parts() == b.parts() == ["all_0_2_1"]
    assert a.files() == b.files()
    assert a.keys() == b.keys() == [0, 1, 2]


def test_a_replica_that_comes_later_fetches_what_was_merged(a: Machine, machine: Machines) -> None:
    for key in range(3):
        a.insert(key)
    a("merge", "d.t", "--final")
    late = machine("late")
    late.join()
    with a.serving():
        synced = late.sync()
    assert synced["fetched"] == ["all_0_2_1"]
    assert late.keys() == [0, 1, 2]
    assert late.files() == a.files()


def test_status_and_queue_tell_who_is_behind(a: Machine, b: Machine) -> None:
    a.insert(1)
    before = b.json("replica", "status", "d.t", code=4)["replicas"]
    assert [(one["replica"], one["here"], one["parts"], one["behind"]) for one in before] == [
        ("a", False, 1, 1),
        ("b", True, 0, 1),
    ]
    assert "no reachable replica" in b.sync(code=1)["postponed"][0]["reason"]
    assert [entry["part"] for entry in b.json("replica", "queue", "d.t")["entries"]] == ["all_0_0_0"]
    with a.serving():
        (one,) = [one for one in b.json("replica", "status", "d.t", code=4)["replicas"] if one["replica"] == "a"]
        assert one["active"]
        b.sync()
    assert b.json("replica", "queue", "d.t")["entries"] == []
    assert b.json("replica", "list")["replicas"][0]["replica"] == "b"
    assert b.json("status")["replicated"] == ["d.t"]
    assert "replica status" in b("status")


def test_doctor_knows_the_replicas(a: Machine, b: Machine) -> None:
    a.insert(1)
    with a.serving():
        found = {one["check"]: one for one in b.json("doctor")["findings"] if one["subject"] == "replicas of d.t"}
    assert (found["replica-a"]["level"], found["replica-b"]["level"]) == ("note", "warning")
    assert "has 1 entry to do" in found["replica-b"]["what"]
    for disk in ("ssd", "hdd"):
        for file in (b.path / disk).glob("store/*/*/replica.json"):
            file.write_text('{"replica": "b", "token": "another"}')
    (one,) = (one for one in b.json("doctor", code=4)["findings"] if one["subject"] == "replicas of d.t")
    assert "another machine's now" in one["what"]


def test_a_machine_that_is_none_cannot_write(a: Machine, b: Machine) -> None:
    for disk in ("ssd", "hdd"):
        for file in (b.path / disk).glob("store/*/*/replica.json"):
            file.unlink()
    b.insert(1, code=13)
    assert "no replica" in b.error
    assert b.keys() == []


def test_another_structure_or_a_name_in_use_is_refused(a: Machine, machine: Machines) -> None:
    other = machine("other")
    other("table", "create", "d.t", "--column", "k:int32", "--order-by", "k", "--replicated", code=13)
    assert "int32" in other.error
    assert "int64" in other.error
    other("table", "create", "d.t", "--replicated", "--replica", "a", code=13)
    assert "another machine" in other.error
    assert other.json("table", "list")["tables"] == []
    other("table", "create", "d.nothing", "--replicated", code=10)


def test_what_would_go_behind_the_replicas_backs_is_refused(a: Machine) -> None:
    a.insert(1)
    a("partition", "detach", "d.t", "all", code=13)
    assert "replicas would not know" in a.error
    assert a.keys() == [1]


def test_the_last_one_takes_the_table_with_it(a: Machine, b: Machine, keeper: object) -> None:
    a.insert(1)
    a("table", "drop", "d.t", code=13)
    assert "replica a alone has 1 part" in a.error
    with a.serving():
        b.sync()
    a("table", "drop", "d.t")
    assert b.keys() == [1]
    assert b.insert(2)["rows"] == 1
    b("table", "drop", "d.t")
    assert b.json("keeper", "ls", "/tables/01")["nodes"] == []


def test_a_dead_replica_is_forgotten(a: Machine, b: Machine) -> None:
    with b.serving():
        a("replica", "drop", "d.t", "b", code=13)
        assert "active" in a.error
    a("replica", "drop", "d.t", "b")
    b.insert(1, code=13)
    assert "knows nothing of replica b" in b.error
    assert [one["replica"] for one in a.json("replica", "status", code=4)["replicas"]] == ["a"]


@pytest.mark.in_turn
def test_without_keeper_inserts_are_refused_and_queries_work(a: Machine, settings: KeeperConfig) -> None:
    import msgspec

    from tests.servers import free_port

    a.insert(1)
    a.write_configuration(
        msgspec.structs.replace(settings, hosts=(f"127.0.0.1:{free_port()}",), request_timeout_seconds=1)
    )
    a.insert(2, code=5)
    assert "cannot be reached" in a.error
    findings = [one for one in a.json("doctor", code=4)["findings"] if one["subject"] == "keeper"]
    assert any("cannot be reached" in one["what"] for one in findings)
    assert a.keys() == [1]
    a.write_configuration(settings)
    assert a.insert(2)["rows"] == 1
    assert a.keys() == [1, 2]


def test_a_store_without_replicated_tables_loads_nothing_of_it(tmp_path: Path) -> None:
    program = """
import sys
import pyarrow as pa
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table
from pathlib import Path
with Store.open(embedded(Path(sys.argv[1]))) as store:
    store.create_table(define_table("d.t", order_by="k", policy="hot_cold", columns=["k:int64"]))
    for key in (1, 2):
        store.table("d.t").insert(pa.table({"k": [key]}).to_batches())
    store.merge("d.t", MergeRequest(final=True))
    store.tick()
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"zerocopy", "kazoo", "aiohttp"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.fixture
def both(a: Machine, b: Machine) -> tuple[Machine, Machine]:
    """Each has the parts of two blocks."""
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
    return a, b


def told(one: Machine, *more: str) -> list[tuple[str, str]]:
    """The invariants that are broken, and the parts."""
    found = one.json("fsck", *more, code=4)["problems"]
    return [(problem["invariant"], problem["part"]) for problem in found if problem["disk"] == "keeper"]


PARTS = "/tables/01/d.t/replicas/a/parts"


def test_fsck_compares_a_replica_with_what_keeper_says_of_it(both: tuple[Machine, Machine], keeper: Keeper) -> None:
    """I9 to I11; what an entry that waits is about may be half done."""
    a, b = both
    for one in both:
        one("fsck", "--read-data")
    digest = keeper.get(f"{PARTS}/all_0_0_0").data
    keeper.set(f"{PARTS}/all_0_0_0", b"0" * 64)
    assert told(a) == [("I9", "all_0_0_0")]
    b("fsck")
    assert told(b, "--read-data") == [("I10", "all_0_0_0")]
    keeper.delete(f"{PARTS}/all_0_0_0")
    assert told(a) == [("I9", "all_0_0_0")]
    keeper.create(f"{PARTS}/all_0_0_0", digest)
    keeper.create(f"{PARTS}/all_7_7_0", digest)
    assert told(a) == [("I9", "all_7_7_0")]
    queued = entries.Get(time=datetime.now(UTC), replica="b", part="all_7_7_0", digest="0" * 64)
    keeper.create("/tables/01/d.t/replicas/a/queue/queue-0000000099", entries.encode(queued))
    a("fsck", "--read-data")
    keeper.delete(f"{PARTS}/all_7_7_0")
    for name in ("all_0_1_1", "all_1_2_1"):
        keeper.create(f"{PARTS}/{name}", digest)
    assert ("I11", "all_1_2_1") in told(a)


def test_fsck_without_keeper_says_what_it_did_not_compare(both: tuple[Machine, Machine]) -> None:
    a, _ = both
    nobody = KeeperConfig(hosts=("127.0.0.1:1",), root="/x", request_timeout_seconds=0.5)
    a.write_configuration(nobody)
    a("fsck", "--read-data")
    assert "replicas were not compared with Keeper" in a.error


def test_a_daemon_ends_though_keeper_never_answers(a: Machine, line: KeeperLine, settings: KeeperConfig) -> None:
    """Told to by SIGTERM while it waits for an answer, for hours if need be."""
    line.silence()
    hours = {"session_timeout_seconds": 10_000, "request_timeout_seconds": 10_000}
    a.write_configuration(msgspec.structs.replace(settings, hosts=(line.host,), **hours))
    command = [sys.executable, "-m", "tiering.cli.main", "-c", a.configuration, "daemon", "run"]
    with subprocess.Popen(command) as process:
        try:
            while read_status(a.path / "state").pid != process.pid:
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(200) == 0
        finally:
            process.kill()


def test_a_backup_comes_back_as_a_plain_table(a: Machine) -> None:
    a.insert(1, 2)
    repository = (a.path.parent / "backups").as_uri()
    a("backup", "init", repository)
    a("backup", "create", "--to", repository)
    a("backup", "restore", "latest", "--to", repository, "--drop-existing", code=13)
    assert "this machine only" in a("backup", "restore", "latest", "--to", repository, "--map-table", "d.t:d.back")
    assert "keeper" not in a.json("table", "show", "d.back")
    assert a.keys("d.back") == [1, 2]


def test_one_table_that_fails_does_not_keep_it_from_others(a: Machine, b: Machine, keeper: Keeper) -> None:
    """Its nodes are gone: each verb goes through all tables, names it, and ends with 3."""
    a.create(table="d.aside")
    b.join(table="d.aside")
    a.insert(1)
    keeper.delete_tree("/tables/01/d.aside")
    with a.serving():
        synced = b.json("replica", "sync", code=3)
        assert [(one["table"], one["fetched"]) for one in synced["synced"]] == [("d.t", ["all_0_0_0"])]
        assert [(one["table"], bool(one["error"])) for one in synced["failed"]] == [("d.aside", True)]
        assert "d.aside: not synced: " in b.error
        found = b.json("replica", "status", code=3)
        assert {one["table"] for one in found["replicas"]} == {"d.t"}
        assert [one["table"] for one in found["failed"]] == ["d.aside"]
        assert "d.aside" in b("replica", "status", code=3) + b.error
        findings = b.json("doctor", code=4)["findings"]
    assert {one["subject"] for one in findings if one["check"].startswith("replica-")} == {"replicas of d.t"}
    assert any(one["subject"] == "replicas of d.aside" and one["level"] == "problem" for one in findings)
    assert b.keys() == [1]
    b("replica", "status", "d.aside", code=10)


def test_an_answer_says_that_its_replica_is_behind(a: Machine, b: Machine) -> None:
    """What the others have and nobody gives: on stderr and in the JSON, until it is here."""
    a.insert(1)
    b.sync(code=1)
    said = b.json("query", "select count(*) from d.t")
    assert said["rows"] == [[0]]
    assert [(one["table"], one["waiting"]) for one in said["replicas_behind"]] == [("d.t", 1)]
    b("query", "select count(*) from d.t")
    assert "d.t: the answer may lack rows: 1 entry" in b.error
    b("query", "select 1")
    assert "may lack rows" not in b.error
    with a.serving():
        b.sync()
    assert "replicas_behind" not in b.json("query", "select count(*) from d.t")


def test_an_answer_says_that_nobody_follows_the_others(a: Machine, b: Machine) -> None:
    """Without a daemon nothing was tried that could have failed: only stderr says that rows may be missing."""
    a.insert(1)
    assert b.json("query", "select count(*) from d.t")["rows"] == [[0]]
    assert "d.t: the answer may lack rows" in b.error
    b("query", "select 1")
    assert "may lack rows" not in b.error
    with daemon_lock(b.path / "state"):
        b("query", "select count(*) from d.t")
    assert "may lack rows" not in b.error
