"""Moves of a replicated table's parts to the shared disk: one replica at a time makes them. The order, and what a crash
after each step leaves:

    claim     one multi: `mover` says who moves which parts, at the version of the log's   somebody to replace
              node at which no merge of them was agreed upon; mover/alive-<id> comes
    fence     a file on the shared disk that every commit below requires                   the same
    commit    one there, as with every move; the other replicas see it    <- the commit point
    source    the copies here go                                                           copies to free
    release   one multi: mover/alive-<id> goes, `mover` is empty                           done

While a part is claimed no merge of it is agreed upon, and the other way round. That a claim's session is over says
nothing of what its mover still sends: the replica that takes over raises the next fence first, then empties `mover`.
What was merged moves when every replica has it: else one would have it twice, there and in the parts that went into it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from disks.base import Disk
from oplog.documents import Document
from oplog.errors import Conflict, Damaged, FrostlineError, Locked, NotFound
from tiering.move import mover
from tiering.move.report import FailedMove, MoveReport, SkippedMove
from tiering.policy.plan import Move
from tiering.table.part import PartName
from zerocopy.execution import queue
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, Set
from zerocopy.replica import fence, shared
from zerocopy.replica.replica import Replica

_AT_ONCE = 2000
"""Parts of one claim at most: their names are in one node."""
_NAMES_BYTES = 128 * 1024
_ATTEMPTS = 10
MOVER = "mover"
"""The claim in the journal: of this machine's processes one moves at a time."""


class MoveClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What `mover` holds while somebody moves."""

    id: str
    replica: str
    token: str
    parts: tuple[str, ...]


_document = Document("claim of a move, in Keeper", MoveClaim)


def execute(replica: Replica, moves: Sequence[Move]) -> MoveReport:
    """Make the moves to the shared disk that may be made now; the others are skipped with the reason."""
    context, definition = replica.context, replica.definition
    disk = shared.disk_of(context, definition)
    report = MoveReport()
    outwards = [move for move in moves if disk is None or move.target != disk.name or move.source == disk.name]
    why = "a part that all replicas share stays where it is"
    report += MoveReport(skipped=tuple(SkippedMove.of(move, why) for move in outwards))
    wanted = [move for move in moves if move not in outwards]
    if disk is not None and wanted and (why := _why_not_shared(replica, disk)):
        return report + MoveReport(failed=tuple(FailedMove.of(move, why) for move in wanted))
    for portion in _portions(wanted):
        assert disk is not None
        try:
            with context.journal.claim(definition.uuid, [MOVER], "move"):
                report += _execute(replica, disk, portion)
        except Locked as error:
            report += MoveReport(skipped=tuple(SkippedMove.of(move, error.message) for move in portion))
    return report


def busy(replica: Replica) -> frozenset[str]:
    """The parts that somebody moves now, or may move still."""
    found = _claimed(replica)
    if found is None:
        return frozenset()
    claim, version = found
    if not replica.keeper.exists(replica.table.alive(claim.id)):
        disk = shared.disk_of(replica.context, replica.definition)
        with suppress(FrostlineError):  # the bucket does not answer: its parts stay claimed
            if disk is not None:
                _take_over(replica, disk, version)
                return frozenset()
    return frozenset(claim.parts)


def _why_not_shared(replica: Replica, disk: Disk) -> str:
    """Why the replicas do not share the disk: the table was made without it. Empty where they do."""
    if replica.keeper.exists(replica.table.mover):
        return ""
    return (
        f"the replicas of {replica.definition.full_name} share no bucket by one log: give disk {disk.name} a log of "
        f"this machine's own in the configuration (`log: {replica.name}`)"
    )


def _execute(replica: Replica, disk: Disk, moves: list[Move]) -> MoveReport:
    with _claiming(replica, disk, moves) as held:
        if not held.allowed:
            return MoveReport(skipped=tuple(held.skipped))
        standing = fence.hold(replica, disk)
        report = mover.execute(replica.context, held.allowed, required=[standing])
        held.is_clean = not report.failed
        if report.failed:
            report = _told_why(replica, disk, standing, report)
    return report + MoveReport(skipped=tuple(held.skipped))


def _told_why(replica: Replica, disk: Disk, standing: str, report: MoveReport) -> MoveReport:
    """The same, where another replica took over while this one moved: who did, and what to do now."""
    try:
        other = fence.replaced_by(replica, disk, standing)
    except FrostlineError:  # the bucket does not answer
        return report
    if not other:
        return report
    definition, failed = replica.definition, []
    for move in report.failed:
        if disk.exists(definition.part_directory(move.part)):
            why = (
                f"replica {other} has moved part {move.part} to {disk.name} meanwhile; "
                "'frostline replica sync' frees the copy here"
            )
        else:
            why = (
                f"part {move.part} was not moved: the session with Keeper ended meanwhile, and replica {other} took "
                f"over the moves of {definition.full_name}; run 'frostline replica sync', and move what is not on "
                f"{disk.name} then"
            )
        failed.append(msgspec.structs.replace(move, error=why))
    return msgspec.structs.replace(report, failed=tuple(failed))


class _Held(msgspec.Struct):
    """What this replica may move while it holds the claim."""

    allowed: list[Move]
    skipped: list[SkippedMove]
    claim: MoveClaim | None = None
    version: int = 0
    is_clean: bool = False
    """Whether it is known of every commit whether it took place."""


@contextmanager
def _claiming(replica: Replica, disk: Disk, moves: list[Move]) -> Iterator[_Held]:
    """Hold the claim on those of the moves that may be made, if there are any."""
    held = _claim(replica, disk, moves)
    with _releasing(replica, disk, held):
        yield held


@contextmanager
def fenced(replica: Replica, disk: Disk) -> Iterator[tuple[str, Callable[[], None]]]:
    """Be the one who changes the shared disk, to drop what the log says: the path that each commit requires, and what
    to call when it is known of every commit whether it took place. Raises `Locked` while another one is at it."""
    with replica.context.journal.claim(replica.definition.uuid, [MOVER], "drop"):
        held = _Held([], [])
        keeper, table = replica.keeper, replica.table
        for _ in range(_ATTEMPTS):
            keeper.sync(table.path)
            if other := _other_mover(replica, disk):
                raise Locked(other, hint="the next pass tries again")
            version, node = keeper.get(table.log).version, keeper.get(table.mover)
            if not node.data and _take(replica, held, version, node.version, ()):
                break
        else:
            raise Locked(
                f"what the replicas of {replica.definition.full_name} agree upon keeps changing",
                hint="the next pass tries again",
            )

        def clean() -> None:
            held.is_clean = True

        with _releasing(replica, disk, held):
            yield fence.hold(replica, disk), clean


@contextmanager
def _releasing(replica: Replica, disk: Disk, held: _Held) -> Iterator[None]:
    """Give the claim back, if there is one."""
    claim = held.claim
    if claim is None:
        yield
        return
    try:
        yield
        if not held.is_clean:  # something may still be on its way there: nothing gets past another fence
            fence.replace(replica, disk)
            held.is_clean = True
    finally:
        with suppress(FrostlineError):  # nobody answers: the node goes with the session
            _release(replica, held, claim)


def _release(replica: Replica, held: _Held, claim: MoveClaim) -> None:
    """In one request: who hears of the end of a claim that is not released takes over."""
    alive = replica.table.alive(claim.id)
    if held.is_clean:
        with suppress(NotFound, Conflict):  # the session is another one by now, or somebody took over
            replica.keeper.multi([DeleteNode(alive), Set(replica.table.mover, b"", held.version)])
            return
    replica.keeper.delete(alive)
    if held.is_clean:  # else the next replica takes over
        replica.keeper.set(replica.table.mover, b"", held.version)


def _claim(replica: Replica, disk: Disk, moves: list[Move]) -> _Held:
    keeper, table = replica.keeper, replica.table
    for _ in range(_ATTEMPTS):
        keeper.sync(table.path)
        if other := _other_mover(replica, disk):
            return _Held([], [SkippedMove.of(move, other) for move in moves])
        version = keeper.get(table.log).version
        node = keeper.get(table.mover)
        held = _allowed(replica, disk, moves)
        if not held.allowed:
            return held
        if node.data:  # another one came first
            continue
        if _take(replica, held, version, node.version, tuple(move.part for move in held.allowed)):
            return held
    why = f"what the replicas of {replica.definition.full_name} agree upon keeps changing; the next pass tries again"
    return _Held([], [SkippedMove.of(move, why) for move in moves])


def _take(replica: Replica, held: _Held, version: int, mover_version: int, parts: tuple[str, ...]) -> bool:
    """Claim the parts, if since these versions neither a merge nor a drop was agreed upon, and nobody else moves."""
    table = replica.table
    claim = MoveClaim(id=uuid.uuid4().hex, replica=replica.name, token=replica.token, parts=parts)
    data = _document.encode(claim)
    operations: list[Operation] = [
        Set(table.log, claim.id.encode(), version),
        Set(table.mover, data, mover_version),
        CreateNode(table.alive(claim.id), ephemeral=True),
    ]
    try:
        replica.keeper.multi(operations, witness=Witness(table.mover, data))
    except Conflict:
        return False
    held.claim, held.version = claim, mover_version + 1
    return True


def _other_mover(replica: Replica, disk: Disk) -> str:
    """Who moves now; empty when nobody does. One that is gone is replaced."""
    found = _claimed(replica)
    if found is None:
        return ""
    claim, version = found
    own = claim.token == replica.token  # of a process of this machine that is gone: the journal's claim says so
    if not own and replica.keeper.exists(replica.table.alive(claim.id)):
        return f"replica {claim.replica} moves parts of {replica.definition.full_name} now; the next pass tries again"
    replica.keeper.delete(replica.table.alive(claim.id))
    _take_over(replica, disk, version)
    return ""


def _claimed(replica: Replica) -> tuple[MoveClaim, int] | None:
    """Who moves, and the version of the node that says so; None where nobody does."""
    try:
        node = replica.keeper.get(replica.table.mover)
    except NotFound:
        return None
    if not node.data:
        return None
    try:
        return _document.decode(node.data), node.version
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{replica.table.mover} in Keeper cannot be read: {error}",
            hint="see its content with 'frostline keeper get'",
        ) from error


def _take_over(replica: Replica, disk: Disk, version: int) -> None:
    """Replace a mover whose session is over: nothing that it sends later comes in."""
    fence.replace(replica, disk)
    with suppress(Conflict):  # another replica took over as well
        replica.keeper.set(replica.table.mover, b"", version)


def _allowed(replica: Replica, disk: Disk, moves: list[Move]) -> _Held:
    """Which of the moves may be made, as of the log's end and of what the disks hold now."""
    context, definition = replica.context, replica.definition
    queue.pull(replica)
    pending = [name for queued in queue.queue(replica) for name in queued.entry.touches]
    context.catalog.refresh()
    where = {stored.name: stored.disk for stored in context.catalog.parts(definition)}
    own, others, left = replica.parts(), _parts_of_others(replica), shared.leftovers(context, definition)

    def why_not(move: Move, name: PartName) -> str:
        if disk.unreachable:
            return disk.unreachable
        if where.get(name) != move.source:
            return f"the part is not on {move.source} any more: merged, moved or dropped meanwhile"
        if name not in own:
            return "the other replicas do not know yet that it is here"
        if any(entry.covers(name) for entry in pending):
            return "a merge or drop that the replicas agreed upon takes it"
        if any(name.covers(other) for other in left):
            return "copies of what was merged into it are still here; the next start removes them"
        if name.max_block > name.min_block or name.level or name.mutation:
            for other, parts in others.items():
                if name not in parts and not any(one.covers(name) for one in parts):
                    return f"it was merged, and replica {other} has not got it yet"
        return ""

    held = _Held([], [])
    for move in moves:
        if why := why_not(move, PartName.parse(move.part)):
            held.skipped.append(SkippedMove.of(move, why))
        else:
            held.allowed.append(move)
    return held


def _parts_of_others(replica: Replica) -> dict[str, set[PartName]]:
    found = {}
    for name in replica.others():
        nodes = replica.table.replica(name)
        found[name] = {PartName.parse(part) for part in replica.keeper.children(nodes.parts)}
    return found


def _portions(moves: Sequence[Move]) -> Iterator[list[Move]]:
    portion: list[Move] = []
    size = 0
    for move in moves:
        if portion and (len(portion) == _AT_ONCE or size + len(move.part) > _NAMES_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(move)
        size += len(move.part) + 3
    if portion:
        yield portion
