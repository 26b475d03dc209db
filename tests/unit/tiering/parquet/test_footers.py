"""Footers with fewer row groups: what Arrow reads of them, and what is no footer."""

from __future__ import annotations

import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.parquet.footers import with_groups

GROUPS = 20
GROUP_ROWS = 7
ROWS = [GROUP_ROWS] * GROUPS


def _rows() -> pa.Table:
    numbers = range(GROUPS * GROUP_ROWS)
    return pa.table(
        {
            "number": pa.array(numbers),
            "text": [f"{number:x}" * 40 for number in numbers],
            "list": [[number, None] for number in numbers],
            "map": pa.array([[("a", number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
            "decimal": pa.array([Decimal(number) for number in numbers], pa.decimal128(38, 3)),
            "bool": [number % 3 == 0 for number in numbers],
            "null": pa.nulls(len(numbers)),
            **{f"c{place}": pa.array(numbers, pa.float64()) for place in range(3)},
        }
    )


def _file(**options: object) -> bytes:
    stream = io.BytesIO()
    pq.write_table(_rows(), stream, row_group_size=GROUP_ROWS, **options)
    return stream.getvalue()


FILES = {
    "plain": _file(),
    "index": _file(write_page_index=True, write_page_checksum=True, use_dictionary=False),
    "bloom": _file(compression="none", store_schema=False, sorting_columns=[pq.SortingColumn(0)]),
}


@pytest.mark.parametrize("kind", FILES)
@given(groups=st.frozensets(st.integers(0, GROUPS - 1)))
def test_arrow_reads_these_groups_and_no_others(kind: str, groups: frozenset[int]) -> None:
    """From the end alone too: nothing before the footer moves."""
    data = FILES[kind]
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    shorter = data[:start] + with_groups(data[start:], ROWS, groups)
    assert shorter == with_groups(data, ROWS, groups)
    file = pq.ParquetFile(io.BytesIO(shorter))
    assert file.metadata.num_rows == len(groups) * GROUP_ROWS
    assert file.metadata.num_row_groups == len(groups)
    whole = pq.ParquetFile(io.BytesIO(data))
    expected = whole.read_row_groups(sorted(groups))
    assert file.read().equals(expected)
    assert file.metadata.metadata == whole.metadata.metadata


def test_all_groups_are_the_same_footer() -> None:
    for data in FILES.values():
        assert with_groups(data, ROWS, range(GROUPS)) == data


@pytest.mark.parametrize(
    "tail",
    [b"", b"PAR1", FILES["plain"][:-1], FILES["plain"][-8:], FILES["plain"][-30:], bytes(50) + b"\x20\0\0\0PAR1"],
    ids=["empty", "magic", "cut", "length", "half", "zeros"],
)
def test_what_is_no_footer_is_refused(tail: bytes) -> None:
    with pytest.raises(ValueError, match=r"footer"):
        with_groups(tail, ROWS, {1})


@pytest.mark.parametrize("rows", [ROWS[1:], [*ROWS, 1]])
def test_another_number_of_groups_is_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="row groups"):
        with_groups(FILES["plain"], rows, {1})


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_footer_or_refused(data: bytes) -> None:
    """It ends, and never with another error."""
    try:
        with_groups(data + len(data).to_bytes(4, "little") + b"PAR1", ROWS, {1})
    except ValueError:
        pass
