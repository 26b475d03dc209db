"""Marks as a pure model: objects that three replicas share, each of them stopped anywhere for any time, or killed.

`explore` visits every state that they can reach together and returns the first violation with the steps that lead to
it. Each rule can be taken out; then there must be a violation.

A request is one step. Here marks alone keep objects: whoever takes the node of a set away deletes its objects. What the
product has besides, the logs of all replicas as second witnesses, only keeps more. One set of two objects is enough,
for what belongs to one part is marked in one request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.property import exploration
from tests.property.exploration import Found

A, B, C, AUDIT = "a", "b", "c", "audit"
Use = tuple[str, str]
"""A replica, and the part in its log that names the objects."""
KEYS = (0, 1)


@dataclass(frozen=True)
class Rules:
    """The clauses of the protocol."""

    marked_before_bytes: bool = True
    marked_before_commit: bool = True
    mark_makes_no_set: bool = True
    every_object_is_probed: bool = True
    source_is_checked: bool = True
    looked_after_commit: bool = True
    unmarked_after_metadata: bool = True
    unmarked_as_it_was: bool = True
    """A mark that was written anew since the drop began is another one's."""
    set_goes_only_empty: bool = True
    """In one step: the server refuses to take a node away that has marks."""
    missing_set_keeps: bool = True
    audit_holds_the_set: bool = True
    audit_reads_again: bool = True
    sweep_reads_marks_first: bool = True


class Actor(NamedTuple):
    """One process: `step` is what it does next, whenever that may be."""

    step: str
    use: Use
    source: Use | None = None
    then_drops: bool = False
    read: frozenset[Use] = frozenset()
    late: bool = False
    """An object was lost before it read what to fetch."""


class State(NamedTuple):
    """All there is."""

    objects: tuple[str, str]
    """Of each: "" before the upload, "there", "lost" by somebody else's hand, or "collected"."""
    has_set: bool
    marks: frozenset[Use]
    logs: frozenset[Use]
    said: frozenset[Use]
    """What others were told: it counts."""
    actors: tuple[Actor, ...]
    wipes: int = 0
    """How often Keeper may yet lose all that it knows."""
    losses: int = 0
    """How many objects somebody else may yet delete."""
    renewed: frozenset[Use] = frozenset()
    """Marks that were written anew."""
    deceived: bool = False
    """Somebody said of a part that was not whole when it was asked for that it has it."""


P, LINKED = "p", "linked"
_THERE = ("there", "there")


def _shared(*replicas: str) -> frozenset[Use]:
    return frozenset((one, P) for one in replicas)


def fetched() -> State:
    """One replica drops what two others fetch, from it and from each other, and drop then. An object may get lost."""
    actors = (
        Actor("drop", (A, P)),
        Actor("read", (B, P), then_drops=True),
        Actor("read", (C, P), then_drops=True),
    )
    return State(_THERE, True, _shared(A), _shared(A), _shared(A), actors, losses=1)


def linked() -> State:
    """A part gets a second name, and both are dropped; another replica fetches it meanwhile."""
    actors = (
        Actor("drop", (A, P)),
        Actor("read", (A, LINKED), then_drops=True),
        Actor("read", (B, P)),
    )
    return State(_THERE, True, _shared(A), _shared(A), _shared(A), actors)


def undone() -> State:
    """A drop is taken back while its objects may be collected."""
    actors = (Actor("drop", (A, P)), Actor("undo", (A, P)))
    return State(_THERE, True, _shared(A), _shared(A), _shared(A), actors)


def undone_and_fetched() -> State:
    """The same, and another replica takes over what it read before the drop: the mark of the source that it finds may
    be the undo's, which has not looked yet."""
    actors = (Actor("drop", (A, P)), Actor("undo", (A, P)), Actor("read", (B, P), then_drops=True))
    return State(_THERE, True, _shared(A), _shared(A), _shared(A), actors)


def repaired() -> State:
    """An audit that puts marks back meets a drop and a fetch."""
    actors = (Actor("drop", (A, P)), Actor("read", (B, P)), Actor("audit", (AUDIT, P)))
    return State(_THERE, True, _shared(A), _shared(A), _shared(A), actors)


def wiped() -> State:
    """Keeper loses everything while two replicas drop the part, one fetches it, and an audit runs."""
    actors = (
        Actor("drop", (A, P)),
        Actor("read", (B, P)),
        Actor("drop", (C, P)),
        Actor("audit", (AUDIT, P)),
    )
    both = _shared(A, C)
    return State(_THERE, True, both, both, both, actors, wipes=1)


def written() -> State:
    """A new part, while somebody collects what nothing names. Keeper may lose everything meanwhile."""
    actors = (Actor("create", (A, P)), Actor("list", (B, P)))
    return State(("", ""), False, frozenset(), frozenset(), frozenset(), actors, wipes=1)


STARTS = (fetched, linked, undone, undone_and_fetched, repaired, wiped, written)


def explore(rules: Rules, first: State) -> tuple[int, Found | None]:
    """All that can follow from this state, by these rules."""
    return exploration.explore(first, lambda now: steps(now, rules), violation)


def violation(state: State) -> str | None:
    """What of the promises does not hold."""
    counts = state.said & state.logs
    if counts and "collected" in state.objects:
        return f"objects of {sorted(counts)} were collected"
    if state.deceived:
        return "a replica says that it has a part whose object was gone before"
    return None


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Every next step of everybody."""
    if state.wipes:
        yield "Keeper loses everything", state._replace(has_set=False, marks=frozenset(), wipes=state.wipes - 1)
    if state.losses:
        for key in KEYS:
            if state.objects[key] == "there":
                yield f"object {key} gets lost", _object(state, key, "lost")._replace(losses=state.losses - 1)
    for place, actor in enumerate(state.actors):
        for said, after, following in _act(state, actor, rules):
            actors = (*state.actors[:place], following, *state.actors[place + 1 :])
            who = "/".join(actor.use)
            yield f"{who}: {said}", after._replace(actors=actors)


Step = tuple[str, State, Actor]


def _act(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """What it can do next. Not to go on is no step: who is killed and never comes back stands still."""
    match actor.step:
        case "done":
            return
        case "drop" | "unmark" | "empty" | "delete 0" | "delete 1":
            yield from _drop(state, actor, rules)
        case "create" | "upload 0" | "upload 1":
            yield from _write(state, actor, rules)
        case "list" | "marks" | "logs" | "sweep":
            yield from _sweep(state, actor, rules)
        case "audit" | "compare" | "hold" | "again" | "restore" | "let go":
            yield from _audit(state, actor, rules)
        case _:
            yield from _take(state, actor, rules)


def _take(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """A fetch by metadata, a link, an undo: the mark, the probe, the source's mark, the commit, a look, the word."""
    own = actor.use
    is_link = own[1] == LINKED
    is_undo = actor.source == own
    if actor.step in ("mark", "probe", "check", "commit"):
        yield "is killed, and tidies up", state, actor._replace(step="back out")
    match actor.step:
        case "read":
            sources = [use for use in state.logs if (use[0] == own[0]) == is_link and use[0] != AUDIT]
            for source in sorted(sources):
                late = "lost" in state.objects
                yield f"reads {source}", state, actor._replace(step="mark", source=source, late=late)
        case "undo" if own not in state.logs:
            yield "reads what was", state, actor._replace(step="mark", source=own)
        case "mark" if not rules.marked_before_commit:
            yield "sets no mark yet", state, actor._replace(step="probe")
        case "mark" if state.has_set or not rules.mark_makes_no_set:
            renewed = state.renewed | ({own} & state.marks)
            marked = state._replace(has_set=True, marks=state.marks | {own}, renewed=renewed)
            yield "marks", marked, actor._replace(step="commit" if is_link else "probe")
        case "mark":
            yield "finds no set", state, actor._replace(step="done")
        case "probe":
            probed = state.objects if rules.every_object_is_probed else state.objects[:1]
            whole = all(one == "there" for one in probed)
            yield "probes", state, actor._replace(step="check" if whole else "back out")
        case "check":
            holds = is_undo or actor.source in state.marks or not rules.source_is_checked
            yield "checks the source's mark", state, actor._replace(step="commit" if holds else "back out")
        case "commit" if is_link and actor.source not in state.logs:
            yield "finds its source gone", state, actor._replace(step="back out")
        case "commit":
            after = state._replace(logs=state.logs | {own})
            if not rules.marked_before_commit and state.has_set:
                yield "commits", after, actor._replace(step="mark late")
            else:
                yield "commits", after, actor._replace(step="look")
        case "mark late":
            marks = state.marks | {own} if state.has_set else state.marks
            yield "marks", state._replace(marks=marks), actor._replace(step="look")
        case "look" if rules.looked_after_commit and rules.marked_before_commit and own not in state.marks:
            yield "finds its mark gone", state._replace(logs=state.logs - {own}), actor._replace(step="done")
        case "look":
            yield "finds its mark", state, actor._replace(step="say")
        case "say":
            after = state._replace(said=state.said | {own}, deceived=state.deceived or actor.late)
            yield "says so", after, actor._replace(step="drop" if actor.then_drops else "done")
        case "back out":
            yield "takes its mark back", state._replace(marks=state.marks - {own}), actor._replace(step="done")


def _drop(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """The metadata, the mark, the set's node, and who took that one away the objects."""
    own, early = actor.use, not rules.unmarked_after_metadata
    gone = state._replace(logs=state.logs - {own}, said=state.said - {own})
    unmarked = state._replace(marks=state.marks - {own})
    match actor.step:
        case "drop" if early:
            yield "takes its mark away", unmarked, actor._replace(step="unmark")
        case "drop":
            yield "drops the part", gone, actor._replace(step="unmark")
        case "unmark" if early:
            yield "drops the part", gone, actor._replace(step="empty")
        case "unmark" if rules.unmarked_as_it_was and own in state.renewed:
            yield "finds its mark written anew", state, actor._replace(step="done")
        case "unmark":
            yield "takes its mark away", unmarked, actor._replace(step="empty")
        case "empty" if not state.has_set:
            after = "done" if rules.missing_set_keeps else "delete 0"
            yield "finds no set", state, actor._replace(step=after)
        case "empty" if actor.late:  # it has looked, and goes by what it saw then
            after = state._replace(has_set=False, marks=frozenset())
            yield "takes the set away", after, actor._replace(step="delete 0")
        case "empty" if state.marks:
            yield "leaves the set", state, actor._replace(step="done")
        case "empty" if not rules.set_goes_only_empty:
            yield "sees no marks", state, actor._replace(late=True)
        case "empty":
            yield "takes the set away", state._replace(has_set=False), actor._replace(step="delete 0")
        case "delete 0":
            yield "deletes object 0", _object(state, 0, "collected"), actor._replace(step="delete 1")
        case "delete 1":
            yield "deletes object 1", _object(state, 1, "collected"), actor._replace(step="done")


def _write(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """A new part: the set with its mark, the objects, and on as after a fetch's probe."""
    marked = state._replace(has_set=True, marks=state.marks | {actor.use})
    match actor.step:
        case "create" if rules.marked_before_bytes:
            yield "makes the set", marked, actor._replace(step="upload 0")
        case "create":
            yield "makes no set yet", state, actor._replace(step="upload 0")
        case "upload 0":
            yield "uploads object 0", _object(state, 0, "there"), actor._replace(step="upload 1")
        case "upload 1":
            after = state if rules.marked_before_bytes else marked
            yield "uploads object 1", _object(after, 1, "there"), actor._replace(step="commit")


def _sweep(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """Who deletes what neither a set nor a log names: the listing, the marks, the logs, and no grace."""
    order = ("list", "marks", "logs") if rules.sweep_reads_marks_first else ("list", "logs", "marks")
    following = dict(zip(order, (*order[1:], "sweep"), strict=True))
    match actor.step:
        case "list" if "there" in state.objects:
            yield "lists an object", state, actor._replace(step=following["list"])
        case "marks":
            after = "done" if state.has_set else following["marks"]
            yield "looks for the set", state, actor._replace(step=after)
        case "logs":
            after = "done" if state.logs else following["logs"]
            yield "reads the logs", state, actor._replace(step=after)
        case "sweep":
            objects = tuple("collected" if one == "there" else one for one in state.objects)
            yield "deletes what it listed", state._replace(objects=objects), actor._replace(step="done")  # type: ignore[arg-type]


def _audit(state: State, actor: Actor, rules: Rules) -> Iterator[Step]:
    """Who puts back what Keeper lost: a log that names a set without its mark is reason to hold the set, by a mark of
    the audit's own; then every log is read again, and only what it names then gets its mark."""
    own = actor.use
    match actor.step:
        case "audit":
            yield "reads the logs", state, actor._replace(step="compare", read=state.logs)
        case "compare":
            wanting = actor.read - state.marks
            yield "compares the marks", state, actor._replace(step="hold", read=wanting)
        case "hold":
            kept = frozenset({own}) if rules.audit_holds_the_set else frozenset()
            after = state._replace(has_set=True, marks=state.marks | kept) if actor.read else state
            step = ("again" if rules.audit_reads_again else "restore") if actor.read else "done"
            yield "holds the set", after, actor._replace(step=step)
        case "again":
            yield "reads the logs again", state, actor._replace(step="restore", read=state.logs)
        case "restore":
            marks = state.marks | actor.read if state.has_set else state.marks
            yield "puts the marks back", state._replace(marks=marks), actor._replace(step="let go")
        case "let go":
            yield "lets go", state._replace(marks=state.marks - {own}), actor._replace(step="done")


def _object(state: State, key: int, now: str) -> State:
    objects = (now, state.objects[1]) if key == 0 else (state.objects[0], now)
    return state._replace(objects=objects)
