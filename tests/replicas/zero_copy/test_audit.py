"""`replica audit` and collections that heed marks: two machines with a log each, a real ZooKeeper, one bucket.

Guards I4: marks are one of two witnesses, and nothing goes while they were not compared with the logs (P2 to P4, P10,
P11, P13)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobReference, NewSet
from disks.garbage.collect import GcReport, collect
from disks.garbage.rules import GcRules
from disks.kinds import as_disk
from tests.homes import Home
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import auditing
from zerocopy.keeper.client import Keeper
from zerocopy.marks import audit, census
from zerocopy.marks.audit import Marked, differences, repair
from zerocopy.marks.audit_result import MarkReferences
from zerocopy.marks.census import MarkedSet
from zerocopy.marks.marks import Marks
from zerocopy.marks.nodes import ROOT, Holder, StoreNodes

LATER = datetime.now(UTC) + timedelta(days=3)


@pytest.fixture
def machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: KeeperConfig, keeper: Keeper
) -> tuple[Home, Home]:
    """Each has its own table with a part in the bucket from before it knew Keeper: nothing is marked."""
    found = []
    for number, name in enumerate(("a", "b")):
        home = Home(tmp_path, name, capsys, log=name)
        home.create()
        home.insert(*range(10 * number, 10 * number + 3))
        home.to_bucket()
        document = yaml.safe_load(home.configuration.read_text())
        document["keeper"] = {"hosts": list(settings.hosts), "root": settings.root}
        home.configuration.write_text(yaml.safe_dump(document))
        found.append(home)
    return found[0], found[1]


def run(home: Home, *more: str, code: int = 0) -> Any:
    (found,) = home.json("replica", "audit", *more, code=code)["audits"]
    return found


def kinds(found: Any) -> list[tuple[str, str]]:
    return [(one["kind"], one["log"]) for one in found["differences"]]


def blobs(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "s3").iterdir() if "-file-" in path.name}


def nodes(keeper: Keeper) -> StoreNodes:
    (store,) = keeper.children(ROOT)
    return StoreNodes(store)


def held(keeper: Keeper) -> dict[str, list[Holder]]:
    names = [one.name for one in census.sets(keeper, nodes(keeper))]
    return dict(census.holders(keeper, nodes(keeper), names))


def gc(home: Home, *, now: datetime = LATER, **options: Any) -> GcReport:
    """As `gc --delete` in three days."""
    with Store.open(home.configuration) as store:
        disk = store.disk("s3")
        assert as_disk(disk, LoggedDisk) is not None
        marks = auditing.references(store.context, as_disk(disk, LoggedDisk))
        rules = GcRules(delete=True, max_delete_fraction=1.0, **options)
        return collect(disk, rules, now=now, references=marks)


def unnamed(home: Home, keeper: Keeper, log: str) -> tuple[str, Marks, NewSet]:
    """A blob that no log names, and a mark holds."""
    from disks.object_disk.blobs import put_blob

    with Store.open(home.configuration) as store:
        disk = as_disk(store.disk("s3"), LoggedDisk)
        assert disk is not None
        sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        key = put_blob(disk.store, "t/p/x", b"test", sha256, revision=0)
    marks = Marks(keeper, nodes(keeper).store, log)
    new = NewSet("1" * 32, (key,), "t/p")
    marks.create([new])
    return key, marks, new


def test_marks_are_made_of_what_the_logs_name(machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path) -> None:
    a, b = machines
    found = run(a, code=4)
    assert kinds(found) == [("mark_missing", "a"), ("mark_missing", "b")]
    assert (found["clean"], found["marks"], found["logs"]) == (False, 0, {"a": 1, "b": 1})
    assert "no mark protects" in str(gc(a).refused)
    found = run(a, "--repair")
    assert (found["repaired"], found["sets"], found["marks"], found["clean"]) == (2, 2, 2, True)
    assert {holder.log for holders in held(keeper).values() for holder in holders} == {"a", "b"}
    listed = {key for one in census.sets(keeper, nodes(keeper)) for key in one.keys}
    assert listed == blobs(tmp_path)
    before = keeper.get(nodes(keeper).path).version
    run(b)
    assert keeper.get(nodes(keeper).path).version == before + 2
    run(b, "--dry-run")
    assert keeper.get(nodes(keeper).path).version == before + 2
    assert (a.keys(), b.keys()) == ([0, 1, 2], [10, 11, 12])


def looked_at(home: Home) -> dict[str, Any]:
    """What `doctor` says of sharing and marks."""
    found = home.json("doctor")["findings"]
    return {one["check"]: one for one in found if one["check"] in ("sharing", "marks")}


def test_doctor_says_who_shares_and_whether_gc_may_collect(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path
) -> None:
    a, b = machines
    before = looked_at(a)
    assert before["sharing"]["level"] == "ok"
    assert before["sharing"]["what"].endswith("with logs b")
    assert before["marks"]["level"] == "warning"
    assert "its marks are in this Keeper" in before["marks"]["what"]
    assert "frostline replica audit" in before["marks"]["hint"]
    run(a, "--repair")
    assert looked_at(a)["marks"]["what"].startswith("gc may collect")
    assert looked_at(b)["marks"]["level"] == "warning"  # its own audit counts, not another machine's
    keeper.delete_tree(nodes(keeper).path)
    assert "it lost its data" in looked_at(a)["marks"]["what"]
    for record in (tmp_path / "s3" / "logs" / "b" / "writers").iterdir():
        record.write_bytes(b"torn")
    unknown = looked_at(a)
    assert (unknown["sharing"]["level"], unknown.keys()) == ("unknown", {"sharing"})


def test_nothing_goes_before_an_audit_of_this_machine(machines: tuple[Home, Home], keeper: Keeper) -> None:
    """P11: neither by another machine's audit, nor by that of a Keeper that lost everything, or was set back."""
    a, b = machines
    run(a, "--repair")
    assert "never compared" in str(gc(b).refused)
    assert gc(a).refused is None
    path = nodes(keeper).path
    earlier = keeper.get(path).data
    run(a)
    keeper.set(path, earlier)
    assert "was set back" in str(gc(a).refused)
    before = held(keeper)
    keeper.delete_tree(ROOT)
    assert "lost its data" in str(gc(a).refused)
    run(a, "--repair")
    assert held(keeper) == before
    assert gc(a).refused is None
    assert (a.keys(), b.keys()) == ([0, 1, 2], [10, 11, 12])


def test_what_a_mark_holds_stays_though_no_log_names_it(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path
) -> None:
    """And goes when the mark is gone, with the node of its set (P4)."""
    a, _ = machines
    run(a, "--repair")
    key, marks, new = unnamed(a, keeper, "b")
    report = gc(a)
    assert (report.refused, report.deleted) == (None, 0)
    assert key in blobs(tmp_path)
    marks.remove(marks.seen([new.reference]))
    report = gc(a)
    assert (report.refused, report.deleted) == (None, 1)
    assert key not in blobs(tmp_path)
    assert new.blob_set not in held(keeper)


def before_release(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen after a collection has read the marks, and before it takes sets away."""
    original = MarkReferences.release

    def release(self: MarkReferences, keys: Any) -> Any:
        act()
        return original(self, keys)

    monkeypatch.setattr(MarkReferences, "release", release)


def test_a_mark_that_comes_at_the_last_moment_keeps(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, P5: the server refuses to take the set away; nobody goes by what was read before."""
    a, _ = machines
    run(a, "--repair")
    key, marks, new = unnamed(a, keeper, "b")
    marks.remove(marks.seen([new.reference]))
    before_release(monkeypatch, lambda: marks.add([new.reference]))
    assert gc(a).deleted == 0
    assert key in blobs(tmp_path)


def test_an_audit_stops_a_collection(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    run(a, "--repair")
    key, marks, new = unnamed(a, keeper, "b")
    marks.remove(marks.seen([new.reference]))
    before_release(monkeypatch, lambda: run(b))
    report = gc(a)
    assert report.deleted == 0
    assert report.refused is not None
    assert key in blobs(tmp_path)


def test_a_mark_that_was_taken_away_is_found_and_put_back(machines: tuple[Home, Home], keeper: Keeper) -> None:
    """P3: by hand, and its set with it. Meanwhile the log that names the object keeps it."""
    a, b = machines
    run(a, "--repair")
    (name,) = [name for name, holders in held(keeper).items() if holders[0].log == "b"]
    keeper.delete_tree(nodes(keeper).blob_set(name))
    assert gc(a).deleted == 0
    assert b.keys() == [10, 11, 12]
    assert kinds(run(a, code=4)) == [("mark_missing", "b")]
    assert "no mark protects" in str(gc(a).refused)
    assert run(a, "--repair")["repaired"] == 1
    assert [holder.log for holder in held(keeper)[name]] == ["b"]


def test_a_mark_that_its_log_names_is_not_asked_how_old_it_is(
    machines: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of 30,000 marks asked Keeper for each of them: more than half of what it asked for."""
    a, _ = machines
    run(a, "--repair")
    asked: list[str] = []
    original = Keeper.find_all

    def find_all(self: Keeper, paths: Sequence[str]) -> Any:
        asked.extend(paths)
        return original(self, paths)

    monkeypatch.setattr(Keeper, "find_all", find_all)
    assert kinds(run(a)) == []
    assert asked
    assert not [path for path in asked if ":" in path.rpartition("/")[2]]


def test_what_was_dropped_goes_when_its_mark_does(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: a mark is left until its own machine audits, and no other one takes it away."""
    a, b = machines
    run(a, "--repair")
    before = blobs(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(Marks, "remove", lambda marks, seen: None)
        a("partition", "drop", "d.t", "all")
    found = run(b)
    assert kinds(found) == []
    monkeypatch.setattr(auditing, "_SETTLED", timedelta(days=-1))
    assert kinds(run(b, "--repair", code=4)) == [("mark_left_over", "a")]
    assert gc(b).deleted == 0
    assert run(a, "--repair")["repaired"] == 1
    run(b)
    assert gc(b).deleted == 1
    assert len(before - blobs(tmp_path)) == 1
    assert b.keys() == [10, 11, 12]


def test_marks_of_the_dead_are_told_and_stay(machines: tuple[Home, Home], keeper: Keeper) -> None:
    """P13: that nobody hears of a machine proves nothing."""
    a, _ = machines
    run(a, "--repair")
    (first, *_) = held(keeper)
    ghost = Marks(keeper, nodes(keeper).store, "ghost")
    ghost.add([BlobReference(first, "t/p")])
    found = run(a, "--repair", code=4)
    assert kinds(found) == [("mark_of_the_dead", "ghost")]
    assert found["clean"]
    assert not ghost.missing([BlobReference(first, "t/p")])


def test_marks_of_a_retired_log_go_when_it_counts_no_longer(
    machines: tuple[Home, Home], keeper: Keeper, tmp_path: Path
) -> None:
    """P13: an audit of any machine takes them away, a day after the retirement and no earlier."""
    a, _ = machines
    run(a, "--repair")
    for path in (tmp_path / "s3" / "logs" / "b").rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))
    a("disk", "retire-log", "s3", "b", "--give-up")
    assert run(a, "--repair")["differences"] == []
    assert {one.log for some in held(keeper).values() for one in some} == {"a", "b"}
    record = max((tmp_path / "s3" / "logs" / "b" / "writers").iterdir())
    os.utime(record, (1.7e9, 1.7e9))
    assert kinds(run(a, code=4)) == [("mark_of_the_dead", "b")]
    assert run(a, "--repair")["clean"]
    assert {one.log for some in held(keeper).values() for one in some} == {"a"}
    assert gc(a).deleted == 1
    assert a.keys() == [0, 1, 2]


def test_an_object_that_is_gone_is_told(machines: tuple[Home, Home], tmp_path: Path) -> None:
    a, b = machines
    run(a, "--repair")
    for name in blobs(tmp_path):
        (tmp_path / "s3" / name).unlink()
    found = run(b, "--repair", code=4)
    assert kinds(found) == [("object_missing", "a"), ("object_missing", "b")]
    assert not found["clean"]


def test_the_terminal_says_whether_gc_may_collect(machines: tuple[Home, Home]) -> None:
    a, _ = machines
    found = a("replica", "audit", code=4)
    assert "\n'frostline replica audit --repair'" in found
    shown = a("replica", "audit", "s3", "--repair")
    assert "puts back" not in shown
    assert "2 differences repaired." in shown
    assert "Clean: gc may collect here." in shown
    assert "log: NAME" in a("replica", "audit", "ssd", code=2) + a.error


ONE, TWO = BlobReference("1" * 32, "t/p"), BlobReference("1" * 32, "t/q")


def marked(keys: tuple[str, ...], *holders: Holder, settled: bool = False) -> Marked:
    one = MarkedSet(ONE.blob_set, keys, len(holders))
    uses = ((holder.log, BlobReference(ONE.blob_set, holder.directory)) for holder in holders)
    return Marked({one.name: one}, {one.name: holders}, frozenset(uses) if settled else frozenset())


def test_a_set_that_lists_too_little_is_listed_anew() -> None:
    logs = {"a": {ONE: frozenset({"k1", "k2"})}, "b": {TWO: frozenset({"k3"})}}
    known = marked(("k1", "k4"), Holder("a", "t/p"), Holder("b", "t/q"))
    found = differences(logs, known, dict.fromkeys(("k1", "k2", "k3"), 1))
    assert [one.kind for one in found] == [audit.KEYS_DIFFER] * 2
    plan = repair(logs, known, found, "a")
    assert plan.sets == {ONE.blob_set: {"k1", "k2", "k3", "k4"}}
    assert not plan.marks


def test_a_young_mark_may_be_of_a_commit_on_its_way() -> None:
    logs: dict[str, audit.Named] = {"a": {}}
    assert differences(logs, marked(("k1",), Holder("a", "t/p")), {}) == []
    (found,) = differences(logs, marked(("k1",), Holder("a", "t/p"), settled=True), {})
    assert (found.kind, found.is_harmless) == (audit.LEFT_OVER, True)
    assert repair(logs, marked(("k1",)), [found], "a").left_over == (ONE,)
    assert repair(logs, marked(("k1",)), [found], "b").left_over == ()
