"""Files that the engine reads through their disks: whole answers, compared, and the reason when one fails."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from disks.stores.base import ByteRange
from oplog.errors import Transient
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.part_files import write_part_files
from tiering.query.sql.served_files import ServedFiles
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table


class Data:
    def __init__(self, directory: Path) -> None:
        definition = define_table("a.b", columns=["k:int64"], order_by="k", policy="p")
        (self.file,) = write_part_files([pa.table({"k": range(100)}, arrow_schema(definition))], definition, directory)
        self.bytes = (directory / self.file.name).read_bytes()
        self.error: Exception | None = None

    def fetch(self, wanted: ByteRange) -> bytes:
        if self.error is not None:
            raise self.error
        return self.bytes[wanted.start : wanted.stop]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


@pytest.fixture
def served() -> ServedFiles:
    return ServedFiles()


def added(served: ServedFiles, data: Data) -> str:
    return served.add(CheckedFile(data.file, data.fetch, label="it", hint=""))


def test_the_engine_reads_them(served: ServedFiles, data: Data) -> None:
    paths = [added(served, data), added(served, data)]
    served.begin([], reads_ahead=False)
    assert served.bytes_read == 0
    with duckdb.connect() as engine:
        engine.register_filesystem(served)
        assert engine.execute(f"SELECT sum(k) FROM read_parquet({paths})").fetchall() == [(9900,)]
    assert served.bytes_read > 0


def test_nothing_is_written_and_no_other_name_is_known(served: ServedFiles, data: Data) -> None:
    path = added(served, data)
    assert served.glob(path + "*") == [path + "*"]
    with pytest.raises(PermissionError):
        served.open(path, "wb")
    for other in ("part://1.parquet", "part://-1.parquet", "part://x", "part://../0.parquet"):
        with pytest.raises(FileNotFoundError):
            served.info(other)


def test_why_a_read_failed_is_kept(served: ServedFiles, data: Data) -> None:
    file = served.open(added(served, data), "rb")
    for message in ("the first", "another"):
        data.error = Transient(message)
        with pytest.raises(OSError, match="cannot be read"):
            file.read(4)
    assert str(served.failure) == "the first"
    with pytest.raises(Transient):
        served.begin([], reads_ahead=False)


def test_each_thread_of_the_engine_has_its_own_position(served: ServedFiles, data: Data) -> None:
    file = served.open(added(served, data), "rb")
    file.seek(4)
    other = threading.Thread(target=file.seek, args=(50,))
    other.start()
    other.join()
    assert bytes(file.read(10)) == data.bytes[4:14]
    file.seek(len(data.bytes) - 4)
    assert bytes(file.read(100)) == b"PAR1"
