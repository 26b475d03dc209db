"""The protocol on the log as a pure model: one bucket, two writers, one collector, each stopped anywhere for any time.

`explore` visits every state that they can reach together and returns the first violation with the steps that lead to
it. Each rule of the protocol (docs/design.md, L1 to L6) can be taken out; then there must be a violation.

A request is one step, and so is a listing: the store's answers are consistent. An entry is `(revision, name, previous,
late)`: a name is `(who, attempt)`, which stands for the digest, and `late` tells that the store dates it after the
floor. `chain` is a ghost: what was put at the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.property import exploration
from tests.property.exploration import Found

Name = tuple[str, int]
Head = tuple[int, Name]

FIRST: Name = ("first", 0)
FENCE = "fence"
BLOB_WRITER, GROWER = "blob", "grow"


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; the attribute's comment names the one of docs/design.md."""

    newest_stays: bool = True  # L1
    end_is_checked: bool = True  # L2
    built_on_counts: bool = True  # L3
    built_on_by_digest: bool = True  # L3
    built_on_to_the_end: bool = True  # L3
    stray_is_proved: bool = True  # L3
    own_place_is_read: bool = True  # L3
    floor_is_put: bool = True  # L4
    fence_is_committed: bool = True  # L5
    announced_before_fence: bool = True  # L5
    read_after_fence: bool = True  # L5
    withdrawn_after_delete: bool = True  # L5
    looks_after_fence: bool = True  # L6
    looks_at_announcements: bool = True  # L6
    looks_at_blobs: bool = True  # L6


class Writer(NamedTuple):
    """`step` is what it does next, whenever that may be."""

    step: str
    head: Head
    attempt: int = 0
    left: int = 1
    """Commits it still wants to make."""
    looked: int = 0
    """The revision its blob was last looked at; of the one that has a blob."""
    acknowledged: tuple[Name, ...] = ()


class Collector(NamedTuple):
    """The same of a collection."""

    step: str
    head: Head
    left: int
    attempt: int = 0
    start: int = 0
    """The first entry that it keeps."""
    dooms: bool = False
    """Whether it found the blob unnamed."""


class State(NamedTuple):
    """All there is."""

    entries: tuple[tuple[int, Name, Name, bool], ...]
    chain: tuple[Name, ...]
    floor: int
    blob: str
    """"" before the upload, then "there" or "gone"."""
    announced: bool
    writers: tuple[Writer, Writer]
    collector: Collector
    stuck: bool = False
    """Somebody read a gap that nothing explains."""


def start(grows: int = 2, rounds: int = 2) -> State:
    """A log of one entry that everybody knows."""
    head = (1, FIRST)
    writers = (Writer("upload", head), Writer("put", head, left=grows))
    return State(((1, FIRST, FIRST, False),), (FIRST,), 0, "", False, writers, Collector("look", head, rounds))


def start_behind() -> State:
    """Both writers stand at the first entry of a log of four; only the collector knows the others."""
    names: list[Name] = [FIRST, ("other", 2), ("other", 3), ("other", 4)]
    chain = [(revision, name, names[max(revision - 2, 0)], False) for revision, name in enumerate(names, 1)]
    writers = (Writer("upload", (1, FIRST)), Writer("put", (1, FIRST), left=1))
    return State(tuple(chain), tuple(names), 0, "", False, writers, Collector("look", (4, names[3]), 1))


def start_counted() -> State:
    """One writer stands right behind its put, which counts; the other before it. The rest as in `start_behind`."""
    names: list[Name] = [FIRST, (BLOB_WRITER, 0), ("other", 3), ("other", 4)]
    chain = [(revision, name, names[max(revision - 2, 0)], False) for revision, name in enumerate(names, 1)]
    writers = (Writer("check", (1, FIRST)), Writer("put", (1, FIRST), left=1))
    return State(tuple(chain), tuple(names), 0, "there", False, writers, Collector("look", (4, names[3]), 1))


def explore(rules: Rules, state: State | None = None) -> tuple[int, Found | None]:
    """All that can follow from this state, by these rules."""
    return exploration.explore(state or start(), lambda now: steps(now, rules), violation)


def violation(state: State) -> str | None:
    """What of the protocol's promises does not hold."""
    for writer in state.writers:
        if any(name not in state.chain for name in writer.acknowledged):
            return "an acknowledged commit is none of the log's"
    if sum(name[0] == BLOB_WRITER for name in state.chain) > 1:
        return "a commit was made twice"
    if any(name[0] == BLOB_WRITER for name in state.chain) and state.blob == "gone":
        return "the log names a blob that is gone"
    if state.stuck:
        return "a reader met a gap that nothing explains"
    return None


# What each may do next


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Every state that is one step away, with who does what."""
    for index, who in enumerate((BLOB_WRITER, GROWER)):
        writer = state.writers[index]
        for following, changed in _writer_steps(state, writer, who, rules):
            pair = (following, state.writers[1]) if index == 0 else (state.writers[0], following)
            yield f"{who}: {writer.step}", changed._replace(writers=pair)
    collector = state.collector
    for collected, changed in _collector_steps(state, collector, rules):
        yield f"collector: {collector.step}", changed._replace(collector=collected)


def _writer_steps(state: State, writer: Writer, who: str, rules: Rules) -> Iterator[tuple[Writer, State]]:
    name = (who, writer.attempt)
    match writer.step:
        case "upload":
            yield writer._replace(step="put", looked=writer.head[0]), state._replace(blob="there")
        case "put":
            if who == BLOB_WRITER and rules.looks_after_fence and _fence_up_to(state, writer.head) > writer.looked:
                yield writer._replace(step="ask", looked=writer.head[0]), state
                return
            changed = _put(state, writer.head, name)
            yield writer._replace(step="check" if changed is not None else "read"), changed or state
            if changed is None:
                yield writer._replace(step="take"), state
        case "take":
            found = _next(state, writer.head)
            yield (writer._replace(step="put", head=found) if found else writer._replace(step="read")), state
        case "ask":
            refused = rules.looks_at_announcements and state.announced
            yield writer._replace(step="refused" if refused else "head"), state
        case "head":
            refused = rules.looks_at_blobs and state.blob == "gone"
            yield writer._replace(step="refused" if refused else "put"), state
        case "check":
            match _end(state, writer.head[0] + 1, name, rules):
                case "counts":
                    done = writer._replace(
                        head=(writer.head[0] + 1, name),
                        left=writer.left - 1,
                        attempt=writer.attempt + 1,
                        acknowledged=(*writer.acknowledged, name),
                        step="put" if writer.left > 1 else "done",
                    )
                    yield done, state
                case "stray":
                    yield writer._replace(step="read", attempt=writer.attempt + 1), state
                case _:
                    yield writer._replace(step="unknown"), state
        case "read":
            head, stuck = _read(state, writer.head, rules)
            yield writer._replace(step="put", head=head), state._replace(stuck=stuck)


def _collector_steps(state: State, collector: Collector, rules: Rules) -> Iterator[tuple[Collector, State]]:
    name = (FENCE, collector.attempt)
    deleting = "withdraw" if rules.withdrawn_after_delete else "end"
    match collector.step:
        case "look":
            head, stuck = _read(state, collector.head, rules)
            first = head[0] if rules.newest_stays else head[0] + 1
            dooms = state.blob == "there" and not _names_blob(state, head)
            yield (
                collector._replace(step="floor", head=head, start=first, dooms=dooms),
                state._replace(stuck=stuck),
            )
        case "floor":
            changed = state
            if rules.floor_is_put and collector.start > state.floor:
                earlier = tuple((*entry[:3], False) for entry in state.entries)
                changed = state._replace(floor=collector.start, entries=earlier)
            yield collector._replace(step="truncate"), changed
        case "truncate":
            old = [entry for entry in state.entries if entry[0] < collector.start]
            for entry in old:  # in any order, and it may stop in between
                yield collector, state._replace(entries=tuple(one for one in state.entries if one != entry))
            if not collector.dooms:
                yield collector._replace(step="end"), state
            else:
                yield collector._replace(step="announce" if rules.announced_before_fence else "fence"), state
        case "announce":
            fences = rules.fence_is_committed and rules.announced_before_fence
            yield collector._replace(step="fence" if fences else "read again"), state._replace(announced=True)
        case "fence":
            changed = _put(state, collector.head, name)
            yield collector._replace(step="check" if changed is not None else "catch up"), changed or state
        case "catch up":
            head, stuck = _read(state, collector.head, rules)
            yield collector._replace(step="fence", head=head), state._replace(stuck=stuck)
        case "check":
            match _end(state, collector.head[0] + 1, name, rules):
                case "counts":
                    after = "read again" if rules.announced_before_fence else "announce"
                    following = collector._replace(head=(collector.head[0] + 1, name), attempt=collector.attempt + 1)
                    yield following._replace(step=after), state
                case "stray":
                    yield collector._replace(step="catch up", attempt=collector.attempt + 1), state
                case _:
                    yield collector._replace(step="stopped"), state
        case "read again":
            head, stuck = (collector.head, False) if rules.fence_is_committed else _read(state, collector.head, rules)
            spared = rules.read_after_fence and _names_blob(state, head)
            after = "withdraw" if spared else "delete" if rules.withdrawn_after_delete else "withdraw first"
            yield collector._replace(step=after, head=head), state._replace(stuck=stuck)
        case "withdraw first":
            yield collector._replace(step="delete"), state._replace(announced=False)
        case "delete":
            yield collector._replace(step=deleting), state._replace(blob="gone")
        case "withdraw":
            yield collector._replace(step="end"), state._replace(announced=False)
        case "end":
            if collector.left > 1:
                yield collector._replace(step="look", left=collector.left - 1, dooms=False), state


# What the requests do


def _put(state: State, head: Head, name: Name) -> State | None:
    """The entry after the head, if it is absent; None when it is there."""
    revision, previous = head[0] + 1, head[1]
    if any(entry[0] == revision for entry in state.entries):
        return None
    chain = state.chain
    if revision == len(chain) + 1 and previous == chain[-1]:
        chain = (*chain, name)
    entry = (revision, name, previous, state.floor > revision)
    return state._replace(entries=tuple(sorted((*state.entries, entry))), chain=chain)


def _end(state: State, revision: int, name: Name, rules: Rules) -> str:
    """What a listing from the entry on says of it."""
    if not rules.end_is_checked:
        return "counts"
    following = [entry for entry in state.entries if entry[0] >= revision]
    if not following or following[0][0] != revision:
        return "unknown"
    if len(following) == 1:
        return "counts"
    is_own = following[0][1] == name
    following[0] = (revision, name, *following[0][2:])  # what lies there is compared only before it is called a stray
    second, is_stray = following[1], following[0][3] or not rules.stray_is_proved
    if second[0] == revision + 1:
        is_stray |= (rules.built_on_by_digest and second[2] != name) or not rules.built_on_counts
        leads = _leads_to_its_end(following, by_digest=rules.built_on_by_digest)
        if rules.built_on_counts and (leads or (not rules.built_on_to_the_end and second[2] == name)):
            return "counts"
    return "stray" if is_stray and (is_own or not rules.own_place_is_read) else "unknown"


def _leads_to_its_end(entries: list[tuple[int, Name, Name, bool]], *, by_digest: bool) -> bool:
    return all(
        later[0] == earlier[0] + 1 and (later[2] == earlier[1] or not by_digest) for earlier, later in pairwise(entries)
    )


def _next(state: State, head: Head) -> Head | None:
    """The entry behind this head, as whoever asks for it alone finds it; None where none is there, or another's."""
    found = next((entry for entry in state.entries if entry[0] == head[0] + 1), None)
    return (found[0], found[1]) if found is not None and found[2] == head[1] else None


def _read(state: State, head: Head, rules: Rules) -> tuple[Head, bool]:
    """Where a reader at this head comes to, and whether it is stuck. From a snapshot when its head is collected."""
    following = [entry for entry in state.entries if entry[0] >= head[0]]
    if not following:
        return head, True
    last = following[-1]
    breaks = following[0][0] == head[0] and any(
        later[0] != earlier[0] + 1 or later[2] != earlier[1] for earlier, later in pairwise(following)
    )
    return (last[0], last[1]), breaks and state.floor <= head[0]


def _fence_up_to(state: State, head: Head) -> int:
    """The newest fence among the entries that the head stands on."""
    return max((index + 1 for index, name in enumerate(state.chain[: head[0]]) if name[0] == FENCE), default=0)


def _names_blob(state: State, head: Head) -> bool:
    return any(name[0] == BLOB_WRITER for name in state.chain[: head[0]])
