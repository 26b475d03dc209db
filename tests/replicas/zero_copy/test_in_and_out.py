"""Beginning and ending to share objects: on for replicas that have copies of their own, off again, to another bucket,
away from one; and never by half (I4, I14)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.engine.store import Store
from zerocopy.execution import auditing

__all__ = ["machine"]

PARTS = ["all_0_0_0", "all_1_1_0"]
ROWS = list(range(2000))


def other_bucket(one: Machine, url: str, *, log: bool = True) -> None:
    """From now on the machine has another place for cold parts, too: disk `far`, with a `log` of its own."""
    document = yaml.safe_load(one.configuration.read_text())
    document["disks"]["far"] = {"type": "object_disk", "url": url, **({"log": one.name} if log else {})}
    document["policies"]["cold"]["volumes"].append({"name": "far", "disks": ["far"]})
    one.configuration.write_text(yaml.safe_dump(document))


def all_to(one: Machine, disk: str) -> None:
    done = one.json("move", "d.t", "--partition", "all", "--to-disk", disk)
    assert (sorted(move["part"] for move in done["moved"]), done["failed"], done["skipped"]) == (PARTS, [], [])


def collected(one: Machine, name: str) -> int:
    """How many objects a `gc --delete` in three days takes off the disk, after an audit."""
    one.json("replica", "audit", name)
    with Store.open(one.configuration) as store:
        disk = store.disk(name)
        assert as_disk(disk, LoggedDisk) is not None
        marks = auditing.references(store.context, as_disk(disk, LoggedDisk))
        rules = GcRules(delete=True, max_delete_fraction=1.0)
        report = collect(disk, rules, now=datetime.now(UTC) + timedelta(days=3), references=marks)
        assert report.refused is None
        return report.deleted


@pytest.fixture
def far(bucket: str, s3_environment: Server, a: Machine, b: Machine) -> str:
    """A second bucket, which both machines have; two parts, on both machines' SSDs."""
    name = s3_environment.new_bucket()
    for one in (a, b):
        other_bucket(one, f"s3://{name}/cold/")
    a.insert(*ROWS[:1000])
    a.insert(*ROWS[1000:])
    with a.serving():
        b.sync()
    return name


def whole(*machines: Machine, collected: bool = False) -> None:
    """`collected`: as three days from now, when no revision is kept any more that names what has gone."""
    for one in machines:
        assert one.keys() == ROWS
        if not collected:
            one("fsck", "--read-data")


@pytest.mark.in_turn
def test_copies_of_their_own_become_one_and_two_again(
    a: Machine, b: Machine, bucket: str, far: str, s3_environment: Server
) -> None:
    """On: a move into the bucket of the other one, without a byte. Off: a move out of it, and both pay."""
    with a.serving():
        all_to(a, "s3")
        all_to(b, "far")
        copies = blobs_in(far, s3_environment)
        assert len(copies) == len(blobs_in(bucket, s3_environment)) == 2
        before = blobs_in(bucket, s3_environment)
        all_to(b, "s3")
        assert blobs_in(bucket, s3_environment) == before
        whole(a, b)
        assert collected(b, "far") == 2
        assert blobs_in(far, s3_environment) == []
        all_to(b, "far")
        assert len(blobs_in(far, s3_environment)) == 2
        assert collected(b, "s3") == 0
    all_to(a, "ssd")
    assert collected(a, "s3") == 2
    whole(a, b, collected=True)
    for name in ("s3", "far"):
        (found,) = b.json("replica", "audit", name, "--dry-run")["audits"]
        assert (found["differences"], found["marks"]) == ([], sum(found["logs"].values()))


@pytest.mark.in_turn
def test_another_bucket_and_the_old_one_drained(
    a: Machine, b: Machine, bucket: str, far: str, s3_environment: Server
) -> None:
    """Whoever goes first copies, the others follow without a byte; when the last has left, nothing is kept."""
    with a.serving():
        all_to(a, "s3")
        all_to(b, "s3")
        all_to(a, "far")
        assert collected(a, "s3") == 0
        whole(a, b)
        before = blobs_in(far, s3_environment)
        all_to(b, "far")
        assert blobs_in(far, s3_environment) == before
    assert len(before) == 2
    assert collected(b, "s3") == 2
    assert blobs_in(bucket, s3_environment) == []
    whole(a, b, collected=True)
    (found,) = a.json("replica", "audit", "s3", "--dry-run")["audits"]
    assert (found["marks"], found["objects"], found["differences"]) == (0, 0, [])


@pytest.mark.in_turn
def test_a_disk_with_a_log_of_its_own_is_drained_by_each_machine(
    a: Machine, b: Machine, bucket: str, far: str, s3_environment: Server
) -> None:
    """The first copies to the next bucket, the other one follows without a byte; nothing comes back to the drained one
    by a fetch, a rule or a takeover, and its objects go when the last machine has left."""
    with a.serving():
        all_to(a, "s3")
        all_to(b, "s3")
        done = a.json("disk", "drain", "s3")
        assert ([move["to"] for move in done["moved"]], done["empty"]) == (["far", "far"], True)
        assert collected(a, "s3") == 0
        before = blobs_in(far, s3_environment)
        assert b.disks() == dict.fromkeys(PARTS, "s3")
        assert b.json("disk", "drain", "s3")["empty"]
        assert blobs_in(far, s3_environment) == before
        a.insert(5000)
        a.move("all_2_2_0", "far")
        assert b.sync()["fetched"] == ["all_2_2_0"]
        assert b.disks() == dict.fromkeys([*PARTS, "all_2_2_0"], "far")
    assert collected(b, "s3") == 2
    assert blobs_in(bucket, s3_environment) == []
    assert a.keys() == b.keys() == [*ROWS, 5000]


@pytest.mark.in_turn
def test_a_prefix_of_several_is_not_opened_as_that_of_one(
    a: Machine, b: Machine, bucket: str, far: str, s3_environment: Server
) -> None:
    """Nor the other way round: neither way round anything is written, and what it was opens as before."""
    with a.serving():
        all_to(a, "s3")
        all_to(b, "s3")
    shared = a.configuration.read_text()
    document = yaml.safe_load(shared)
    del document["disks"]["s3"]["log"]
    client = s3_environment.client()

    def listing() -> Any:
        found = client.list_objects_v2(Bucket=bucket)["Contents"]
        return [(item["Key"], item["ETag"]) for item in found]

    before = listing()
    a.configuration.write_text(yaml.safe_dump(document))
    for verb in (["gc", "s3", "--delete"], ["move", "d.t", "--part", PARTS[0], "--to-disk", "ssd"], ["fsck"]):
        assert "s3 is another one" in _said(a, *verb)
    a("disk", "adopt", "s3")  # who insists has a disk that does nothing
    for verb in (["gc", "s3", "--delete"], ["move", "d.t", "--part", PARTS[0], "--to-disk", "ssd"], ["fsck"]):
        said = _said(a, *verb)
        assert "several logs" in said, said
    assert listing() == before
    a.configuration.write_text(shared)
    a("disk", "adopt", "s3")
    whole(a, b)
    (found,) = a.json("replica", "audit", "s3", "--dry-run")["audits"]
    assert found["differences"] == []


def _said(one: Machine, *words: str) -> str:
    """What a command that must not end well says."""
    from tiering.cli import main as cli

    one._capsys.readouterr()
    code = cli.run(["-c", str(one.configuration), "--yes", *words])
    captured = one._capsys.readouterr()
    assert code, captured.out
    return captured.out + captured.err


def test_an_older_version_refuses_the_prefix(a: Machine, bucket: str, far: str, s3_environment: Server) -> None:
    """Its gc knows one log: the mark of the prefix is one that it never heard of."""
    all_to(a, "s3")
    body = s3_environment.client().get_object(Bucket=bucket, Key="cold/.SCHEMA_VERSION")["Body"]
    assert body.read().strip() == b"3"


def test_a_bucket_without_a_log_of_ones_own(bucket: str, s3_environment: Server, a: Machine, b: Machine) -> None:
    """It would be one that all replicas share: the table was made without."""
    a.insert(*ROWS[:1000])
    a.insert(*ROWS[1000:])
    all_to(a, "s3")
    other_bucket(a, f"s3://{s3_environment.new_bucket()}/own/", log=False)
    failed = a.json("move", "d.t", "--partition", "all", "--to-disk", "far", code=1)["failed"]
    assert {move["part"] for move in failed} == set(PARTS)
    assert all("give disk far a log" in one["error"] for one in failed)
    whole(a)
