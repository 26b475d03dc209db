"""Plans, moves and passes as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from disks.garbage.report import GcRow
from tiering.catalog.stored import LazyPart
from tiering.config.units import counted
from tiering.facts.merges import MergeRow
from tiering.move.report import FailedMove, MovedPart, SkippedMove
from tiering.policy.cost import Cost
from tiering.policy.plan import HELD, NO_DISK, WAITING, Move, Stay, TtlDelete
from tiering.table.part import PartName

if TYPE_CHECKING:
    from tiering.engine.maintenance import TickReport
    from tiering.engine.store import Store
    from tiering.policy.cost import PlanCost
    from tiering.policy.plan import Plan
    from tiering.table.part import Part, PartFiles


class CostedMove(Move, frozen=True, kw_only=True):
    """A move of a plan, and what it will cost."""

    cost: Cost


class WouldMove(Move, frozen=True, kw_only=True):
    """A move of a dry run, with the fields of one that was made."""

    cost: Cost | UnsetType = UNSET
    """Of a move that a pass would make."""
    seconds: int = 0
    requests: int = 0

    @property
    def copied(self) -> bool:
        return True


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`plan --json`, and the file that `apply` reads."""

    at: datetime
    moves: list[CostedMove]
    deletes: tuple[TtlDelete, ...]
    stays: int
    held: list[Stay]
    """Parts that are due and cannot move now. Of the others the plan need not say why they stay."""
    bytes: int
    requests: int


class MoveRows(msgspec.Struct, frozen=True, kw_only=True):
    """What moved or would, what failed and what was skipped."""

    moved: Sequence[MovedPart | WouldMove] = ()
    failed: Sequence[FailedMove] = ()
    skipped: Sequence[SkippedMove] = ()


class MovesDocument(MoveRows, frozen=True, kw_only=True):
    """`move --json` and `apply --json`."""

    dry_run: bool


class PassDocument(MoveRows, frozen=True, kw_only=True):
    """`tick --json`."""

    merges: list[MergeRow] = []
    deleted: Sequence[TtlDelete] = ()
    snapshots: dict[str, int] = {}
    problems: list[str] = []
    waiting: list[str] = []
    held: dict[str, int] = {}
    """Due parts that the pacing of policies holds back, by what holds them."""
    gc: list[GcRow] = []
    dry_run: bool = False

    @property
    def steps(self) -> tuple[int, int]:
        """How many steps were done, and how many could not be."""
        done = sum(map(len, (self.moved, self.merges, self.deleted, self.snapshots, self.gc)))
        return done, len(self.failed) + len(self.problems)


def plan_document(store: Store, planned: Plan) -> PlanDocument:
    """The plan with its cost."""
    estimate = plan_cost(store, planned.moves)
    return PlanDocument(
        at=planned.now,
        moves=[CostedMove(**asdict(move), cost=cost) for move, cost in zip(planned.moves, estimate.moves, strict=True)],
        deletes=planned.deletes,
        stays=planned.staying,
        held=[stay for stay in planned.stays if stay.reason.kind in WAITING],
        bytes=planned.bytes,
        requests=estimate.total.requests,
    )


def pass_document(report: TickReport, gc: list[GcRow]) -> PassDocument:
    """What a pass did, and what it could not do."""
    return PassDocument(
        **asdict(report.moves),
        merges=[MergeRow.of(result) for result in report.merges],
        deleted=report.deleted,
        snapshots=report.snapshots,
        problems=report.problems,
        waiting=report.waiting,
        held=dict(report.held),
        gc=gc,
    )


def why_nothing_moves(store: Store, planned: Plan) -> str:
    """A sentence about a plan without moves and deletes. Not the same: nothing is due, what is due is held back, and
    nobody knows, as a disk is away."""
    held = next((stay.reason for stay in planned.stays if stay.reason.kind == "clock"), None)
    if held is not None:
        return f"Nothing moves: {held.detail}."
    paused = [stay.reason.detail for stay in planned.stays if stay.reason.kind == "paused"]
    failed = sum(stay.reason.kind in ("gave_up", "backoff") for stay in planned.stays)
    if paused:
        return f"Nothing moves: {paused[0]} ({counted(len(paused), 'part')}); 'frostline resume' continues."
    if failed:
        return f"Nothing moves: {counted(failed, 'part')} wait after failed moves; 'frostline moves list --failed'."
    stuck = [stay.reason.detail for stay in planned.stays if stay.reason.kind in NO_DISK]
    if stuck:
        return f"Nothing moves: {counted(len(stuck), 'part')} cannot move: {stuck[0]}."
    if any(stay.reason.kind in HELD for stay in planned.stays):
        return "Nothing moves: due moves are postponed; 'frostline explain' shows until when."
    away = sorted({*store.unreachable(), *(fault.disk for fault in store.faults())})
    if away:
        return f"Nothing seems due; disk {', '.join(away)} is unavailable: 'frostline doctor'."
    return "Nothing is due."


def would_move(moves: Iterable[Move]) -> list[WouldMove]:
    """The rows of a dry run."""
    return [WouldMove(**asdict(move)) for move in moves]


def plan_cost(store: Store, moves: Sequence[Move]) -> PlanCost:
    """Requests and bytes of planned moves: one PUT a data file going to a bucket, one commit a batch. Of each part only
    its files are read."""
    from tiering.policy import cost

    partitions: dict[str, set[str]] = {}
    for move in moves:
        partitions.setdefault(move.table_uuid, set()).add(PartName.parse(move.part).partition)
    asked = {_place_of(move) for move in moves}
    parts: dict[tuple[str, str, str], Part | PartFiles] = {}
    kept: dict[tuple[str, str, str], LazyPart] = {}
    for definition in store.definitions():
        for stored in store.context.catalog.partitions(definition, partitions.get(definition.uuid, ())):
            place, described = (definition.uuid, stored.label, stored.disk), stored.described
            if place not in asked:
                continue
            if isinstance(described, LazyPart):
                kept[place] = described
            else:
                parts[place] = described
    parts |= zip(kept, (files for _, files in LazyPart.documents([*kept.values()])), strict=True)
    return cost.estimate(moves, lambda move: parts.get(_place_of(move)), {disk.name for disk in store.object_disks()})


def _place_of(move: Move) -> tuple[str, str, str]:
    return move.table_uuid, move.part, move.source
