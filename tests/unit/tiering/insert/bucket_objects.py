"""CSV files in a bucket, and the table that they are inserted into."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.command_line import Frostline

ROWS = pa.table({"k": list(range(1000)), "text": [f"é{number}" for number in range(1000)]})


def csv_text() -> bytes:
    return ("k,text\n" + "".join(f"{row['k']},{row['text']}\n" for row in ROWS.to_pylist())).encode()


def written(write: Callable[[pa.BufferOutputStream], object]) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return sink.getvalue().to_pybytes()


def arrow_file(sink: pa.BufferOutputStream) -> None:
    with pa.ipc.new_file(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rows.csv", csv_text())
    return file.getvalue()


OBJECTS: dict[str, Callable[[], bytes]] = {
    "a.parquet": lambda: written(lambda sink: pq.write_table(ROWS, sink, row_group_size=100)),
    "a.orc": lambda: written(lambda sink: orc.write_table(ROWS, sink)),
    "a.arrow": lambda: written(arrow_file),
    "a.csv": csv_text,
    "a.jsonl": lambda: b"".join(json.dumps(row).encode() + b"\n" for row in ROWS.to_pylist()),
    "a.csv.gz": lambda: gzip.compress(csv_text()),
    "a.csv.zst": lambda: pa.compress(csv_text(), "zstd", asbytes=True),
    "a.csv.zip": zipped,
    "a.parquet.gz": lambda: gzip.compress(OBJECTS["a.parquet"]()),
}


@pytest.fixture
def frostline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bucket: str
) -> Frostline:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    frostline = Frostline(capsys)
    frostline("table", "create", "db.t", "--column", "k:int64", "--column", "text:string", "--order-by", "k")
    return frostline


def everything(frostline: Frostline) -> tuple[int, int, str]:
    sql = "SELECT count(*), sum(k), max(text) FROM db.t"
    ((count, total, text),) = frostline.json("query", sql)["rows"]
    return count, total, text
