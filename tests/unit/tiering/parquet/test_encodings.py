"""How columns are encoded is judged by a sample: the judgement against the truth, and against what the files weigh."""

from __future__ import annotations

from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import data
from tiering.parquet.encodings import choose_encodings, estimated_distinct

ROWS = 131_072
SAMPLE = 16_384
RANDOM = numpy.random.default_rng(3)

COLUMNS = {
    "unique": RANDOM.permutation(ROWS),
    "even": RANDOM.integers(0, 100_000, ROWS),
    "few": RANDOM.integers(0, 50, ROWS),
    "skewed": (RANDOM.gamma(2.0, 15.0, ROWS) * 100).astype("int64"),
    "zipf": RANDOM.zipf(1.5, ROWS) % 1_000_000,
    "one": numpy.zeros(ROWS, "int64"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_estimate_of_distinct_values_is_near_the_truth(name: str) -> None:
    values = COLUMNS[name]
    found = estimated_distinct(pa.chunked_array([values[:SAMPLE]]), ROWS)
    truth = len(numpy.unique(values))
    assert truth / 2 <= found <= truth * 2


def test_a_sample_that_is_everything_is_counted() -> None:
    assert estimated_distinct(pa.chunked_array([[1, 1, 2, None]]), 4) == pytest.approx(3, abs=0.5)


def test_what_is_chosen_makes_the_smallest_file(tmp_path: Path) -> None:
    """Each column of typical rows, written in every way there is: the chosen one is within a tenth of the best."""
    definition = data.definition("encoded")
    rows = data.events(ROWS, start=data.START, days=1).sort_by([("service", "ascending"), ("ts", "ascending")])
    chosen = choose_encodings(rows, definition)

    def size(name: str, **options: object) -> int:
        path = tmp_path / f"{name}.parquet"
        pq.write_table(rows.select([name]), path, compression="zstd", compression_level=3, **options)
        return path.stat().st_size

    for name in rows.column_names:
        ways = [size(name, use_dictionary=True), size(name, use_dictionary=False)]
        if pa.types.is_integer(rows.schema.field(name).type) or name == "ts":
            ways.append(size(name, use_dictionary=False, column_encoding={name: "DELTA_BINARY_PACKED"}))
        encoding = (chosen["column_encoding"] or {}).get(name)
        ours = size(
            name,
            use_dictionary=name in (chosen["use_dictionary"] or []),
            column_encoding={name: encoding} if encoding else None,
        )
        assert ours <= min(ways) * 1.1, (name, ours, ways)
