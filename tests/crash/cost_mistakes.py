"""Seeded mistakes in what `cost` says, for `tests.crash.mutants`. Name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.crash.seeding import replaced

_COST = "tests/unit/tiering/cli/test_cli_cost.py"
_SHARED = "tests/replicas/zero_copy/test_end_to_end.py::test_du_says_whose_the_bytes_are"


def _kept_sources_are_gone() -> None:
    from tiering.facts.cost import Bill

    original = Bill.of_plan

    def of_plan(self: Any, moves: Any, deletes: Any) -> Any:
        return original(self, [msgspec.structs.replace(move, keep_source=False) for move in moves], deletes)

    Bill.of_plan = of_plan  # type: ignore[method-assign]


def _deletes_save_nothing() -> None:
    from tiering.facts.cost import Bill

    original = Bill.of_plan
    Bill.of_plan = lambda self, moves, deletes: original(self, moves, ())  # type: ignore[method-assign]


def _one_price_for_all_disks() -> None:
    from tiering.policy import cost

    cost.gb_month = lambda disk, prices, remote: prices.storage_gb_month if disk in remote else prices.local_gb_month


def _commits_are_free() -> None:
    from tiering.policy import cost

    original = cost.estimate

    def estimate(*arguments: Any) -> Any:
        return msgspec.structs.replace(original(*arguments), commits=0)

    cost.estimate = estimate


def _bytes_down_are_free() -> None:
    from tiering.policy import pacing

    original = pacing.price_of

    def price_of(size: int, source: str, target: str, remote: Any, prices: Any) -> Any:
        return original(size, source, target, remote, msgspec.structs.replace(prices, down_per_gb=0.0))

    pacing.price_of = price_of
    replaced("tiering.facts.cost", "price_of", price_of)()


def _shared_by_one_fewer() -> None:
    from disks.object_disk.sharing import shared_bytes

    original = shared_bytes._of_one

    def of_one(own: Any, theirs: Any) -> Any:
        found = original(own, theirs)
        return replace(found, share_bytes=found.size_bytes - found.shared_bytes)

    shared_bytes._of_one = of_one


def _unknown_is_nothing() -> None:
    from oplog.errors import FrostlineError
    from tiering.facts import sharing

    original = sharing.sharing_rows

    def sharing_rows(store: Any, table: str | None = None) -> Any:
        try:
            return [one for one in original(store, table) if not isinstance(one, sharing.UnknownSharing)]
        except FrostlineError:
            return []

    sharing.sharing_rows = sharing_rows
    replaced("tiering.facts.cost", "sharing_rows", sharing_rows)()


def _moves_of_every_table() -> None:
    from tiering.facts.cost import Bill

    original = Bill._moved
    Bill._moved = lambda self, table: original(self, None)  # type: ignore[method-assign]


def _rows_by_their_own_names() -> None:
    from msgspec.structs import asdict

    replaced("tiering.cli.frame.output", "fields_of", asdict)()


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "cost: the moves of every table",
        "the past moves of one table are those of all",
        f"{_COST}::test_a_table_by_its_uuid_costs_the_same",
        _moves_of_every_table,
    ),
    (
        "json: names of the code",
        "a document with a remark beside it has the names of the struct's fields",
        "tests/unit/tiering/cli/test_json_shapes.py::test_what_is_beside_a_row_changes_nothing_of_it",
        _rows_by_their_own_names,
    ),
    (
        "cost: what is kept is gone",
        "a plan that keeps the source is priced as if it went",
        f"{_COST}::test_a_plan_is_priced_before_it_is_carried_out",
        _kept_sources_are_gone,
    ),
    (
        "cost: a drop saves nothing",
        "what a plan drops is not among what is paid before it",
        f"{_COST}::test_a_plan_that_drops",
        _deletes_save_nothing,
    ),
    (
        "cost: one price for all disks",
        "a disk with a price of its own is priced like the others",
        f"{_COST}::test_another_policy",
        _one_price_for_all_disks,
    ),
    (
        "cost: commits are free",
        "the writes of a plan are those of its files alone",
        f"{_COST}::test_a_plan_is_priced_before_it_is_carried_out",
        _commits_are_free,
    ),
    (
        "cost: bytes down are free",
        "a move out of a bucket costs its requests alone",
        f"{_COST}::test_past_moves_there_and_back",
        _bytes_down_are_free,
    ),
    (
        "cost: what is shared is free",
        "an object that others share is nobody's share",
        _SHARED,
        _shared_by_one_fewer,
    ),
    (
        "cost: what is not known is not told",
        "where the other logs cannot be read, all counts as this machine's, and nobody hears why",
        _SHARED,
        _unknown_is_nothing,
    ),
    (
        "cost: whole objects are not told",
        "that a plan saves only what nobody else names is not said",
        _SHARED,
        replaced("tiering.cli.commands.cost", "_COUNTED_WHOLE", ""),
    ),
)
