"""What a query prints of numbers and nested values, in every format; and that Ctrl-C ends it."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.homes import Home
from tiering.cli.frame.interruptible import interruptible
from tiering.query.plain_values import plain_rows

REPOSITORY = Path(__file__).parents[4]
NESTED = (
    "SELECT [1, NULL, 2] AS list, {'a': 1, 'b': 'x\"y, z'} AS struct, "
    "map(['k', 'l'], [1, 2]) AS map, map([1], ['one']) AS numbered, "
    "[{'at': DATE '2026-01-01'}] AS deep, 7 AS plain"
)
EXPECTED = {
    "list": [1, None, 2],
    "struct": {"a": 1, "b": 'x"y, z'},
    "map": {"k": 1, "l": 2},
    "numbered": [[1, "one"]],
    "deep": [{"at": "2026-01-01"}],
    "plain": 7,
}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(*range(1000))
    return home


def test_nested_values_are_json_in_every_format(home: Home, tmp_path: Path) -> None:
    document = home.json("query", NESTED)
    assert dict(zip([column["name"] for column in document["columns"]], document["rows"][0], strict=True)) == EXPECTED
    (row,) = csv.DictReader(io.StringIO(home("query", NESTED, "--output-format", "csv")))
    assert {name: json.loads(text) for name, text in row.items()} == EXPECTED
    home("query", NESTED, "-o", str(tmp_path / "out.csv"))
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert {name: json.loads(text) for name, text in row.items()} == EXPECTED
    assert '{"a":1,"b":"x\\"y, z"}' in home("query", NESTED)


def test_a_nested_value_that_is_null_is_an_empty_field(home: Home) -> None:
    sql = "SELECT k, CASE WHEN k > 0 THEN [k] END AS list FROM d.t WHERE k < 2 ORDER BY k"
    assert home("query", sql, "--output-format", "csv").splitlines() == ['"k","list"', "0,", '1,"[1]"']


def test_bytes_are_hexadecimal_in_every_format(home: Home) -> None:
    """Whatever they hold: no file of texts can have 0xff in it."""
    sql = "SELECT k, CASE WHEN k > 0 THEN '\\xFF\\x00a'::BLOB END AS raw FROM d.t WHERE k < 2 ORDER BY k"
    assert home("query", sql, "--output-format", "csv").splitlines() == ['"k","raw"', "0,", '1,"ff0061"']
    assert home.json("query", sql)["rows"] == [[0, None], [1, "ff0061"]]


def test_floats_are_printed_in_full(home: Home) -> None:
    numbers = [
        "0.1::double + 0.2::double",
        "1.0::double / 3",
        "123456789.123456789::double",
        "1e300::double",
        "3.0::double",
    ]
    said = home("query", f"SELECT {', '.join(f'{number} AS c{index}' for index, number in enumerate(numbers))}")
    assert said.splitlines()[1].split() == [
        "0.30000000000000004",
        "0.3333333333333333",
        "123456789.12345679",
        "1e+300",
        "3",
    ]
    assert [float(text) for text in said.splitlines()[1].split()][:2] == [0.1 + 0.2, 1 / 3]


def test_short_floats_are_the_shortest_number_that_is_the_same() -> None:
    values = [0.1, 16777216.0, None, float("inf"), 3.4028235e38]
    rows = plain_rows(pa.record_batch({"x": pa.array(values, pa.float32())}))
    assert [row[0] for row in rows] == values
    (nan,) = plain_rows(pa.record_batch({"x": pa.array([float("nan")], pa.float32())}))
    assert nan[0] != nan[0]


def test_moments_have_their_nanoseconds_also_within_other_values() -> None:
    kind = pa.timestamp("ns", "UTC")
    moments = [1_704_067_200_123_456_789, 1_704_067_200_000_000_001, 1_704_067_200_500_000_000, -1, None]
    texts = [
        "2024-01-01T00:00:00.123456789Z",
        "2024-01-01T00:00:00.000000001Z",
        "2024-01-01T00:00:00.500000Z",
        "1969-12-31T23:59:59.999999999Z",
        None,
    ]
    flat = pa.array(moments, pa.int64()).cast(kind)
    wall = flat.cast(pa.timestamp("ns"))
    offsets = pa.array(range(len(moments) + 1), pa.int32())
    columns = {
        "flat": flat,
        "wall": wall,
        "list": pa.ListArray.from_arrays(offsets, flat),
        "struct": pa.StructArray.from_arrays([flat], ["at"]),
        "map": pa.MapArray.from_arrays(offsets, pa.array(range(len(moments))).cast(pa.string()), flat),
    }
    for number, (row, text) in enumerate(zip(plain_rows(pa.record_batch(columns)), texts, strict=True)):
        assert row == [text, text and text[:-1], [text], {"at": text}, {str(number): text}]


@pytest.mark.in_turn
@pytest.mark.parametrize("output_format", ["json", "csv", "table"])
@pytest.mark.parametrize("beside", ["1", "[1]"])  # without Arrow, and with it
def test_moments_python_lacks_are_written_as_the_engine_does(home: Home, output_format: str, beside: str) -> None:
    texts = {
        "'infinity'::TIMESTAMPTZ": "infinity",
        "'-infinity'::TIMESTAMP": "-infinity",
        "'infinity'::DATE": "infinity",
        "'-infinity'::DATE": "-infinity",
        "'20000-01-01'::DATE": "20000-01-01",
        "'0044-03-15 (BC)'::DATE": "0044-03-15 (BC)",
        "'0001-01-01 (BC) 10:00:01'::TIMESTAMPTZ": "0001-01-01 (BC) 10:00:01",
        "'12400-02-29 23:59:59.5'::TIMESTAMPTZ": "12400-02-29T23:59:59.500000Z",
        "'9999-12-31 23:59:59'::TIMESTAMP": "9999-12-31T23:59:59",
    }
    said = home("query", f"SELECT {', '.join(texts)}, {beside} AS y", "--output-format", output_format)
    for text in texts.values():
        assert (text.replace("T", " ") if output_format == "csv" else text) in said
    within = home("query", "SELECT {'x': ['infinity'::TIMESTAMP], 'y': map{'20000-01-01'::DATE: 1}}", "--json")
    assert json.loads(within)["rows"] == [[{"x": ["infinity"], "y": {"20000-01-01": 1}}]]


@pytest.mark.in_turn
def test_a_csv_has_far_moments_beside_near_ones(home: Home) -> None:
    """Of many rows only some batches have any."""
    far = "CASE WHEN i = 150000 THEN '-infinity'::DATE ELSE '2024-02-03'::DATE END"
    said = home("query", f"SELECT [i] AS i, {far} AS d FROM range(200000) t(i)", "--output-format", "csv")
    lines = said.splitlines()
    assert len(lines) == 200_001
    assert {line.rpartition(",")[2].strip('"') for line in lines[1:]} == {"2024-02-03", "-infinity"}
    assert lines[150_001] == '"[150000]","-infinity"'


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("sql", "row"),
    [
        ("SELECT [1]", '"[1]"'),
        ("SELECT [1], TIMESTAMP_NS '2024-01-01 00:00:00.000000001'", '"[1]",2024-01-01 00:00:00.000000001'),
    ],
)
def test_pandas_is_not_imported_for_an_answer(tmp_path: Path, sql: str, row: str) -> None:
    """pyarrow imports it for its first array where it is installed, as it is here."""
    assert importlib.util.find_spec("pandas")
    command = [sys.executable, "-X", "importtime", "-m", "tiering.cli.entry", "query", sql, "-o", "a.csv"]
    environment = os.environ | {"FROSTLINE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == row
    assert "pyarrow.lib" in modules
    assert not {module for module in modules if module.startswith("pandas.")}


def test_a_wait_without_end_is_interrupted() -> None:
    """SIGINT comes while an item is made that is never done."""
    never = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
        never.wait()

    seen = interruptible(items())
    try:
        with pytest.raises(KeyboardInterrupt):
            list(seen)
    finally:
        never.set()


def test_what_making_an_item_raises_is_raised_at_its_wait() -> None:
    """Where the item is waited for."""

    def items() -> Iterator[int]:
        yield 1
        raise LookupError("gone")

    seen = interruptible(items())
    assert next(seen) == 1
    with pytest.raises(LookupError, match="gone"):
        next(seen)
    assert list(interruptible(range(100))) == list(range(100))


@pytest.mark.in_turn
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_query_without_end_is_ended(number: signal.Signals, code: int, home: Home) -> None:
    """The engine has begun a product of 10^12 rows when the signal comes: the process ends all the same."""
    sql = "SELECT sum(a.k * b.k + c.k * d.k) FROM d.t a, d.t b, d.t c, d.t d"
    program = (
        "import os, sys, threading, time\n"
        "from tiering.cli import main\n"
        "from tiering.cli.frame.interruptible import has_begun\n"
        "def watch():\n"
        "    while not has_begun(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), int(sys.argv[1]))\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "main.main(sys.argv[2:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(int(number)), "-c", str(home.configuration), "query", sql],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "the next command continues the work" in done.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize("sql", ["SELECT nothing", "SELECT * FROM no.such", "SELECT error('x')"])
def test_a_mistake_is_reported_without_the_engine_s_own_words(home: Home, sql: str) -> None:
    """Those about itself."""
    command = [sys.executable, "-m", "tiering.cli.main", "-c", str(home.configuration), "query", sql]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("frostline: ")
    assert "leaked" not in done.stderr


@pytest.mark.in_turn
def test_a_reader_that_goes_away_is_no_failure(home: Home) -> None:
    """`frostline query … | head -1` while the engine has more rows than a pipe takes."""
    sql = "SELECT a.k, b.k FROM d.t a, d.t b, d.t c"
    command = [sys.executable, "-m", "tiering.cli.main", "-c", str(home.configuration), "query", sql]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--output-format", "csv"], env=environment, **streams) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b'"k","k"\n'
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_plan_tells_by_its_exit_code_whether_something_is_due(home: Home) -> None:
    assert "nothing" in (home("plan", "--detailed-exitcode") + home.error).lower()
    home("table", "create", "d.old", "--column", "at:date", "--order-by", "at")
    (home.path / "old.csv").write_text("at\n2020-01-01\n")
    home("insert", "d.old", str(home.path / "old.csv"))
    home("table", "alter", "d.old", "--ttl", "1d on at to volume cold_s3")
    assert len(home.json("plan", "d.old", "--detailed-exitcode", code=4)["moves"]) == 1
    home("plan", "d.old")
    home("tick")
    home("plan", "d.old", "--detailed-exitcode")
