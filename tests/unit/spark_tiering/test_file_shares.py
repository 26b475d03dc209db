"""Who reads which bytes of the files of an ingest: every row once, and of the file that was listed (I1)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from oplog.errors import NotFound, Refused, UsageError
from spark_tiering.writing.file_shares import FileShare, IngestFile, rows_of, shares_of
from spark_tiering.writing.ingest import batches_of
from tests.spark.stores import table
from tiering.insert.reshaping import Reshaping

DEFINITION = table("d.t", {"k": "int64"}, ["k"])
SIZES = st.integers(0, 1000)


def listed(path: Path) -> IngestFile:
    facts = path.stat()
    return IngestFile(f"file:{path}", "parquet", ",", facts.st_size, facts.st_mtime)


def written(path: Path, first: int, count: int, group_rows: int = 10) -> IngestFile:
    pq.write_table(pa.table({"k": pa.array(range(first, first + count), pa.int64())}), path, row_group_size=group_rows)
    return listed(path)


def keys(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [key for batch in batches for key in batch.column("k").to_pylist()]


def read(shares: Sequence[FileShare]) -> list[int]:
    return keys(rows_of(shares, Reshaping(DEFINITION)))


@given(
    files=st.lists(st.tuples(st.sampled_from(["a.parquet", "b.parquet.gz", "c.orc"]), SIZES), min_size=1, max_size=8),
    tasks=st.integers(1, 9),
    groups=st.lists(st.integers(0, 50), max_size=6),
)
def test_each_row_group_is_read_by_one_task(files: list[tuple[str, int]], tasks: int, groups: list[int]) -> None:
    """Whatever the files, the tasks and the row groups; an empty file is opened, and what cannot be divided is not."""
    named = [
        IngestFile(f"file:/{number}{name}", name.split(".")[1], ",", size, 0.0)
        for number, (name, size) in enumerate(files)
    ]
    shares = shares_of(named, tasks)
    assert 1 <= len(shares) <= tasks
    assert all(shares)
    pieces = [piece for share in shares for piece in share]
    assert list(dict.fromkeys(piece.file for piece in pieces)) == named
    read_groups: Counter[tuple[str, int]] = Counter()
    for piece in pieces:
        assert piece.span is None or piece.file.url.endswith(".parquet")
        chosen = piece.span.within(groups) if piece.span is not None else range(len(groups))
        read_groups.update((piece.file.url, number) for number in chosen if groups[number])
    assert read_groups == {(file.url, number): 1 for file in named for number, count in enumerate(groups) if count}


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=8), tasks=st.integers(1, 9))
def test_tasks_read_as_many_bytes_as_each_other(sizes: list[int], tasks: int) -> None:
    files = [IngestFile(f"file:/{number}.parquet", "parquet", ",", size, 0.0) for number, size in enumerate(sizes)]
    read_bytes = [
        sum(piece.span.end - piece.span.begin if piece.span is not None else piece.file.size_bytes for piece in share)
        for share in shares_of(files, tasks)
    ]
    assert sum(read_bytes) == sum(sizes)
    assert max(read_bytes) <= sum(sizes) // tasks + 1


def test_files_split_by_row_groups_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.parquet", 0, 95), written(tmp_path / "b.parquet", 95, 7)]
    shares = shares_of(files, 4)
    assert len(shares) == 4
    found = [read(share) for share in shares]
    assert [key for some in found for key in some] == list(range(102))
    assert min(map(len, found)) >= 10
    texts = pa.table({"k": [str(key) for key in range(90)] + ["ninety"]})
    pq.write_table(texts, tmp_path / "c.parquet", row_group_size=10)
    *_, last = shares_of([listed(tmp_path / "c.parquet")], 3)
    with pytest.raises(UsageError, match=r"c\.parquet: column k .*row 91 has 'ninety'"):
        read(last)


@pytest.mark.in_turn
@pytest.mark.parametrize("when", ["before", "within", "after"])
@pytest.mark.parametrize("how", ["longer", "shorter", "as long"])
def test_a_file_that_is_written_anew_is_refused(tmp_path: Path, when: str, how: str) -> None:
    """Before, between and after its batches: what was read of it goes nowhere, whether it could be read or not."""
    path = tmp_path / "a.parquet"
    file = written(path, 0, 300_000, 150_000)

    def anew() -> None:
        if how == "longer":
            path.write_bytes(path.read_bytes() + b"more")
        elif how == "shorter":
            os.truncate(path, file.size_bytes // 2)
        else:
            os.utime(path, (file.changed + 1, file.changed + 1))

    if when == "before":
        anew()
    batches = rows_of([FileShare(file)], Reshaping(DEFINITION))
    with pytest.raises(Refused, match=r"a\.parquet was written again"):
        for number, _ in enumerate(batches):
            if number == (0 if when == "within" else 2):
                anew()


def test_a_file_that_this_machine_does_not_see_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", 0, 10)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(NotFound, match=r"a\.parquet is not there on ") as raised:
        read([FileShare(file)])
    assert "all executors must see the files" in raised.value.hint


def test_a_file_that_cannot_be_read_is_damaged_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for content in (b"", b"PAR1 no more"):
        path.write_bytes(content)
        ((piece,),) = shares_of([listed(path)], 1)
        with pytest.raises(UsageError, match=r"a\.parquet cannot be read as parquet"):
            read([piece])


def test_the_time_is_that_of_this_machine_or_of_hadoop(tmp_path: Path) -> None:
    """Hadoop counts milliseconds."""
    file = written(tmp_path / "a.parquet", 0, 10)
    os.utime(tmp_path / "a.parquet", ns=(1, 1_700_000_000_123_456_789))
    facts = (tmp_path / "a.parquet").stat()
    assert not file.is_as_listed(facts)
    assert replace(file, changed=facts.st_mtime).is_as_listed(facts)
    assert replace(file, changed=1_700_000_000_123.0).is_as_listed(facts)
    assert not replace(file, changed=1_700_000_000_124.0).is_as_listed(facts)


def test_a_batch_is_read_by_one_way() -> None:
    files = [
        IngestFile(place, place.rpartition(".")[2], ",", 1, 0.0)
        for place in ("file:/a.parquet", "file:/_b.parquet", "s3a://b/c.parquet", "file:/d.csv", "file:/e.orc")
    ]
    assert [[file.is_read_by_tasks for file in batch] for batch in batches_of(files, 100)] == [
        [True, True],
        [False],
        [False],
        [True],
    ]
