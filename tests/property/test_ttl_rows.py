"""TTL rules on parts against TTL rules on rows: what `decide` does with a part, and what merges do with its rows.

Guards I13, P20 and P23. The oracle counts in plain integers. Actions and column types are all that the code has.
"""

from __future__ import annotations

import itertools
import typing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.turns import examples
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.merge.rows import live_rows
from tiering.parquet.column_ranges import FileRanges
from tiering.policy import ttl
from tiering.policy.decide import DiskState, Plan, decide
from tiering.table.columns import type_texts
from tiering.table.part import Part, PartName
from tiering.table.schema import Column, Delete, MoveToDisk, MoveToVolume, Recompress, TableDefinition, TtlRule

DAY = 86_400
SECOND = 10**9
"""In nanoseconds, in which the oracle counts."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS = {"s": SECOND, "ms": 10**6, "us": 1000, "ns": 1}
FIRST_PLAUSIBLE = 365 * DAY * SECOND
FIRST, LAST = -719_162 * DAY * SECOND, (2_932_897 * DAY - 1) * SECOND
"""The first day of the year 1, and the last second of 9999."""

_EXAMPLES: dict[type, list[Any]] = {
    MoveToVolume: [MoveToVolume(volume="cold")],
    MoveToDisk: [MoveToDisk(disk="s3"), MoveToDisk(disk="gone", if_exists=True)],
    Delete: [Delete()],
    Recompress: [Recompress(codec="zstd", level=9)],
}
ACTIONS = [action for kind in typing.get_args(typing.get_type_hints(TtlRule)["action"]) for action in _EXAMPLES[kind]]
POLICIES = {
    "p": PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",)), VolumeConfig(name="cold", disks=("s3",))))
}
DISKS = {"ssd": DiskState(None, None), "s3": DiskState(None, None)}


def types_of_times() -> list[str]:
    """The types of columns by which a rule can go: of all types, each with all units and with and without a zone."""
    simple = [name for name in type_texts._SIMPLE if pa.types.is_date(type_texts.arrow_type(name))]
    units = type_texts._TIMESTAMP.pattern.split("(", 1)[1].split(")", 1)[0].split("|")
    return simple + [f"timestamp[{unit}{zone}]" for unit in units for zone in ("", ", UTC")]


class Placed(NamedTuple):
    definition: TableDefinition
    part: Part
    name: PartName
    disk: str


class Case(NamedTuple):
    kind: str
    rules: tuple[TtlRule, ...]
    rows: list[int | None]
    """In the unit of the type."""
    now: datetime

    @property
    def unit(self) -> int:
        return DAY * SECOND if self.kind == "date" else UNITS[type_texts.arrow_type(self.kind).unit]

    @property
    def definition(self) -> TableDefinition:
        columns = (Column(id=1, name="k", type="int64"), Column(id=2, name="t", type=self.kind))
        return TableDefinition(
            uuid="u", database="d", name="t", columns=columns, order_by=("k",), policy="p", ttl=self.rules
        )

    @property
    def table(self) -> pa.Table:
        kind = type_texts.arrow_type(self.kind)
        stored = pa.array(self.rows, pa.int32() if self.kind == "date" else pa.int64())
        return pa.table({"k": list(range(len(self.rows))), "t": stored.cast(kind)})

    @property
    def part(self) -> Part:
        ranges = FileRanges(self.definition)
        ranges.add(self.table)
        rows, columns = len(self.rows), ranges.result()
        return Part(table="u", name="all_1_1_0", rows=rows, size_bytes=1, created=self.now, columns=columns)

    def is_due(self, rule: TtlRule, row: int | None) -> bool:
        """The oracle: whether the time of the row, and then the rule's wait, is over."""
        return row is not None and row * self.unit + rule.after_seconds * SECOND <= now_of(self)

    def is_dated(self, row: int | None) -> bool:
        return row is not None and row * self.unit >= FIRST_PLAUSIBLE

    def is_deleted(self, row: int | None) -> bool:
        deletes = [rule for rule in self.rules if isinstance(rule.action, Delete)]
        return self.is_dated(row) and any(self.is_due(rule, row) for rule in deletes)

    def newest_is_due(self, rule: TtlRule) -> bool:
        dated = [row for row in self.rows if row is not None]
        return bool(dated) and self.is_due(rule, max(dated))

    def merged(self) -> list[int]:
        """The rows that a merge keeps."""
        return [row for kept in live_rows([self.table], self.definition, self.now) for row in kept["k"].to_pylist()]


def now_of(case: Case) -> int:
    return (case.now - EPOCH) // timedelta(microseconds=1) * 1000


WAITS = st.sampled_from([0, 1, DAY, 30 * DAY, 100 * 365 * DAY, 3000 * 365 * DAY, 1 << 37])
NOWS = st.one_of(
    st.datetimes(datetime(1970, 1, 1), datetime(2300, 1, 1)),
    st.sampled_from([datetime(2026, 6, 1), datetime(2262, 4, 12), datetime(9999, 12, 31, 23)]),
).map(lambda moment: moment.replace(tzinfo=UTC))


@st.composite
def cases(draw: st.DrawFn, kinds: typing.Sequence[str], *, beyond_years: bool = False) -> Case:
    """Rows near what the rules go by, and far from it."""
    kind = draw(st.sampled_from(kinds))
    rules = draw(st.lists(st.builds(TtlRule, WAITS, st.just("t"), st.sampled_from(ACTIONS)), min_size=1, max_size=3))
    case = Case(kind, tuple(rules), [], draw(NOWS))
    lowest, highest = FIRST // case.unit, LAST // case.unit
    if case.unit == 1:
        lowest, highest = max(lowest, -(2**63) + 1000), min(highest, 2**63 - 1000)
    if beyond_years:
        bits = 31 if kind == "date" else 63
        lowest, highest = -(2**bits), 2**bits - 1
    edges = [
        *((now_of(case) - rule.after_seconds * SECOND) // case.unit for rule in rules),
        FIRST_PLAUSIBLE // case.unit,
    ]
    near = st.builds(
        lambda edge, more: min(max(edge + more, lowest), highest), st.sampled_from(edges), st.integers(-1, 1)
    )
    far = st.sampled_from([lowest, 0, highest])
    rows = draw(st.lists(st.one_of(st.none(), near, near, far, st.integers(lowest, highest)), min_size=1, max_size=5))
    return case._replace(rows=rows)


def test_every_type_of_a_time_is_tried() -> None:
    assert {"date", "timestamp[ns]", "timestamp[s, UTC]"} <= set(types_of_times())


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_part_is_deleted_when_each_row_is(data: st.DataObject) -> None:
    """A part is deleted whole exactly when one rule deletes each of its rows. Where it deletes all but those without a
    time, a merge is due, deletes at least one row, and is not due again."""
    case = data.draw(cases(types_of_times()))
    plan = decide_on(case)
    deletes = [rule for rule in case.rules if isinstance(rule.action, Delete)]
    whole = any(all(case.is_dated(row) and case.is_due(rule, row) for row in case.rows) for rule in deletes)
    assert bool(plan.deletes) == whole
    if plan.deletes:
        assert case.merged() == []
    dues = ttl.due_times(case.definition, case.part)
    dated = [row for row in case.rows if case.is_dated(row)]
    partly = 0 < len(dated) < len(case.rows) and any(all(case.is_due(rule, row) for row in dated) for rule in deletes)
    assert (ttl.due_in_part(dues, case.now) is not None) == partly
    if partly:
        left = [case.rows[row] for row in case.merged()]
        assert 0 < len(left) < len(case.rows)
        after = case._replace(rows=left)
        assert ttl.due_in_part(ttl.due_times(after.definition, after.part), case.now) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_merge_deletes_the_rows_that_are_due(data: st.DataObject) -> None:
    """Of any count that a column can hold: infinite times, and those that no calendar has, too."""
    case = data.draw(cases(types_of_times(), beyond_years=data.draw(st.booleans())))
    assert case.merged() == [number for number, row in enumerate(case.rows) if not case.is_deleted(row)]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_part_moves_with_its_newest_time(data: st.DataObject) -> None:
    """Rows without a time neither move a part nor keep it; without any time it stays. So for recompression."""
    case = data.draw(cases(types_of_times()))
    dues = ttl.due_times(case.definition, case.part)
    moves = [rule for rule in case.rules if isinstance(rule.action, MoveToVolume | MoveToDisk)]
    assert (ttl.winning_move(dues, case.now) is not None) == any(map(case.newest_is_due, moves))
    assert [due.rule for due in ttl.due_recompressions(dues, case.now)] == [
        rule for rule in case.rules if isinstance(rule.action, Recompress) and case.newest_is_due(rule)
    ]
    plan = decide_on(case)
    if plan.moves:
        assert any(map(case.newest_is_due, moves))
    if not any(map(case.newest_is_due, case.rules)):
        assert not plan.moves
        assert not plan.deletes


@pytest.mark.parametrize(("nulls", "minimum"), list(itertools.product([0, 1], ["2013-01-01", None, "1970-01-01"])))
def test_what_statistics_leave_open_keeps_the_part(nulls: int, minimum: Any) -> None:
    """A part is deleted whole only where its statistics say that every row has a time."""
    case = Case("date", (TtlRule(DAY, "t", Delete()),), [15_706, 15_706], datetime(2026, 6, 1, tzinfo=UTC))
    (known,) = (case.part.columns["2"],)
    stated = type(known)(min=minimum, max=known.max, nulls=nulls)
    part = replace(case.part, columns={"2": stated})
    assert bool(decide_on(case, part).deletes) == (nulls == 0 and minimum == "2013-01-01")


def decide_on(case: Case, part: Part | None = None) -> Plan:
    placed = Placed(case.definition, part or case.part, case.part.part_name, "ssd")
    return decide([placed], DISKS, POLICIES, case.now)
