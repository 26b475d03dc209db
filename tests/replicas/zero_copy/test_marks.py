"""Marks in a real ZooKeeper: all of a part or none, never a set by the way, whatever answer is lost (P3, P7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disks.file_table.blob_sets import BlobReference, NewSet
from oplog.errors import AlreadyExists, Conflict, Damaged, FrostlineError
from oplog.revision import LARGEST_REVISION, blob_key
from tests.replicas.keeper.line import KeeperLine
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import MOST_OPERATIONS
from zerocopy.marks import census, changes, nodes
from zerocopy.marks.census import CollectionGate
from zerocopy.marks.marks import Gone, Marks
from zerocopy.marks.nodes import Holder, StoreNodes

STORE = "5" * 32
PART = "store/000/00000001-0000-4000-8000-000000000000/202401_1_1_0"
OTHER = "store/000/00000002-0000-4000-8000-000000000000/detached/x_1_1_0"


def new_set(name: str, directory: str = PART, keys: int = 2) -> NewSet:
    return NewSet(name, tuple(blob_key(7) for _ in range(keys)), directory)


def marks(keeper: Keeper, log: str = "a") -> Marks:
    return Marks(keeper, STORE, log)


def remove(own: Marks, *references: BlobReference) -> None:
    own.remove(own.seen(references))


def gate(keeper: Keeper) -> CollectionGate:
    """As after an audit."""
    path = StoreNodes(STORE).path
    keeper.make_path(path)
    return CollectionGate(path, keeper.get(path).version)


def held(keeper: Keeper) -> dict[str, list[Holder]]:
    names = [one.name for one in census.sets(keeper, StoreNodes(STORE))]
    return dict(census.holders(keeper, StoreNodes(STORE), names))


@given(
    log=st.text("abcz09.-_", min_size=1, max_size=20),
    steps=st.lists(st.text(st.characters(exclude_characters="/", categories=["L", "N", "P", "Zs"]), min_size=1)),
)
def test_a_marks_name_tells_whose_it_is(log: str, steps: list[str]) -> None:
    holder = Holder(log, "/".join(["store", *(step for step in steps if step not in (".", ".."))]))
    name = nodes.holder_name(holder)
    assert "/" not in name
    try:
        assert nodes.parse_holder(name) == holder
    except Damaged:
        assert not nodes.is_safe(holder.directory)


@pytest.mark.parametrize("name", ["", "a", ":x", "a:", "a:..", "a:%2Fetc", "a:x%2F..%2Fy", "a:%78", "a:x/y"])
def test_a_name_that_is_no_marks_is_refused(name: str) -> None:
    with pytest.raises(Damaged):
        nodes.parse_holder(name)


@given(st.lists(st.integers(0, LARGEST_REVISION - 1), max_size=5))
def test_the_keys_of_a_set_are_written_short_and_read_back_whole(revisions: list[int]) -> None:
    keys = tuple(map(blob_key, revisions))
    data = nodes.encode_keys(keys)
    assert nodes.decode_keys(data, path="/x") == keys
    assert len(data) <= len(keys) * 50


@pytest.mark.parametrize(
    "data", [b"x", b"7-short", b"7-" + b"A" * 32, b"07-" + b"a" * 32, b"\xff", b"7-" + b"a" * 32 + b"\n"]
)
def test_what_lists_no_keys_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(Damaged, match="/x in Keeper"):
        nodes.decode_keys(data, path="/x")


def test_a_directory_is_never_torn_apart() -> None:
    """P7: what one part needs is one request, also beside many others."""
    sets = [new_set(f"{number:032d}", f"t/{number // 30}") for number in range(MOST_OPERATIONS)]
    requests = changes.creating(StoreNodes(STORE), "a", sets, b"1")
    assert sum(map(len, requests)) == 2 * MOST_OPERATIONS
    places = {
        one.path.rpartition(":")[2]: at for at, request in enumerate(requests) for one in request if ":" in one.path
    }
    for at, request in enumerate(requests):
        assert all(places[one.path.rpartition(":")[2]] == at for one in request if ":" in one.path)
    assert len(requests) <= 3


def test_a_set_comes_with_its_first_mark_and_its_keys(keeper: Keeper) -> None:
    new = new_set("1" * 32)
    marks(keeper).create([new])
    (found,) = census.sets(keeper, StoreNodes(STORE))
    assert (found.name, found.keys, found.marks) == (new.blob_set, new.keys, 1)
    assert held(keeper) == {new.blob_set: [Holder("a", PART)]}
    with pytest.raises(AlreadyExists):
        marks(keeper, "b").create([new])


def test_another_replicas_mark_does_not_make_the_set(keeper: Keeper) -> None:
    """P3: what has no node is being collected, or was; nobody takes it for free to use."""
    new, gone = new_set("1" * 32), BlobReference("2" * 32, PART)
    marks(keeper).create([new])
    marks(keeper, "b").add([new.reference])
    with pytest.raises(Gone, match="collected"):
        marks(keeper, "c").add([new.reference, gone])
    assert held(keeper) == {new.blob_set: [Holder("a", PART), Holder("b", PART)]}


def test_all_marks_of_a_part_or_none(keeper: Keeper) -> None:
    """P7: with one set gone, no mark of the others stays."""
    sets = [new_set(f"{number:032d}") for number in range(5)]
    marks(keeper).create(sets)
    remove(marks(keeper), sets[3].reference)
    census.release(keeper, StoreNodes(STORE), [sets[3].blob_set], gate(keeper))
    with pytest.raises(Gone):
        marks(keeper, "b").add([new.reference for new in sets])
    assert not any(holder.log == "b" for holders in held(keeper).values() for holder in holders)


def test_marks_that_an_earlier_attempt_left_are_taken_over(keeper: Keeper) -> None:
    """And written anew, so that whoever tidies up after that attempt finds them changed."""
    one, two = new_set("1" * 32), new_set("2" * 32)
    marks(keeper).create([one, two])
    second = marks(keeper, "b")
    second.add([one.reference])
    before = keeper.get(StoreNodes(STORE).mark(one.reference, "b"))
    second.add([one.reference, two.reference])
    after = keeper.get(StoreNodes(STORE).mark(one.reference, "b"))
    assert after.version == before.version + 1
    assert after.data != before.data
    assert not second.missing([one.reference, two.reference])


def test_which_marks_are_missing(keeper: Keeper) -> None:
    one, two = new_set("1" * 32), new_set("2" * 32)
    first, second = marks(keeper), marks(keeper, "b")
    first.create([one, two])
    second.add([two.reference])
    both = [one.reference, two.reference]
    assert second.missing(both) == {one.reference}
    assert second.missing(both, "a") == set()
    before = keeper.requests
    second.missing(both, "a")
    assert keeper.requests == before + 1
    seen = first.seen(both)
    first.remove(seen)
    first.remove(seen)
    assert second.missing(both, "a") == {*both}


def test_a_mark_that_was_written_anew_is_another_ones(keeper: Keeper) -> None:
    """A drop that is late does not take away what an undo has marked meanwhile."""
    one, two = new_set("1" * 32), new_set("2" * 32)
    own = marks(keeper)
    own.create([one, two])
    before = own.seen([one.reference, two.reference])
    own.add([one.reference])
    own.remove(before)
    assert held(keeper) == {one.blob_set: [Holder("a", PART)], two.blob_set: []}


def test_only_a_set_without_marks_is_released(keeper: Keeper) -> None:
    """The server says no, atomically: nobody counts marks first."""
    kept, free = new_set("1" * 32), new_set("2" * 32)
    first, nodes_ = marks(keeper), StoreNodes(STORE)
    first.create([kept, free])
    marks(keeper, "b").add([kept.reference])
    remove(first, kept.reference, free.reference)
    names = [kept.blob_set, free.blob_set, "3" * 32]
    assert census.release(keeper, nodes_, names, gate(keeper)) == {free.blob_set, "3" * 32}
    with pytest.raises(Gone):
        marks(keeper, "b").add([free.reference])


def test_nothing_is_released_once_the_gate_is_another_one(keeper: Keeper) -> None:
    """P11: what an audit said holds for the nodes that it saw."""
    free = new_set("1" * 32)
    marks(keeper).create([free])
    remove(marks(keeper), free.reference)
    known = gate(keeper)
    keeper.set(known.path, b"another audit")
    with pytest.raises(Conflict):
        census.release(keeper, StoreNodes(STORE), [free.blob_set], known)
    keeper.delete_tree(known.path)
    with pytest.raises(FrostlineError):
        census.release(keeper, StoreNodes(STORE), [free.blob_set], known)


def test_what_cannot_be_read_is_not_read_past(keeper: Keeper) -> None:
    """P2: one node that nobody understands, and nothing is known of any."""
    marks(keeper).create([new_set("1" * 32)])
    keeper.create(f"{StoreNodes(STORE).path}/{'2' * 32}", b"no keys")
    with pytest.raises(Damaged):
        list(census.sets(keeper, StoreNodes(STORE)))


@contextmanager
def over(line: KeeperLine, settings: KeeperConfig) -> Iterator[Keeper]:
    with Keeper(msgspec.structs.replace(settings, hosts=(line.host,))) as keeper:
        keeper.make_path(StoreNodes(STORE).path)
        yield keeper


CHANGES: dict[str, Callable[[Marks], object]] = {
    "create": lambda own: own.create([new_set("1" * 32), new_set("2" * 32)]),
    "add": lambda own: own.add([BlobReference("3" * 32, PART), BlobReference("4" * 32, PART)]),
    "take over": lambda own: own.add([BlobReference("4" * 32, OTHER), BlobReference("5" * 32, OTHER)]),
    "missing": lambda own: own.missing([BlobReference("5" * 32, OTHER)]),
    "remove": lambda own: remove(own, BlobReference("5" * 32, OTHER), BlobReference("4" * 32, OTHER)),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("answers", [1, 2, 3])
@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_lost_answer_changes_nothing_of_the_outcome(
    what: str, answers: int, line: KeeperLine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """Once, whichever of the answers are not heard."""
    prepared = marks(keeper, "c")
    prepared.create([new_set(f"{number}" * 32, "t/x") for number in (3, 4, 5)])
    marks(keeper, "b").add([BlobReference("5" * 32, OTHER)])
    expected = {
        "create": {"1" * 32: {Holder("b", PART)}, "2" * 32: {Holder("b", PART)}, "5" * 32: {Holder("b", OTHER)}},
        "add": {"3" * 32: {Holder("b", PART)}, "4" * 32: {Holder("b", PART)}, "5" * 32: {Holder("b", OTHER)}},
        "take over": {"4" * 32: {Holder("b", OTHER)}, "5" * 32: {Holder("b", OTHER)}},
        "missing": {"5" * 32: {Holder("b", OTHER)}},
        "remove": {},
    }[what]
    with over(line, settings) as lossy:
        own = marks(lossy, "b")
        line.lose_answers(answers)
        CHANGES[what](own)
        assert line.lost == answers
    keeper.sync()
    found = {name: {one for one in holders if one.log == "b"} for name, holders in held(keeper).items()}
    assert {name: holders for name, holders in found.items() if holders} == expected
