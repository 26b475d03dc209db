"""Moves of a replicated table's parts to disks whose objects its replicas share by marks: the bytes go up once.

    claim     cold/<store>/<part> comes, and goes with the session: who brings the part up        nothing
    move      as any other                                                                        the part there, unsaid
    said      the node stays from now on: which replica has it there                              done

Who finds another one's claim waits for the next pass; who finds the word takes the part over by its objects
(`replica.sharing`) and then moves as any other whose target has the part already. Each log has one writer, so one that
comes late, after its session was over, has a copy of its own: objects too many, and nothing wrong.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from disks.base import LoggedDisk
from disks.object_disk.sharing.prefix import store_identity
from oplog.errors import AlreadyExists, Conflict, Damaged, FrostlineError, Locked, NotFound, OutcomeUnknown, Transient
from oplog.kinds import Moved
from tiering.catalog.lineage import content_digest
from tiering.move import mover
from tiering.move.report import FailedMove, MoveReport, SkippedMove
from tiering.policy.plan import Move
from tiering.table.part import PartName
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import Create, Delete, Operation, portions
from zerocopy.replica import sharing
from zerocopy.replica.fetching import Fetcher
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import Offered, Source, Whole

_ATTEMPTS = 5
_AT_ONCE = 100
"""Parts that are taken over in one commit: what keeps one back keeps these back."""
_CHANGES = "what the replicas say of it keeps changing; the next pass tries again"


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What the node of a part in a store says."""

    replica: str
    log: str
    """The log of that replica in the store."""
    id: str
    """Of this very change."""
    done: bool = False
    """Whether the part is there; else it is on its way, and the node goes with the session."""


_decoder = msgspec.json.Decoder(Word)


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and where the table's parts there are spoken of."""

    path: str
    store: str
    log: str
    """This machine's there."""

    @classmethod
    def of(cls, replica: Replica, disk: LoggedDisk) -> Place:
        """The disk's. Whoever is first gives its prefix an id."""
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
        logged = replica.context.disk(target).logged
        assert logged is not None
        try:
            report += _to_disk(replica, logged, group)
        except FrostlineError as error:
            report += MoveReport(failed=tuple(FailedMove.of(move, error.message) for move in group))
    return report


def _to_disk(replica: Replica, disk: LoggedDisk, moves: Sequence[Move]) -> MoveReport:
    place = Place.of(replica, disk)
    claimed, words = claim(replica, place, [move.part for move in moves])
    skipped: list[SkippedMove] = []
    try:
        ready = [move for move in moves if move.part in claimed]
        nobodys = []
        others = [move for move in moves if move.part not in claimed]
        _take_together(replica, disk, place, others, words)
        for move in others:
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
        report = mover.execute(replica.context, ready)
    finally:
        say(replica, place, claimed, {name for name in claimed if _is_there(replica, disk, name)})
    return report + MoveReport(skipped=tuple(skipped))


def claim(replica: Replica, place: Place, parts: Sequence[str]) -> tuple[set[str], dict[str, Word]]:
    """Which of the parts this replica is to bring to the store now, and what is said of the others."""
    keeper = replica.keeper
    keeper.make_path(place.path)
    data = msgspec.json.encode(Word(replica=replica.name, log=place.log, id=uuid.uuid4().hex))
    claimed: set[str] = set()
    words: dict[str, Word] = {}
    wanted = list(parts)
    for _ in range(_ATTEMPTS):
        for portion in portions([[Create(place.part(name), data, ephemeral=True)] for name in wanted]):
            try:
                keeper.multi(portion, witness=_witness(portion[-1]))
            except AlreadyExists:  # one of them, and so none was claimed
                continue
            claimed.update(one.path.rpartition("/")[2] for one in portion if isinstance(one, Create))
        wanted = [name for name in wanted if name not in claimed]
        if not wanted:
            break
        for name, node in zip(wanted, keeper.find_all([place.part(name) for name in wanted]), strict=True):
            if node is not None:
                words[name] = _read(node.data, place.part(name))
        wanted = [name for name in wanted if name not in words]
    return claimed, words


def say(replica: Replica, place: Place, claimed: set[str], there: set[str]) -> None:
    """End the claims: of what is there now it is said who has it."""
    done = msgspec.json.encode(Word(replica=replica.name, log=place.log, id=uuid.uuid4().hex, done=True))
    changes: list[list[Operation]] = []
    for name in sorted(claimed):
        said: list[Operation] = [Delete(place.part(name))]
        if name in there:
            said.append(Create(place.part(name), done))
        changes.append(said)
    for portion in portions(changes):
        try:
            replica.keeper.multi(portion, witness=_witness(portion[-1]))
        except (NotFound, AlreadyExists, Conflict, OutcomeUnknown):  # the session was another one by then
            continue


def _take_together(
    replica: Replica, disk: LoggedDisk, place: Place, moves: Sequence[Move], words: Mapping[str, Word]
) -> None:
    """Take over what can be, in one commit for many parts; of the rest each is looked at by itself."""
    here = {stored.facts.name: stored for stored in replica.context.catalog.parts(replica.definition)}
    addresses: dict[str, str] = {}
    found: list[tuple[Move, Offered]] = []
    for move in moves:
        word, stored = words.get(move.part), here.get(move.part)
        if word is None or not word.done or stored is None or _is_there(replica, disk, move.part):
            continue
        if word.replica not in addresses:
            node = replica.keeper.find(replica.table.replica(word.replica).host)
            addresses[word.replica] = node.data.decode(errors="replace") if node is not None else ""
        source = Source(word.replica, stored.name, content_digest(stored.part), addresses[word.replica])
        with suppress(Whole, FrostlineError):
            try:
                offered = _asked(replica, place, source)
            except Transient:
                addresses[word.replica] = ""  # one wait is enough
                offered = sharing.read(replica, disk, word.log, move.part, source.digest)
            found.append((move, offered))
    for begin in range(0, len(found), _AT_ONCE):
        portion = found[begin : begin + _AT_ONCE]
        with suppress(Whole, FrostlineError):
            _take(replica, disk, portion, f"shared with replica {portion[0][1].offer.log}")


def _take(replica: Replica, disk: LoggedDisk, found: Sequence[tuple[Move, Offered]], reason: str) -> None:
    sources: dict[str, list[str]] = defaultdict(list)
    for move, _ in found:
        sources[move.source].append(move.part)
    kind = Moved(
        table=replica.definition.full_name,
        sources={disk_: tuple(parts) for disk_, parts in sources.items()},
        kept=tuple(move.part for move, _ in found if move.keep_source),
    )
    with replica.context.journal.claim(replica.definition.uuid, [move.part for move, _ in found], "move"):
        sharing.take(replica, disk, [offered for _, offered in found], kind=kind, reason=reason)


def _taken_over(replica: Replica, disk: LoggedDisk, place: Place, move: Move, word: Word | None) -> str | None:
    """None when the disk has the part now, else why the move has to wait; empty when nobody has it there any more."""
    if _is_there(replica, disk, move.part):
        return None
    if word is None:
        return _CHANGES
    if not word.done:
        return f"replica {word.replica} moves it now, and it goes up once; the next pass takes it over"
    reasons: list[str] = []
    silent = False
    for source in Fetcher(replica).registered(PartName.parse(move.part)):
        try:
            offered = _offered(replica, disk, place, source, word)
            _take(replica, disk, [(move, offered)], f"shared with replica {source.replica}")
        except Locked as error:
            return error.message
        except (Whole, FrostlineError) as error:
            silent = silent or isinstance(error, Transient)
            reasons.append(f"{source.replica}: {error}")
            continue
        return None
    if silent:
        return f"replica {word.replica} has it there, and cannot give it now: {'; '.join(reasons)}"
    replica.keeper.delete(place.part(move.part))
    return ""


def _offered(replica: Replica, disk: LoggedDisk, place: Place, source: Source, word: Word) -> Offered:
    """What the source offers of the part; where it does not answer, what its log says."""
    try:
        return _asked(replica, place, source)
    except Transient:
        if source.replica != word.replica:
            raise
        return sharing.read(replica, disk, word.log, str(source.part), source.digest)


def _asked(replica: Replica, place: Place, source: Source) -> Offered:
    if not source.address:
        raise Transient(f"replica {source.replica} gives no parts", hint="is a daemon running there?")
    return sharing.asked(replica, source, {place.store})


def _is_there(replica: Replica, disk: LoggedDisk, part: str) -> bool:
    return disk.exists(replica.definition.part_directory(part))


def _witness(last: Operation) -> Witness | None:
    """None where nothing came."""
    return Witness(last.path, last.data) if isinstance(last, Create) else None


def _read(data: bytes, path: str) -> Word:
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} in Keeper cannot be read: {error}", hint="look with 'frostline keeper get'") from error
