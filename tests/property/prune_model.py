"""Backups that are made beside collections as a pure model: one object that an old backup names, two backups that would
inherit it, two collections, each stopped anywhere for any time.

`explore` visits every state that they can reach together and returns the first violation with the steps that lead to
it. Each rule of the protocol (`backup.retention.collect`) can be taken out; then there must be a violation. There are
no clocks: what only a long time allows (a backup that is given up, an announcement that is stale) may happen whenever
what the rule demands of the order holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Rules:
    """The rules; each can be taken out."""

    claims: bool = True
    """A backup says what it is about to name."""
    claim_before_probe: bool = True
    """… and then asks for it."""
    looks_at_announcements: bool = True
    """What a collection has announced does not count as there."""
    announces_first: bool = True
    """A collection announces before it reads again what is named."""
    reads_again: bool = True
    claims_before_headers: bool = True
    """Who looks for all that is named lists claims first."""
    revokes_for_good: bool = True
    """A backup that is given up can put no header."""
    old_marks_keep_announcements: bool = True
    """An announcement does not go before every backup that was begun earlier has ended."""
    mark_before_look: bool = True
    """A backup is marked before it looks at what is there."""


class Backup(NamedTuple):
    """`step` is what it does next, whenever that may be."""

    step: str = "begin"
    mark: bool = False
    claim: bool = False
    header: str = ""
    """"" before it is put, then "there" or "revoked"."""


class Collection(NamedTuple):
    """The same of a collection; `older`: the backups that were marked when it announced."""

    step: str = "list"
    intent: bool = False
    older: tuple[bool, ...] = ()


class State(NamedTuple):
    """All there is. `old`: whether the old backup's header is there."""

    object: bool
    old: bool
    backups: tuple[Backup, ...]
    collections: tuple[Collection, ...]


def start(backups: int = 2, collections: int = 2) -> State:
    """A repository with one backup, which names the object."""
    return State(True, True, (Backup(),) * backups, (Collection(),) * collections)


def violation(state: State) -> str | None:
    """A backup that is there names only what is there."""
    if (state.old or any(backup.header == "there" for backup in state.backups)) and not state.object:
        return "a complete backup names an object that is gone"
    return None


def explore(rules: Rules, first: State) -> tuple[int, list[str] | None]:
    """How many states there are, and the steps to the first violation."""
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        now = waiting.popleft()
        if violation(now) is not None:
            return len(came), _way(came, now)
        for said, following in steps(now, rules):
            if following not in came:
                came[following] = (now, said)
                waiting.append(following)
    return len(came), None


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    said = []
    while (before := came[state]) is not None:
        state, word = before
        said.append(word)
    return said[::-1]


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """All that may happen next."""
    if state.old:
        yield "prune drops the old backup", state._replace(old=False)
    for number, backup in enumerate(state.backups):
        for said, after in _backup_steps(state, backup, rules):
            yield f"backup {number}: {said}", _with_backup(state, number, after)
        if backup.mark and backup.header != "there":  # a collection gives it up, for it has taken too long
            header = "revoked" if rules.revokes_for_good else backup.header
            yield (
                f"backup {number} is given up",
                _with_backup(state, number, backup._replace(mark=False, claim=False, header=header)),
            )
    for number, collection in enumerate(state.collections):
        for said, after in _collection_steps(state, collection, rules):
            yield (
                f"collection {number}: {said}",
                after._replace(collections=_put(state.collections, number, after.collections[0])),
            )
        if collection.intent and not _is_bound(state, collection, rules):
            yield (
                f"the announcement of {number} is stale",
                state._replace(
                    collections=_put(state.collections, number, collection._replace(intent=False, older=()))
                ),
            )


def _is_bound(state: State, collection: Collection, rules: Rules) -> bool:
    marked = zip(state.backups, collection.older, strict=True)
    return rules.old_marks_keep_announcements and any(backup.mark and older for backup, older in marked)


def _backup_steps(state: State, backup: Backup, rules: Rules) -> Iterator[tuple[str, Backup]]:
    named = state.old or any(other.header == "there" for other in state.backups)
    announced = rules.looks_at_announcements and any(one.intent for one in state.collections)
    seen = state.object and not announced
    match backup.step:
        case "begin" if rules.mark_before_look:
            yield "is marked", backup._replace(step="read headers", mark=True)
        case "begin":
            if named:  # it knows of the object before anybody knows of it
                yield "reads headers", backup._replace(step="late mark")
        case "late mark":
            yield "is marked", backup._replace(step="look", mark=True)
        case "read headers":
            if named:  # else it sends the object anew, and nothing is inherited
                yield "reads headers", backup._replace(step="look")
        case "look" if seen:
            first = "claim" if rules.claim_before_probe else "probe"
            yield "counts on the object", backup._replace(step=first if rules.claims else "probe")
        case "claim":
            yield "claims", backup._replace(step="probe" if rules.claim_before_probe else "put", claim=True)
        case "probe":
            if seen:
                second = "put" if rules.claim_before_probe or not rules.claims else "claim"
                yield "finds the object", backup._replace(step=second)
            else:
                yield "fails", Backup("ended", header=backup.header)
        case "put" if not backup.header:
            yield "puts the header", backup._replace(step="tidy", header="there")
        case "put":
            yield "finds that it was given up", Backup("ended", header=backup.header)
        case "tidy":
            yield "takes mark and claim away", Backup("ended", header="there")


def _collection_steps(state: State, one: Collection, rules: Rules) -> Iterator[tuple[str, State]]:
    """The state with this collection alone in `collections`."""

    def to(step: str, **more: object) -> State:
        return state._replace(collections=(one._replace(step=step, **more),))  # type: ignore[arg-type]

    claimed = any(backup.claim for backup in state.backups)
    complete = state.old or any(backup.header == "there" for backup in state.backups)
    first, second = (claimed, complete) if rules.claims_before_headers else (complete, claimed)
    marked = tuple(backup.mark for backup in state.backups)
    match one.step:
        case "list" if state.object:
            yield "lists", to("first look")
        case "first look" if not first:
            yield "looks at claims", to("second look")
        case "second look" if not second:
            yield "looks at headers", to("announce" if rules.announces_first else "look again")
        case "announce":
            after = "look again" if rules.announces_first and rules.reads_again else "delete"
            yield "announces", to(after, intent=True, older=marked)
        case "look again" if first:
            yield "finds it named", to("withdraw")
        case "look again":
            yield "looks at claims again", to("look on")
        case "look on" if second:
            yield "finds it named", to("withdraw")
        case "look on":
            yield "looks at headers again", to("delete" if rules.announces_first else "announce")
        case "delete":
            yield "deletes", to("withdraw")._replace(object=False)
        case "withdraw":
            yield "withdraws", to("list", intent=False, older=())


def _with_backup(state: State, number: int, backup: Backup) -> State:
    return state._replace(backups=tuple(backup if at == number else one for at, one in enumerate(state.backups)))


def _put(all_of: tuple[Collection, ...], number: int, one: Collection) -> tuple[Collection, ...]:
    return tuple(one if at == number else other for at, other in enumerate(all_of))
