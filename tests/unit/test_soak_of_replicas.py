"""What decides in `make soak-replicas`: which blocks must be there after inserts and drops side by side."""

from __future__ import annotations

from math import inf

import pytest

from tests.soak import replicas
from tests.soak.blocks import Block, Span, Truth
from tests.soak.replicated import Happened

ROWS = {1: 10, 2: 20}
FOUND = list(ROWS.items())


def acknowledged(began: float, ended: float) -> Span:
    return Span.of(began, ended, acknowledged=True)


def unknown(began: float) -> Span:
    return Span.of(began, began + 1, acknowledged=False)


def truth(*inserts: Span, drops: tuple[Span, ...] = (), held: bool = False) -> Truth:
    made = Truth({1: Block(0, ROWS, held)})
    for span in inserts:
        made.insert(1, span)
    for span in drops:
        made.drop(0, span)
    return made


def allowed(made: Truth) -> tuple[bool, bool]:
    """Whether the block may be there, and whether it may not."""
    return made._may_be_there(made.blocks[1]), not made._must_be_there(made.blocks[1])


@pytest.mark.parametrize(
    ("inserts", "drops", "held", "there", "gone"),
    [
        ((), (), True, True, False),
        ((), (), False, False, True),
        ((acknowledged(1, 2),), (), False, True, False),
        ((unknown(1),), (), False, True, True),
        ((acknowledged(1, 2),), (acknowledged(3, 4),), False, False, True),
        ((acknowledged(1, 2),), (unknown(3),), False, True, True),
        ((acknowledged(3, 4),), (acknowledged(1, 2),), False, True, False),
        ((acknowledged(3, 4),), (unknown(1),), False, True, True),
        ((acknowledged(1, 4),), (acknowledged(2, 3),), False, True, True),
        ((acknowledged(1, 2), acknowledged(5, 6)), (acknowledged(3, 4),), False, True, False),
        ((unknown(1),), (acknowledged(3, 4),), False, True, True),
        ((), (acknowledged(3, 4),), True, False, True),
        ((), (unknown(3),), True, True, True),
    ],
)
def test_what_was_inserted_and_dropped_side_by_side(
    inserts: tuple[Span, ...], drops: tuple[Span, ...], held: bool, there: bool, gone: bool
) -> None:
    assert allowed(truth(*inserts, drops=drops, held=held)) == (there, gone)


def test_a_block_is_there_whole_or_not_at_all_and_stays_so() -> None:
    made = truth(unknown(1))
    assert "in part" in str(made.look(FOUND[:1]))
    assert "other values" in str(made.look([(1, 10), (2, 21)]))
    assert "twice" in str(made.look([*FOUND, FOUND[0]]))
    assert "not known" in str(made.look([*FOUND, (3, 30)]))
    assert made.look(FOUND) is None
    assert "is gone" in str(made.look([]))
    made = truth(unknown(1))
    assert made.look([]) is None
    assert "never inserted" in str(made.look(FOUND))


def test_what_is_not_acknowledged_has_no_end() -> None:
    assert unknown(1).ended == inf


def test_too_little_of_three_replicas_proves_nothing() -> None:
    happened = Happened(kills=300, stops=60, keeper_kills=20, expiries=19, faults=100)
    happened.broken_lines["cut"] = 60
    assert replicas.too_little(happened, 3600) == ["19 expiries, 20 wanted"]
    assert len(replicas.too_little(Happened(), 3600)) == len(replicas.WANTED_AN_HOUR)
    more = replicas.too_little(Happened(), 3600, own_logs=True)
    assert len(more) == len(replicas.WANTED_AN_HOUR) + len(replicas.WANTED_OF_OWN_LOGS_AN_HOUR)
