"""Moves of a replicated table's parts to disks whose objects its replicas share by marks: the bytes go up once.

    claim     cold/<store>/<part> comes, and goes with the session: who brings the part up        nothing
    move      as any other                                                                        nothing
    look      whether the claim still stands; else another replica may have brought the part up   the part there, unsaid
    said      the node stays from now on: which replica has it there                              done

Who finds another one's claim waits for the next pass; who finds the word takes the part over by its objects
(`replica.sharing`) and then moves as any other whose target has the part already. One that comes late, after its
session was over, claims again what nobody claimed meanwhile, and commits nothing of the rest. Between that look and the
commit there is nothing but the entry: who loses its session there has a copy of its own, and nothing is wrong.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.prefix import store_identity
from oplog.documents import Document
from oplog.errors import AlreadyExists, Conflict, Damaged, FrostlineError, Locked, NotFound, OutcomeUnknown, Transient
from oplog.kinds import Moved
from tiering.catalog.lineage import content_digest
from tiering.move import mover
from tiering.move.report import FailedMove, MoveReport, SkippedMove
from tiering.policy.plan import Move
from tiering.table.part import PartName
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, portions
from zerocopy.replica import sharing
from zerocopy.replica.bringing.fetching import Fetcher
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import AT_ONCE, Offered, PartHolder

_ATTEMPTS = 5
_CHANGES = "its state on the replicas keeps changing; the next pass tries again"


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What the node of a part in a store says."""

    replica: str
    log: str
    """The log of that replica in the store."""
    id: str
    """Of this very change."""
    done: bool = False
    """Whether the part is there; else it is on its way, and the node goes with the session."""


_document = Document("node that says who has a shared part", Word)


class SharedPlace(msgspec.Struct, frozen=True):
    """A store, and where the table's parts there are spoken of."""

    path: str
    store: str
    log: str
    """This machine's there."""

    @classmethod
    def of(cls, replica: Replica, disk: LoggedDisk) -> SharedPlace:
        """That of the disk. The first replica gives the disk's prefix an id."""
        if store_identity(disk) is None:
            disk.claim()
        store = str(store_identity(disk))
        return cls(replica.table.cold(store), store, str(disk.log_name))

    def part(self, name: str) -> str:
        return f"{self.path}/{name}"


def execute(replica: Replica, moves: Sequence[Move]) -> MoveReport:
    """Make the moves, each to a disk with one of several logs. Never raises for a single part."""
    report = MoveReport()
    by_target: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        by_target[move.target].append(move)
    for target, group in by_target.items():
        logged = as_disk(replica.context.disk(target), LoggedDisk)
        assert logged is not None
        try:
            report += _to_disk(replica, logged, group)
        except FrostlineError as error:
            report += MoveReport(failed=tuple(FailedMove.of(move, error) for move in group))
    return report


def _to_disk(replica: Replica, disk: LoggedDisk, moves: Sequence[Move]) -> MoveReport:
    place = SharedPlace.of(replica, disk)
    session = replica.keeper.session
    claimed = _claim_all(replica, place, [move.part for move in moves])
    skipped: list[SkippedMove] = []
    try:
        others = [move for move in moves if move.part not in claimed]
        _take_together(replica, disk, place, others)
        others = [move for move in others if not _is_there(replica, disk, move.part)]
        more, words = claim(replica, place, [move.part for move in others])
        claimed |= more
        _take_by_logs(replica, disk, others, words)
        waiting = {move.part: move for move in others if move.part not in claimed}
        ready, nobodys = [move for move in moves if move.part not in waiting], []
        for move in waiting.values():
            match _taken_over(replica, disk, place, move, words.get(move.part)):
                case None:
                    ready.append(move)
                case "":
                    nobodys.append(move)
                case why:
                    skipped.append(SkippedMove.of(move, why))
        if nobodys:
            again, _ = claim(replica, place, [move.part for move in nobodys])
            claimed |= again
            ready += [move for move in nobodys if move.part in again]
            skipped += [SkippedMove.of(move, _CHANGES) for move in nobodys if move.part not in again]
        late: set[str] = set()

        def barred(parts: Collection[str]) -> dict[str, str]:
            reasons = _lost(replica, place, claimed.intersection(parts), session)
            late.update(reasons)
            return reasons

        report = mover.execute(replica.context, ready, barred=barred)
        claimed -= late
    finally:
        say(replica, place, claimed, {name for name in claimed if _is_there(replica, disk, name)})
    return report + MoveReport(skipped=tuple(skipped))


def _claim_all(replica: Replica, target: SharedPlace, parts: Sequence[str]) -> set[str]:
    """Claim as many of the parts at once as one request takes; none of these where something is said of one."""
    replica.keeper.make_path(target.path)
    data = _document.encode(Word(replica=replica.name, log=target.log, id=uuid.uuid4().hex))
    claimed: set[str] = set()
    for portion in portions([[CreateNode(target.part(name), data, ephemeral=True)] for name in parts]):
        try:
            replica.keeper.multi(portion, witness=_witness(portion[-1]))
        except AlreadyExists:
            continue
        claimed.update(operation.path.rpartition("/")[2] for operation in portion if isinstance(operation, CreateNode))
    return claimed


def claim(replica: Replica, target: SharedPlace, parts: Sequence[str]) -> tuple[set[str], dict[str, Word]]:
    """Which of the parts this replica is to bring to the store now, and what is said of the others."""
    keeper = replica.keeper
    claimed: set[str] = set()
    words: dict[str, Word] = {}
    unclaimed = list(parts)
    for _ in range(_ATTEMPTS):
        claimed |= _claim_all(replica, target, unclaimed)
        unclaimed = [name for name in unclaimed if name not in claimed]
        if not unclaimed:
            break
        for name, node in zip(unclaimed, keeper.find_all([target.part(name) for name in unclaimed]), strict=True):
            if node is not None:
                words[name] = _read(node.data, target.part(name))
        unclaimed = [name for name in unclaimed if name not in words]
    return claimed, words


def _lost(replica: Replica, target: SharedPlace, parts: Collection[str], session: int) -> dict[str, str]:
    """Of the parts that were claimed in this session: why of those whose claim is another one's by now. One request
    while the session lives."""
    keeper = replica.keeper
    keeper.sync(target.path)
    if keeper.session == session:
        return {}
    lost = []
    for name, node in zip(parts, keeper.find_all([target.part(name) for name in parts]), strict=True):
        if node is not None and node.owner == keeper.session:
            continue
        if node is not None and node.owner == session:  # what is left of the claim goes any moment
            keeper.delete(target.part(name), node.version)
        lost.append(name)
    again, _ = claim(replica, target, lost)
    why = (
        "the session with Keeper ended while it was uploaded, and another replica is moving it; the next pass continues"
    )
    return {name: why for name in lost if name not in again}


def say(replica: Replica, target: SharedPlace, claimed: set[str], there: set[str]) -> None:
    """End the claims: of what is there now it is said who has it."""
    done = _document.encode(Word(replica=replica.name, log=target.log, id=uuid.uuid4().hex, done=True))
    changes: list[list[Operation]] = []
    for name in sorted(claimed):
        said: list[Operation] = [DeleteNode(target.part(name))]
        if name in there:
            said.append(CreateNode(target.part(name), done))
        changes.append(said)
    for portion in portions(changes):
        try:
            replica.keeper.multi(portion, witness=_witness(portion[-1]))
        except (NotFound, AlreadyExists, Conflict, OutcomeUnknown):  # the session was another one by then
            continue


def _take_together(replica: Replica, disk: LoggedDisk, target: SharedPlace, moves: Sequence[Move]) -> None:
    """Take over what another replica has there, in one commit for many parts; of the rest each is looked at by
    itself."""
    rest = list(moves)
    for name in replica.others() if rest else ():
        if rest and (address := replica.address_of(name)):
            with suppress(FrostlineError):
                digests = _digests(replica, disk, rest)
                answers = sharing.asked(replica, name, address, digests, {target.store})
                rest = _take_offered(replica, disk, rest, answers, f"shared with replica {name}")


def _take_by_logs(replica: Replica, disk: LoggedDisk, moves: Sequence[Move], words: Mapping[str, Word]) -> None:
    """The same as the logs of those say it who do not answer."""
    for log in {word.log for word in words.values() if word.done}:
        with suppress(FrostlineError):
            said = [move for move in moves if move.part in words and words[move.part].log == log]
            if wanted := _digests(replica, disk, said):
                answers = sharing.read(replica, disk, log, wanted)
                _take_offered(replica, disk, said, answers, f"shared with log {log}")


def _digests(replica: Replica, disk: LoggedDisk, moves: Sequence[Move]) -> dict[str, str]:
    """Of the parts that are here and not there."""
    here = {stored.facts.name: stored for stored in replica.context.catalog.parts(replica.definition)}
    names = [move.part for move in moves if move.part in here and not _is_there(replica, disk, move.part)]
    return {name: content_digest(here[name].part) for name in names}


def _take_offered(
    replica: Replica, disk: LoggedDisk, moves: Sequence[Move], answers: Mapping[str, Offered | str], reason: str
) -> list[Move]:
    """Take over what is offered; returns what is left."""
    offers = ((move, answers.get(move.part)) for move in moves)
    found = [(move, one) for move, one in offers if isinstance(one, Offered)]
    taken: set[str] = set()
    for begin in range(0, len(found), AT_ONCE):
        portion = found[begin : begin + AT_ONCE]
        with suppress(FrostlineError):
            refused = _take(replica, disk, portion, reason)
            taken |= {move.part for move, _ in portion} - refused.keys()
    return [move for move in moves if move.part not in taken]


def _take(replica: Replica, disk: LoggedDisk, offers: Sequence[tuple[Move, Offered]], reason: str) -> dict[str, str]:
    """Why of those that were not taken."""

    def kind(parts: Collection[str]) -> Moved:
        sources: dict[str, list[str]] = defaultdict(list)
        for move, _ in offers:
            if move.part in parts:
                sources[move.source].append(move.part)
        return Moved(
            table=replica.definition.full_name,
            sources={disk_: tuple(parts) for disk_, parts in sources.items()},
            kept=tuple(move.part for move, _ in offers if move.keep_source and move.part in parts),
        )

    with replica.context.journal.claim(replica.definition.uuid, [move.part for move, _ in offers], "move"):
        return sharing.take(replica, disk, [offered for _, offered in offers], kind=kind, reason=reason)


def _taken_over(replica: Replica, disk: LoggedDisk, target: SharedPlace, move: Move, word: Word | None) -> str | None:
    """None when the disk has the part now, else why the move has to wait; empty when nobody has it there any more."""
    if _is_there(replica, disk, move.part):
        return None
    if word is None:
        return _CHANGES
    if not word.done:
        return f"replica {word.replica} moves it now, and it is uploaded once; the next pass takes it over"
    reasons: list[str] = []
    silent = False
    for source in Fetcher(replica).registered(PartName.parse(move.part)):
        try:
            offered = _asked(replica, disk, target, source, word)
            if isinstance(offered, Offered):
                why = f"shared with replica {source.replica}"
                offered = _take(replica, disk, [(move, offered)], why).get(move.part, "")
        except Locked as error:
            return error.message
        except FrostlineError as error:
            silent = silent or isinstance(error, Transient)
            offered = error.message
        if not offered:
            return None
        reasons.append(f"{source.replica}: {offered}")
    if silent:
        return f"replica {word.replica} has it there, and cannot give it now: {'; '.join(reasons)}"
    replica.keeper.delete(target.part(move.part))
    return ""


def _asked(replica: Replica, disk: LoggedDisk, target: SharedPlace, source: PartHolder, word: Word) -> Offered | str:
    """What the source offers of the part, or why it offers nothing; where it does not answer, what its log says."""
    name = str(source.part)
    digests = {name: source.digest}
    try:
        if not source.address:
            raise Transient(f"replica {source.replica} gives no parts", hint="is a daemon running there?")
        return sharing.asked(replica, source.replica, source.address, digests, {target.store})[name]
    except Transient:
        if source.replica != word.replica:
            raise
        return sharing.read(replica, disk, word.log, digests)[name]


def _is_there(replica: Replica, disk: LoggedDisk, part: str) -> bool:
    return disk.exists(replica.definition.part_directory(part))


def _witness(last: Operation) -> Witness | None:
    """None where nothing came."""
    return Witness(last.path, last.data) if isinstance(last, CreateNode) else None


def _read(data: bytes, path: str) -> Word:
    try:
        return _document.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{path} in Keeper cannot be read: {error}", hint="see its content with 'frostline keeper get'"
        ) from error
