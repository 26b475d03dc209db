"""Collections where several logs share the objects of a prefix: what any witness names stays, and one that cannot be
read whole stops everything (I4, I5; P1 to P5, P11, P13, P29)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.garbage.collect import GcReport, collect
from disks.garbage.listing import list_whole
from disks.garbage.reference_sources import References
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import INTENTS_PREFIX
from disks.object_disk.sharing import recorded_keeper
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.named_log import NamedLogStore, whole_prefix
from oplog import pins
from oplog.errors import AccessDenied, FrostlineError, NotFound, Refused, Transient
from oplog.kinds import Inserted
from oplog.revision import is_blob_key
from tests.committed import put, remove

LATER = datetime.now(UTC) + timedelta(days=3)
DAY = 24 * 3600
NAMES = ("a", "b", "c")
KEEPER = "5" * 32


class Prefix(MemoryStore):
    """A prefix whose answers a test can bend."""

    def __init__(self) -> None:
        super().__init__("shared")
        self.refuses: Callable[[str], FrostlineError | None] = lambda key: None
        self.on_delete: Callable[[list[str]], None] = lambda keys: None
        self.on_put: Callable[[str], None] = lambda key: None

    def get(self, key: str, byte_range: Any = None) -> bytes:
        if (error := self.refuses(key)) is not None:
            raise error
        return super().get(key, byte_range)

    def list(self, prefix: str = "", *, start_after: str = "") -> Any:
        if (error := self.refuses(prefix)) is not None:
            raise error
        return super().list(prefix, start_after=start_after)

    def put(self, key: str, payload: Any, *, sha256: bytes, metadata: Any = None) -> None:
        super().put(key, payload, sha256=sha256, metadata=metadata)
        self.on_put(key)

    def delete(self, keys: Any) -> dict[str, FrostlineError | None]:
        wanted = list(keys)
        self.on_delete(wanted)
        return super().delete(wanted)

    def blobs(self) -> set[str]:
        return {key for key in self._objects if is_blob_key(key)}


class Marks:
    """The marks of replicas, as a test has them."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = set(keys)
        self.why: str | None = None
        self.error: FrostlineError | None = None
        self.released: list[set[str]] = []
        self.asked = 0
        self.keeps: set[str] = set()
        self.place = KEEPER

    def keeper(self) -> str:
        return self.place

    def objection(self) -> str | None:
        return self.why

    def held(self) -> Collection[str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return set(self.keys)

    def release(self, keys: Collection[str]) -> Collection[str]:
        self.released.append(set(keys))
        return set(keys) - self.keeps


@pytest.fixture
def prefix() -> Prefix:
    return Prefix()


@pytest.fixture
def logs(prefix: Prefix, tmp_path: Path) -> dict[str, ObjectDisk]:
    """Three logs, each with a file of its own."""
    found = {name: open_log(prefix, tmp_path, name) for name in NAMES}
    for name, disk in found.items():
        put(disk, f"{name}/own.parquet")
    return found


def open_log(prefix: Prefix, state: Path, name: str, **options: Any) -> ObjectDisk:
    return ObjectDisk(name, NamedLogStore(prefix, name), state / name, snapshot_every_commits=0, **options)


def adopt(disk: ObjectDisk, source: ObjectDisk, path: str) -> None:
    row = source.file_table.get(path)
    assert row is not None
    with disk.transaction(Inserted()) as transaction:
        transaction.adopt(row)
        transaction.commit()


def run(disk: ObjectDisk, marks: References | None = None, *, now: datetime = LATER, **options: Any) -> GcReport:
    rules = GcRules(**{"delete": True, "max_delete_fraction": 1.0, **options})
    if marks is not None:
        recorded_keeper.say(whole_prefix(disk.store), KEEPER, "zk:2181/frostline")
    return collect(disk, rules, now=now, references=marks)


def test_what_any_log_names_stays(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """P1, P13: dropped by whoever uploaded it, it stays until the last log is without it."""
    key = put(logs["a"], "t/p.parquet")
    gone = put(logs["a"], "t/gone.parquet")
    adopt(logs["b"], logs["a"], "t/p.parquet")
    adopt(logs["c"], logs["b"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/gone.parquet")
    report = run(logs["a"])
    assert report.refused is None
    assert report.deleted == 1
    assert report.foreign == []
    assert gone not in prefix.blobs()
    for name in ("b", "c"):
        assert key in prefix.blobs()
        assert logs[name].read("t/p.parquet") == b"some bytes"
        remove(logs[name], "t/p.parquet")
        other = {"b": "c", "c": "b"}[name]
        assert run(logs[other]).refused is None
    assert run(logs["b"]).refused is None
    assert key not in prefix.blobs()
    assert len(prefix.blobs()) == len(NAMES)


def test_the_tables_of_other_logs_are_not_read(logs: dict[str, ObjectDisk], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked only of what the own log does not name, in one pass over their rows and entries."""
    from disks.garbage import reference_sources

    read: list[str | None] = []

    def collected(disk: Any, *arguments: Any, **options: Any) -> Any:
        read.append(disk.log_name)
        return collect_references(disk, *arguments, **options)

    collect_references = reference_sources.collect_references
    monkeypatch.setattr(reference_sources, "collect_references", collected)
    key = put(logs["b"], "t/p.parquet")
    logs["b"].write_snapshot()
    put(logs["c"], "t/q.parquet")
    remove(logs["c"], "t/q.parquet")
    report = run(logs["a"])
    assert (report.refused, report.deleted) == (None, 1)
    assert read == ["a"]
    assert logs["b"].store.head(key)


def test_a_file_of_another_log_is_followed_from_path_to_path(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """I5: what a pin of it keeps had other paths before, and has none now."""
    key = put(logs["b"], "t/p/x.parquet")
    logs["b"].write_snapshot()
    for step in ("link", "remove", "rename"):
        with logs["b"].transaction(Inserted()) as transaction:
            if step == "link":
                transaction.link("t/p/x.parquet", "u/p/x.parquet")
            elif step == "remove":
                transaction.remove("t/p")
            else:
                transaction.rename("u/p", "u/q")
            transaction.commit()
    pins.create(logs["b"].store, "keep", logs["b"].revision, holder="test")
    remove(logs["b"], "u/q/x.parquet")
    assert run(logs["a"]).refused is None
    assert key in prefix.blobs()
    pins.release(logs["b"].store, "keep")
    assert run(logs["a"]).deleted == 1
    assert key not in prefix.blobs()


def test_any_log_collects_what_another_left(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """P4: whoever collects; an object that nobody names any more goes."""
    key = put(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")
    report = run(logs["c"])
    assert (report.refused, report.deleted) == (None, 1)
    assert key not in prefix.blobs()


def test_the_retention_and_the_pins_of_another_log_are_heeded(
    prefix: Prefix, logs: dict[str, ObjectDisk], tmp_path: Path
) -> None:
    """I4: as its machine has configured it, not as the collecting one has."""
    pinned = put(logs["b"], "t/q.parquet")
    pins.create(logs["b"].store, "keep", logs["b"].revision, holder="somebody")
    remove(logs["b"], "t/q.parquet")
    key = put(logs["b"], "t/p.parquet")
    long = open_log(prefix, tmp_path, "b", retention_seconds=30 * DAY)
    remove(long, "t/p.parquet")
    assert run(logs["a"], retention=timedelta(0)).refused is None
    assert {key, pinned} <= prefix.blobs(), "its owner keeps what was removed for a month"
    month = LATER + timedelta(days=40)
    assert run(logs["a"], now=month).refused is None
    assert prefix.blobs() & {key, pinned} == {pinned}
    pins.release(logs["b"].store, "keep")
    assert run(logs["a"], now=month).refused is None
    assert not {key, pinned} & prefix.blobs()


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["operations/", "snapshots/", "pins/", "writers/"])
@pytest.mark.parametrize("error", [Transient("away"), AccessDenied("not yours"), NotFound("gone")])
def test_a_log_that_cannot_be_read_whole_stops_everything(
    prefix: Prefix, logs: dict[str, ObjectDisk], what: str, error: FrostlineError
) -> None:
    """P2: each read of another log fails in turn, by a listing or by the object itself."""
    for disk in (logs["b"], logs["c"]):
        put(disk, "t/p.parquet")
        disk.write_snapshot()
        pins.create(disk.store, "keep", 1, holder="somebody")
    remove(logs["b"], "t/p.parquet")
    before = prefix.blobs()

    def of_b(key: str) -> FrostlineError | None:
        if isinstance(error, NotFound) and key.endswith("/"):
            return None
        own = {key: None for key in prefix._objects if key.startswith(f"logs/b/{what}")}
        return error if key.startswith(f"logs/b/{what}") and (key.endswith("/") or key == list(own)[-1]) else None

    prefix.refuses = of_b
    report = run(logs["a"])
    if isinstance(error, NotFound) and what in ("pins/", "snapshots/"):
        assert before - prefix.blobs() <= set(report.orphans), "a pin that was released since; an older start is read"
    else:
        assert report.refused
        assert prefix.blobs() == before
    prefix.refuses = lambda key: None
    assert run(logs["a"]).refused is None


@pytest.mark.parametrize("what", ["operations/", "snapshots/", "pins/", "writers/"])
def test_a_log_that_cannot_be_read_for_a_moment_stops_everything(
    prefix: Prefix, logs: dict[str, ObjectDisk], what: str
) -> None:
    """P2: the one read that fails is of what a revision still needs, and nothing that comes later asks for it."""
    put(logs["b"], "t/p.parquet")
    remove(logs["b"], "t/p.parquet")
    logs["b"].write_snapshot()
    pins.create(logs["b"].store, "keep", 1, holder="somebody")
    before = prefix.blobs()
    failed: list[str] = []

    def once(key: str) -> FrostlineError | None:
        if failed or not key.startswith(f"logs/b/{what}"):
            return None
        failed.append(key)
        return Transient("away")

    prefix.refuses = once
    assert run(logs["a"]).refused
    assert failed
    assert prefix.blobs() == before


@pytest.mark.parametrize("where", ["logs/b/operations/", "logs/b/snapshots/", "logs/b/pins/", "logs/b/writers/"])
def test_a_damaged_record_of_another_log_stops_everything(
    prefix: Prefix, logs: dict[str, ObjectDisk], where: str
) -> None:
    """P2, P29: nonsense is no empty list."""
    logs["b"].write_snapshot()
    pins.create(logs["b"].store, "keep", 1, holder="somebody")
    put(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")
    before = prefix.blobs()
    key = max(key for key in prefix._objects if key.startswith(where))
    _, info = prefix._objects[key]
    prefix._objects[key] = (b"{not json", info)
    assert run(logs["a"]).refused
    assert prefix.blobs() == before


def test_a_log_whose_objects_are_lost_stops_everything(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """P29: the listing lacks what a log names: it is incomplete, or objects were lost."""
    lost = put(logs["b"], "t/lost.parquet")
    key = put(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")
    prefix._objects.pop(lost)
    report = run(logs["a"])
    assert lost in (report.refused or "")
    assert "logs/b/" in (report.refused or "")
    assert key in prefix.blobs()


def test_a_commit_of_another_log_between_the_look_and_the_delete(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """P5: it is read again, after a fence in every log; who comes later finds the announcement, and is refused."""
    first, second = put(logs["a"], "t/1.parquet"), put(logs["a"], "t/2.parquet")
    rows = [logs["a"].file_table.get(f"t/{number}.parquet") for number in (1, 2)]
    for number in (1, 2):
        remove(logs["a"], f"t/{number}.parquet")
    late = logs["b"].transaction(Inserted())
    assert rows[1] is not None
    late.adopt(rows[1])
    refused: list[FrostlineError] = []

    def meanwhile(key: str) -> None:
        if key.startswith(INTENTS_PREFIX) and not refused:
            prefix.on_put = lambda key: None
            with logs["c"].transaction(Inserted()) as transaction:
                assert rows[0] is not None
                transaction.adopt(rows[0])
                transaction.commit()

    def then(keys: list[str]) -> None:
        if second in keys:
            with pytest.raises(Refused, match="a collection is deleting object") as error:
                late.commit()
            refused.append(error.value)

    prefix.on_put, prefix.on_delete = meanwhile, then
    report = run(logs["a"])
    assert report.refused is None
    assert refused, "the late commit met the fence"
    assert first in prefix.blobs()
    assert second not in prefix.blobs()
    assert logs["c"].read("t/1.parquet") == b"some bytes"


def test_a_log_that_begins_meanwhile_stops_the_batch(
    prefix: Prefix, logs: dict[str, ObjectDisk], tmp_path: Path
) -> None:
    """P5: nobody asked it."""
    key = put(logs["a"], "t/1.parquet")
    row = logs["a"].file_table.get("t/1.parquet")
    remove(logs["a"], "t/1.parquet")
    new = open_log(prefix, tmp_path, "new")

    def meanwhile(intent: str) -> None:
        if intent.startswith(INTENTS_PREFIX):
            prefix.on_put = lambda key: None
            prefix.delete([intent])  # so that the newcomer does not see it
            with new.transaction(Inserted()) as transaction:
                assert row is not None
                transaction.adopt(row)
                transaction.commit()

    prefix.on_put = meanwhile
    report = run(logs["a"])
    assert "log new" in (report.refused or "")
    assert key in prefix.blobs()
    assert run(logs["a"]).refused is None
    assert key in prefix.blobs()


def test_a_log_without_an_entry_names_nothing_and_is_fenced(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """What died before its first entry stops nobody; who stalls there is refused when it comes back."""
    new = NamedLogStore(prefix, "new")
    new.put(".SCHEMA_VERSION", b"3", sha256=hashlib.sha256(b"3").digest())
    key = put(logs["a"], "t/1.parquet")
    remove(logs["a"], "t/1.parquet")
    assert run(logs["a"]).refused is None
    assert key not in prefix.blobs()
    assert any(key.startswith("logs/new/operations/") for key in prefix._objects)
    assert run(logs["a"]).refused is None, "a log of fences alone has no machine, and names nothing"


def test_an_upload_for_another_log_s_revision_is_pending_by_age(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """I5: each log counts for itself, so the highest one tells which number is settled.
    The revision is a later one of that log."""
    for number in range(5):
        put(logs["b"], f"t/{number}.parquet")
    transaction = logs["b"].transaction(Inserted())
    info = transaction.create("never.parquet", b"abandoned")
    transaction.abandon()
    report = run(logs["a"])
    assert report.refused is None
    assert info.key not in prefix.blobs()
    assert report.deleted == 1


def test_what_a_mark_holds_stays_and_each_batch_asks_again(
    prefix: Prefix, logs: dict[str, ObjectDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, P6: two reference_sources; whichever names it. One that appears while the collection runs counts, too."""
    held, later, kept, gone = (put(logs["a"], f"t/{number}.parquet") for number in range(4))
    for number in range(4):
        remove(logs["a"], f"t/{number}.parquet")
    marks = Marks({held})
    marks.keeps = {kept}

    def meanwhile(key: str) -> None:
        if key.startswith(INTENTS_PREFIX):
            marks.keys.add(later)

    prefix.on_put = meanwhile
    report = run(logs["a"], marks)
    assert report.refused is None
    assert {held, later, kept} <= prefix.blobs()
    assert gone not in prefix.blobs()
    assert report.deleted == 1
    assert marks.released == [{kept, gone}], "asked for what would go, after all that names was looked at again"
    assert marks.asked == 2


@pytest.mark.parametrize("what", ["objection", "held", "held later", "release"])
def test_marks_that_cannot_be_asked_stop_everything(prefix: Prefix, logs: dict[str, ObjectDisk], what: str) -> None:
    """P2, P11: no answer is no leave."""
    put(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")
    before = prefix.blobs()
    marks = Marks()

    def fails(keys: Collection[str]) -> Collection[str]:
        raise Transient("Keeper is away")

    def meanwhile(key: str) -> None:
        if key.startswith(INTENTS_PREFIX):
            marks.error = Transient("Keeper is away")

    match what:
        case "objection":
            marks.why = "Keeper is away: no audit saw this history"
        case "held":
            marks.error = Transient("Keeper is away")
        case "held later":
            prefix.on_put = meanwhile
        case "release":
            marks.release = fails  # type: ignore[method-assign]
    report = run(logs["a"], marks)
    assert "Keeper is away" in (report.refused or "")
    assert prefix.blobs() == before
    assert announced(logs["b"], now=LATER) == set(), "what was announced was withdrawn"


def test_a_disk_that_has_its_prefix_for_itself_asks_nobody(tmp_path: Path) -> None:
    plain = ObjectDisk("s3", store := Prefix(), tmp_path, snapshot_every_commits=0)
    put(plain, "t/p.parquet")
    remove(plain, "t/p.parquet")
    marks = Marks()
    marks.why = "never asked"
    assert run(plain, marks).refused is None
    assert store.blobs() == set()


def test_announcements_of_other_logs_entries_are_not_ones_own(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """Entries of two logs have the same names: a restore must not wait for those of another."""
    from disks.garbage.announcements import announce

    blob = put(logs["a"], "t/p.parquet")
    announce(logs["a"].store, ["operations/x", blob], datetime.now(UTC))
    assert announced(logs["a"], now=None) == {"operations/x", blob}
    assert announced(logs["b"], now=None) == {blob}


def test_old_entries_of_one_log_go_and_those_of_others_stay(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """I7: a log is shortened by its own machine's collection alone."""
    for number in range(6):
        put(logs["a"], f"t/{number}.parquet")
        put(logs["b"], f"t/{number}.parquet")
    report = run(logs["a"], compact_after_commits=1)
    assert report.refused is None
    assert report.log_deleted > 0
    assert sum(key.startswith("logs/a/operations/") for key in prefix._objects) < 7
    assert sum(key.startswith("logs/b/operations/") for key in prefix._objects) == 7
    assert logs["a"].at(logs["a"].revision).read("t/5.parquet") == b"some bytes"
    assert run(logs["b"]).refused is None


def test_what_another_log_commits_during_a_listing_is_not_lost(
    prefix: Prefix, logs: dict[str, ObjectDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: it was not listed, and is there; it stays, so does what that log took over meanwhile, and the collection goes
    on."""
    taken = logs["a"].file_table.get("a/own.parquet")
    assert taken is not None
    for name in ("a", "c"):
        remove(logs[name], f"{name}/own.parquet")

    def listed(*arguments: Any, **options: Any) -> Any:
        found = list_whole(*arguments, **options)
        put(logs["b"], "b/meanwhile.parquet")
        with logs["b"].transaction(Inserted(), reason="test") as transaction:
            transaction.adopt(taken)
            transaction.commit()
        return found

    monkeypatch.setattr("disks.garbage.collect.list_whole", listed)
    before = prefix.blobs()
    report = run(logs["a"], Marks())
    assert report.refused is None
    row = logs["b"].file_table.get("b/meanwhile.parquet")
    assert row is not None
    assert {row.key, taken.key} <= prefix.blobs()
    assert len(before - prefix.blobs()) == 1


def test_a_machine_that_begins_to_mark_ends_a_collection(prefix: Prefix, logs: dict[str, ObjectDisk]) -> None:
    """It looked when the logs alone told what is in use."""
    key = put(logs["a"], "t/p.parquet")
    remove(logs["a"], "t/p.parquet")

    def begin(put_key: str) -> None:
        if put_key.startswith(INTENTS_PREFIX):
            prefix.on_put = lambda key: None
            recorded_keeper.say(prefix, KEEPER, "zk:2181/frostline")

    prefix.on_put = begin
    report = run(logs["a"])
    assert "has no `keeper:`" in str(report.refused)
    assert key in prefix.blobs()
    assert announced(logs["a"], now=None) == set()
