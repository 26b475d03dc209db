"""I15: no read answers with a flipped bit, on whatever disk a part lies: an error naming the file, or the right rows.

Each kind of place is tried: pages, their headers, dictionaries, page index and footer. The same questions with the
comparison switched off are answered wrongly, so the tests would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from oplog.errors import Damaged
from tests.command_line import Frostline
from tests.flips import StoredFile, never_another_answer, without_sums
from tests.servers import Server
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.parquet import checked_file, checked_local
from tiering.parquet.sections import stated_sections
from tiering.query import dataset
from tiering.query.dataset import table_dataset
from tiering.query.filesystem import FrostlineFileSystem
from tiering.query.query import run_sql
from tiering.query.scan import scan
from tiering.table.schema import TableSettings

PLACES = ["ssd", "directory", "s3"]


@pytest.fixture(scope="module")
def context(ministack: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    home = tmp_path_factory.mktemp("flips")
    disks = {
        "ssd": LocalDiskConfig(path=str(home / "ssd")),
        "directory": ObjectDiskConfig(url=(home / "bucket").as_uri() + "/store/"),
        "s3": ministack.disk(f"s3://{ministack.new_bucket()}/store/"),
    }
    opened = make_context(home, disks)
    yield opened
    for disk in opened.disks.values():
        disk.close()


@pytest.fixture(scope="module")
def parts(context: Context) -> dict[str, StoredPart]:
    """The same rows in a table of its own on each disk."""
    columns = {"k": "int64", "level": "string", "id": "string", "x": "float64", "tags": "list<string>"}
    found = {}
    for place in PLACES:
        definition = define(f"flip.{place}", columns, ["k"], settings=TableSettings(row_group_rows=1000))
        put_table(context, definition)
        (found[place],) = put_part(context, definition, place, ROWS, 1)
    return found


ROWS = pa.table(
    {
        "k": pa.array(range(3000), pa.int64()),
        "level": [("INFO", "WARN", None)[number % 3] for number in range(3000)],
        "id": [f"{number * 7919 % 10**9:09d}" for number in range(3000)],
        "x": [number / 7 for number in range(3000)],
        "tags": [["a", "b"][: number % 3] for number in range(3000)],
    }
)
QUESTIONS = (
    "SELECT * FROM {0} ORDER BY k",
    "SELECT count(*), sum(k), max(id), sum(x), count(level) FROM {0} WHERE k >= 900 AND k < 1500",
    "SELECT level, count(*), min(x) FROM {0} WHERE level = 'WARN' OR x > 300 GROUP BY level ORDER BY level",
    "SELECT min(k), max(k), count(*) FROM {0}",
    "SELECT count(*), (SELECT max(x) FROM {0} WHERE level = 'INFO') FROM {0} WHERE k < (SELECT avg(x) FROM {0})",
    "SELECT a.k, b.id FROM {0} AS a JOIN {0} AS b ON a.k = b.k + 1 WHERE b.level IS NULL ORDER BY a.k DESC LIMIT 5",
)


@pytest.fixture(params=PLACES)
def stored(request: pytest.FixtureRequest, parts: dict[str, StoredPart]) -> StoredPart:
    return parts[request.param]


def by_sql(context: Context, stored: StoredPart) -> object:
    name = stored.definition.full_name
    return [run_sql(context, text.format(name), resolver(context)).read_all().to_pylist() for text in QUESTIONS]


def by_scan(context: Context, stored: StoredPart) -> object:
    definition, middle = stored.definition, [("k", ">=", 900), ("k", "<", 1500)]
    whole = scan(context, definition, [stored]).read_all().sort_by("k")
    some = scan(context, definition, [stored], columns=["k", "tags"], filter=middle).read_all().sort_by("k")
    return whole.to_pylist(), some.to_pylist()


def by_expression(context: Context, stored: StoredPart) -> object:
    found = scan(context, stored.definition, [stored], filter=(pc.field("k") >= 900) & (pc.field("id") > "000"))
    return found.read_all().sort_by("k").to_pylist()


def by_filesystem(context: Context, stored: StoredPart) -> object:
    files = FrostlineFileSystem(context, lambda: {"t": [stored]})
    path = f"t/{stored.part.name}/{stored.part.files[0].name}"
    whole = pq.read_table(path, filesystem=files)
    return whole.to_pylist(), polars.scan_parquet(files.open(path)).select("level", "x").collect().to_dicts()


@pytest.mark.in_turn
@pytest.mark.parametrize("ask", [by_sql, by_scan, by_expression, by_filesystem])
def test_no_read_answers_with_a_flipped_bit(
    ask: Callable[[Context, StoredPart], object], context: Context, stored: StoredPart, ministack: Server
) -> None:
    """I15."""
    file = StoredFile(context, stored, ministack)
    count = 75 if stored.disk == "s3" else 150
    assert never_another_answer(file, lambda: ask(context, stored), count=count) > count * 2 / 3


def by_dataset(context: Context, stored: StoredPart) -> object:
    return table_dataset(context, stored.definition, [stored]).to_table().sort_by("k").to_pylist()


@pytest.mark.in_turn
@pytest.mark.parametrize("place", ["ssd", "directory"])
def test_a_dataset_of_local_files_shows_no_flipped_bit(
    place: str, context: Context, parts: dict[str, StoredPart]
) -> None:
    """I15: pages by Arrow, which names no file; footers when it is made. (Of objects in S3 the pages alone.)"""
    file = StoredFile(context, parts[place])
    errors = (Damaged, OSError, pa.ArrowException)
    assert never_another_answer(file, lambda: by_dataset(context, parts[place]), errors=errors) > 100


@pytest.mark.in_turn
def test_a_part_of_before_is_compared_as_a_whole(context: Context, stored: StoredPart, ministack: Server) -> None:
    """I15: its `part.json` has no sums, so its SHA-256 tells."""
    (file,) = stored.part.files
    old = msgspec.structs.replace(stored, described=msgspec.structs.replace(stored.part, files=(without_sums(file),)))
    whole = StoredFile(context, stored, ministack)

    def ask() -> object:
        checked_file._learned.forget()
        found = scan(context, old.definition, [old]).read_all().sort_by("k").to_pylist()
        return found, by_filesystem(context, old)

    assert never_another_answer(whole, ask, count=60) == 60


@pytest.mark.in_turn
@pytest.mark.parametrize("ask", [by_sql, by_scan, by_expression, by_filesystem])
def test_without_the_comparison_flipped_bits_are_answered(
    ask: Callable[[Context, StoredPart], object],
    context: Context,
    stored: StoredPart,
    ministack: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seeded fault: what the tests above would see."""
    monkeypatch.setattr(checked_local, "_compare", lambda *args: set())
    monkeypatch.setattr(checked_file, "_is", lambda *arguments: True)
    monkeypatch.setattr(dataset, "_FORMAT", pads.ParquetFileFormat(pre_buffer=True))
    file = StoredFile(context, stored, ministack)
    with pytest.raises(AssertionError, match="is answered as data"):
        never_another_answer(file, lambda: ask(context, stored), errors=(Exception,))


@pytest.mark.in_turn
def test_the_command_line_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I15: hot and cold, now and as of a revision: exit 1, and no row is printed."""
    frostline = Frostline(capsys)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    source = tmp_path / "rows.parquet"
    pq.write_table(ROWS.drop_columns("tags"), source)
    frostline("table", "create", "db.t", "--like", str(source), "--order-by", "k")
    frostline("insert", "db.t", str(source))
    _no_flipped_bit_is_printed(frostline)
    frostline("move", "db.t", "--partition", "all", "--to-volume", "cold")
    _no_flipped_bit_is_printed(frostline)
    with Store.open(load()) as store:
        (stored,) = store.parts()
    frostline("table", "drop", "db.t", "--yes")
    _no_flipped_bit_is_printed(frostline, stored)


def _no_flipped_bit_is_printed(frostline: Frostline, dropped: StoredPart | None = None) -> None:
    sql, csv = "SELECT id FROM db.t WHERE k = 1234", ("--output-format", "csv")
    with Store.open(load()) as store:
        stored = dropped or store.parts()[0]
        with nullcontext(store.context) if dropped is None else store.past(stored.revision or 0) as past:
            file = StoredFile(past, stored)
    revision = ("--revision", str(stored.revision)) if dropped else ()
    right = frostline("query", sql, *csv, *revision)
    assert "009772046" in right
    chunk = next(one for one in stated_sections(file.file) if one.column == 2)
    altered = bytearray(file.written)
    altered[chunk.stop - 9] ^= 4
    file.put(bytes(altered))
    assert frostline("query", sql, *csv, *revision, code=1) == ""
    assert file.label in frostline.error
    file.put(file.written)
    assert frostline("query", sql, *csv, *revision) == right
