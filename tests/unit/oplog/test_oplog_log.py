"""The log of commits: races, lost answers, gaps and altered entries. Guards I6, P39, P40, P41, P46."""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog import entry
from oplog.entry import GENESIS_DIGEST, Commit, Create, now
from oplog.errors import Damaged, FrostlineError, NotFound, OutcomeUnknown, Transient, UsageError
from oplog.kinds import OtherKind
from oplog.log import OperationsLog, UnknownLogFormat
from oplog.log_end import RevisionTaken
from oplog.revision import SCHEMA_VERSION_KEY, commit_key


def commit_at(revision: int, previous: str, writer: str = "w") -> Commit:
    return Commit(revision=revision, previous=previous, writer=writer, time=now(), kind=OtherKind("test"))


def filled(store: MemoryStore, count: int) -> OperationsLog:
    log = OperationsLog(store)
    digest = GENESIS_DIGEST
    for revision in range(1, count + 1):
        digest = log.append(commit_at(revision, digest))
    return log


def put(store: MemoryStore, key: str, data: bytes) -> None:
    store.put(key, data, sha256=hashlib.sha256(data).digest())


class Counting(WrappedStore):
    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.requests: list[str] = []

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.requests.append(f"LIST {prefix}")
        return super().list(prefix, start_after=start_after)

    def get(self, key: str, byte_range: object = None) -> bytes:
        self.requests.append(f"GET {key}")
        return self.inner.get(key)


class LosesAnswers(WrappedStore):
    """The next conditional puts take effect, or do not, and their answers are lost."""

    def __init__(self, inner: MemoryStore, took_effect: list[bool]) -> None:
        super().__init__(inner)
        self.took_effect = took_effect

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        if key != SCHEMA_VERSION_KEY and self.took_effect:
            if self.took_effect.pop(0):
                self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)
            raise OutcomeUnknown("connection reset")
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)


def test_entries_come_back_in_order_with_their_chain() -> None:
    log = filled(MemoryStore(), 50)
    found = list(log.entries())
    assert [item.commit.revision for item in found] == list(range(1, 51))
    assert [item.commit.revision for item in log.entries(48, previous=found[47].digest)] == [49, 50]
    assert [item.commit.revision for item in log.entries(3, 5)] == [4, 5]
    assert log.head() == log.head(49) == 50
    assert log.first_revision() == 1


def test_the_prefix_says_which_log_it_holds() -> None:
    store = MemoryStore()
    filled(store, 1)
    assert store.get(SCHEMA_VERSION_KEY) == b"2"


def test_an_empty_prefix_costs_two_requests() -> None:
    store = Counting(MemoryStore())
    assert OperationsLog(store).first_revision() is None
    assert store.requests == ["LIST operations/", f"GET {SCHEMA_VERSION_KEY}"]


def test_a_prefix_without_its_mark_is_asked_once_a_listing() -> None:
    memory = MemoryStore()
    filled(memory, 5)
    memory.delete([SCHEMA_VERSION_KEY])
    store = Counting(memory)
    assert list(OperationsLog(store).revisions()) == [1, 2, 3, 4, 5]
    assert store.requests == ["LIST operations/", f"GET {SCHEMA_VERSION_KEY}"]


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (b"1", UnknownLogFormat),
        (b"3", UnknownLogFormat),
        (b"41", UnknownLogFormat),
        (b"junk", Damaged),
        (b"", Damaged),
        (b"\xb2", Damaged),
        (b"<html>", Damaged),
        (b"9" * 60, Damaged),
    ],
)
def test_a_log_of_another_format_is_left_alone(version: bytes, error: type[FrostlineError]) -> None:
    """Only a later number is a reason to upgrade."""
    store = MemoryStore()
    put(store, SCHEMA_VERSION_KEY, version)
    log = OperationsLog(store)
    with pytest.raises(error) as caught:
        log.first_revision()
    assert ("upgrade" in caught.value.hint) == (version == b"41")
    with pytest.raises(error):
        log.append(commit_at(1, GENESIS_DIGEST))
    assert [info.key for info in store.list()] == [SCHEMA_VERSION_KEY]


def test_an_entry_is_peeked_at_only_up_to_its_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request tells what lies in the next place; nobody has asked for its size before."""
    store = Counting(MemoryStore())
    log = filled(store, 2)
    store.requests.clear()
    assert log.peek(2) == log.read(2)
    assert store.requests[0] == f"GET {commit_key(2)}"
    with pytest.raises(NotFound):
        log.peek(3)
    monkeypatch.setattr("oplog.bounds.LARGEST_ENTRY_BYTES", 100)
    with pytest.raises(Damaged, match="more than any valid one"):
        log.peek(2)


class Flips(WrappedStore):
    """The next answers to the question for one object are these."""

    def __init__(self, inner: MemoryStore, key: str, answers: list[bytes]) -> None:
        super().__init__(inner)
        self.key, self.answers = key, answers

    def get(self, key: str, byte_range: object = None) -> bytes:
        return self.answers.pop(0) if key == self.key and self.answers else self.inner.get(key)


def test_a_flipped_bit_of_the_version_in_transit_is_asked_again() -> None:
    store = MemoryStore()
    filled(store, 1)
    assert OperationsLog(Flips(store, SCHEMA_VERSION_KEY, [b"6"])).check_schema()
    with pytest.raises(Transient):
        OperationsLog(Flips(store, SCHEMA_VERSION_KEY, [b"6", b"3"])).check_schema()


def test_a_flipped_bit_of_the_newest_entry_is_asked_again() -> None:
    """No later entry tells its digest, and what it brings would be kept. It flipped on its way."""
    store, data = MemoryStore(), b'{"rows":3}'
    create = Create(
        path="store/a/part.json", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), inline=data
    )
    log = OperationsLog(store)
    log.append(msgspec.structs.replace(commit_at(1, GENESIS_DIGEST), operations=(create,)))
    key = commit_key(1)
    whole = store.get(key)
    at = whole.index(b64encode(data)) + 8
    torn, other = (whole[:at] + letter + whole[at + 1 :] for letter in (b"A", b"B"))
    assert OperationsLog(Flips(store, key, [torn])).read(1).commit.operations == (create,)
    assert OperationsLog(Flips(store, key, [whole[:50]])).read(1).commit.operations == (create,)
    with pytest.raises(Transient):
        OperationsLog(Flips(store, key, [torn, other])).read(1)
    kept = OperationsLog(Flips(store, key, [torn, torn])).read(1).commit.operations[0]
    assert isinstance(kept, Create)
    assert kept.inline != data, "what comes twice lies there: fsck names it"


def test_foreign_keys_among_the_entries_are_named() -> None:
    store = MemoryStore()
    filled(store, 2)
    put(store, "operations/readme.txt", b"x")
    with pytest.raises(Damaged, match=r"readme\.txt"):
        OperationsLog(store).head()


def test_one_of_two_writers_gets_the_revision() -> None:
    store = MemoryStore()
    log = OperationsLog(store)
    outcomes: list[str] = []

    def write(writer: str) -> None:
        try:
            log.append(commit_at(1, GENESIS_DIGEST, writer))
            outcomes.append("won")
        except RevisionTaken:
            outcomes.append("lost")

    threads = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]


@pytest.mark.parametrize("took_effect", [[True], [False], [False, True], [True, True], [False] * 4])
def test_a_lost_answer_is_settled(took_effect: list[bool]) -> None:
    store = MemoryStore()
    log = OperationsLog(LosesAnswers(store, list(took_effect)))
    digest = log.append(commit_at(1, GENESIS_DIGEST, "mine"))
    (found,) = OperationsLog(store).entries()
    assert (found.commit.writer, found.digest) == ("mine", digest)


def test_a_lost_answer_to_a_lost_race_is_a_lost_race() -> None:
    store = MemoryStore()
    OperationsLog(store).append(commit_at(1, GENESIS_DIGEST, "theirs"))
    log = OperationsLog(LosesAnswers(store, [False]))
    with pytest.raises(RevisionTaken):
        log.append(commit_at(1, GENESIS_DIGEST, "mine"))


def test_an_outcome_that_stays_unknown_is_said_to_be() -> None:
    log = OperationsLog(LosesAnswers(MemoryStore(), [False] * 10))
    with pytest.raises(OutcomeUnknown):
        log.append(commit_at(1, GENESIS_DIGEST))


@pytest.mark.parametrize("missing", [2, 17, 29])
def test_a_gap_is_named(missing: int) -> None:
    store = MemoryStore()
    log = filled(store, 30)
    store.delete([commit_key(missing)])
    with pytest.raises(Damaged, match=commit_key(missing)):
        list(log.entries())
    with pytest.raises(Damaged, match=f"revision {missing}"):
        log.head()


def test_entries_that_were_collected_are_not_a_gap() -> None:
    store = MemoryStore()
    log = filled(store, 10)
    store.delete([commit_key(revision) for revision in range(1, 5)])
    assert [item.commit.revision for item in log.entries(4)] == [5, 6, 7, 8, 9, 10]
    assert log.first_revision() == 5
    with pytest.raises(NotFound, match="revision 1 "):
        list(log.entries())


@pytest.mark.parametrize("data", [b"", b"{", b'{"format": 2}', b"\xff\xfe"])
def test_a_torn_entry_is_named(data: bytes) -> None:
    store = MemoryStore()
    log = filled(store, 5)
    store.delete([commit_key(3)])
    put(store, commit_key(3), data)
    with pytest.raises(Damaged, match=commit_key(3)):
        list(log.entries())


def forge(store: MemoryStore, log: OperationsLog, revision: int) -> None:
    """Another writer's entry in the place of this one; what it says of the one before it is right."""
    original = log.read(revision).commit
    store.delete([commit_key(revision)])
    put(store, commit_key(revision), entry.encode(commit_at(revision, original.previous, "forged")))


@pytest.mark.parametrize("revision", [1, 3, 4])
def test_an_altered_entry_is_named_and_not_the_one_after_it(revision: int) -> None:
    """I15: the chain breaks at the entry that follows; the one after that tells which of the two was altered."""
    store = MemoryStore()
    log = filled(store, 6)
    forge(store, log, revision)
    named = f"revision {revision}\\) was altered"
    with pytest.raises(Damaged, match=named):
        list(log.entries())
    with pytest.raises(Damaged, match=named):
        list(log.at([6, 5, 4, 3, 2, 1][::-1], digests={}))


def test_an_entry_that_does_not_follow_its_predecessor_is_named() -> None:
    """I15: here it is the second of the two neighbours that was altered."""
    store = MemoryStore()
    log = filled(store, 5)
    store.delete([commit_key(3)])
    put(store, commit_key(3), entry.encode(commit_at(3, "f" * 64)))
    with pytest.raises(Damaged, match=r"revision 3\) was altered"):
        list(log.entries())


def test_two_altered_neighbours_are_both_named() -> None:
    """I15: when nobody can tell which, both are named."""
    store = MemoryStore()
    log = filled(store, 3)
    forge(store, log, 2)
    with pytest.raises(Damaged, match=f"{commit_key(2)} or {commit_key(3)}"):
        list(log.entries())


def test_an_altered_first_entry_is_named() -> None:
    store = MemoryStore()
    log = filled(store, 3)
    store.delete([commit_key(1)])
    put(store, commit_key(1), entry.encode(commit_at(1, "f" * 64)))
    with pytest.raises(Damaged, match=r"revision 1\) was altered"):
        list(log.entries())


def test_entries_far_apart_are_checked_against_known_digests() -> None:
    """I15: no neighbour is read, so a digest noted earlier is what tells."""
    store = MemoryStore()
    log = filled(store, 9)
    digests = {item.commit.revision: item.digest for item in log.entries()}
    assert [item.commit.revision for item in log.at([8, 2, 5], digests=digests)] == [8, 2, 5]
    forge(store, log, 5)
    with pytest.raises(Damaged, match=r"revision 5\) was altered"):
        list(log.at([8, 2, 5], digests=digests))
    store.delete([commit_key(2)])
    with pytest.raises(NotFound):
        list(log.at([2], digests=digests))


def test_an_entry_copied_over_another_is_named() -> None:
    store = MemoryStore()
    log = filled(store, 5)
    data = store.get(commit_key(2))
    store.delete([commit_key(3)])
    put(store, commit_key(3), data)
    with pytest.raises(Damaged, match="says it is revision 2"):
        list(log.entries())


def test_the_chain_must_go_on_from_what_the_caller_knows() -> None:
    """P39: a bucket that was put back to an older copy and written to is another log, and is called so."""
    log = filled(MemoryStore(), 3)
    with pytest.raises(Damaged, match=r"another log .* its entry 1 differs"):
        list(log.entries(1, previous="f" * 64))


def test_an_entry_of_a_newer_format_is_refused() -> None:
    store = MemoryStore()
    log = filled(store, 1)
    newer = entry.encode(commit_at(2, log.read(1).digest)).replace(b'"format":3', b'"format":5')
    put(store, commit_key(2), newer)
    with pytest.raises(UsageError, match=r"format 5; .* 2 and 3 and 4"):
        list(log.entries())


def test_entries_of_an_older_format_are_read_but_not_by_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries from before there were floors: their writers read no newer ones."""
    store = MemoryStore()
    older = entry.encode(commit_at(1, GENESIS_DIGEST)).replace(b'"format":3', b'"format":2')
    put(store, commit_key(1), older)
    log = OperationsLog(store)
    put(store, commit_key(2), entry.encode(commit_at(2, log.read(1).digest)))
    assert [found.commit.revision for found in log.entries()] == [1, 2]
    monkeypatch.setattr(entry, "READABLE", frozenset((2,)))  # all that such a writer knows
    with pytest.raises(UsageError, match="format 3; this version reads format 2"):
        list(log.entries())


def test_a_log_that_lost_its_entries_is_not_an_empty_disk() -> None:
    store = MemoryStore()
    log = filled(store, 3)
    put(store, "snapshots/r" + "0" * 64 + ".zst", b"x")
    store.delete([commit_key(revision) for revision in (1, 2, 3)])
    with pytest.raises(Damaged, match="no log entry"):
        log.first_revision()


def test_a_first_writer_between_two_listings_is_no_loss() -> None:
    class WrittenMeanwhile(WrappedStore):
        def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
            found = list(super().list(prefix, start_after=start_after))
            if not found:
                filled(memory, 3)
                put(memory, "snapshots/r" + "0" * 63 + "3.zst", b"x")
            return iter(found)

    memory = MemoryStore()
    put(memory, SCHEMA_VERSION_KEY, b"2")
    assert OperationsLog(WrittenMeanwhile(memory)).first_revision() == 1


def test_equal_commits_have_equal_bytes() -> None:
    commit = Commit(
        revision=1,
        previous=GENESIS_DIGEST,
        writer="w",
        time=now(),
        kind=OtherKind("later", {"b": "2", "a": "1"}),
        operations=(Create("p", 1, "00" * 32, inline=b"\x00\xff"),),
    )
    data = entry.encode(commit)
    assert entry.decode(data, name="x") == commit
    assert entry.encode(entry.decode(data, name="x")) == data
