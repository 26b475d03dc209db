"""`clickhouse convert` before ClickHouse comes into it: what is taken, what becomes of types, and what is refused by
name. The rows themselves: tests/compat/test_engine_convert.py. Guards I1, I15."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from disks.stores.schemes import _memory
from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.columns import parse as parse_columns
from oplog.errors import Damaged, NotFound, Refused, UsageError
from restore.clickhouse.convert import process
from restore.clickhouse.convert.columns import mapping_of, text_condition
from restore.clickhouse.convert.convert import plan_columns
from restore.clickhouse.convert.source import SourceTable, read_source_table
from tests.compat.buckets import TABLE, ClickHouse, checksums_txt
from tiering.cli import main as cli

OTHER = TABLE.replace("abc", "bcd")
UUID = TABLE.rpartition("/")[2]


def columns_txt(columns: dict[str, str]) -> bytes:
    lines = [f"`{name}` {kind}\n" for name, kind in columns.items()]
    return f"columns format version: 1\n{len(lines)} columns:\n{''.join(lines)}".encode()


def part(
    server: ClickHouse, name: str, columns: dict[str, str] | None = None, *, rows: int = 3, table: str = TABLE
) -> None:
    files = {
        "count.txt": str(rows).encode(),
        "columns.txt": columns_txt(columns or {"k": "UInt64"}),
        "data.bin": b"1234",
    }
    for file, data in files.items():
        server.file(f"{table}/{name}/{file}", data)
    listed = {file: len(data) for file, data in files.items() if file != "columns.txt"}
    server.file(f"{table}/{name}/checksums.txt", checksums_txt(listed))


def source(server: ClickHouse, uuid: str | None = None) -> SourceTable:
    return read_source_table(server.store(), uuid)


class TestTypes:
    @pytest.mark.parametrize(
        ("kind", "arrow", "nullable"),
        [
            ("UInt64", pa.uint64(), False),
            ("Bool", pa.bool_(), False),
            ("LowCardinality(Nullable(String))", pa.string(), True),
            ("Enum8('a, b' = 1, 'it\\'s' = -2)", pa.string(), False),
            ("UUID", pa.string(), False),
            ("Date", pa.date32(), False),
            ("DateTime('Europe/Berlin')", pa.timestamp("ms", tz="UTC"), False),
            ("DateTime64(6, 'UTC')", pa.timestamp("us", tz="UTC"), False),
            ("DateTime64(9)", pa.timestamp("ns", tz="UTC"), False),
            ("Decimal(18, 4)", pa.decimal128(18, 4), False),
            ("Decimal64(4)", pa.decimal128(18, 4), False),
            ("FixedString(16)", pa.binary(), False),
            ("Array(Array(Nullable(Int32)))", pa.list_(pa.list_(pa.int32())), False),
            ("SimpleAggregateFunction(sum, UInt64)", pa.uint64(), False),
        ],
    )
    def test_what_becomes_of_it(self, kind: str, arrow: pa.DataType, nullable: bool) -> None:
        mapping = mapping_of(SourceColumn("c", kind))
        assert (mapping.arrow, mapping.nullable) == (arrow, nullable)

    @pytest.mark.parametrize(
        "kind",
        [
            "Int128",
            "UInt256",
            "Decimal(40, 2)",
            "Map(String, UInt8)",
            "Tuple(a UInt8, b String)",
            "AggregateFunction(sum, UInt64)",
            "JSON",
            "Variant(String, UInt8)",
            "Array(Tuple(UInt8))",
            "DateTime64(12)",
            "Nothing",
            "",
        ],
    )
    def test_others_are_refused_by_name(self, kind: str) -> None:
        with pytest.raises(UsageError, match="column price has the type"):
            mapping_of(SourceColumn("price", kind))

    @pytest.mark.parametrize(
        "kind",
        [
            "UInt8 DEFAULT (SELECT 1)",
            "Enum8('a' = 1), y String DEFAULT file('/etc/passwd')",
            "Enum8('a' = (SELECT 1))",
            "DateTime('UTC'), y UInt8 DEFAULT (1)",
            "Nullable(UInt8), y UInt8 DEFAULT (1)",
            "FixedString(1), y FixedString(1)",
            "Decimal(1, 1), y Decimal(1, 1)",
            "SimpleAggregateFunction(sum, UInt8), y Nullable(UInt8)",
            "SimpleAggregateFunction(sum) ENGINE, UInt8)",
            "Array(UInt8) MATERIALIZED arrayMap(x)",
        ],
    )
    def test_no_part_puts_words_into_a_query(self, kind: str) -> None:
        """P61: `columns.txt` comes from a bucket, and its types stand in a CREATE TABLE."""
        with pytest.raises(UsageError):
            mapping_of(SourceColumn("c", kind))

    def test_texts_are_looked_at_wherever_they_are(self) -> None:
        assert text_condition("c", "UInt64") is None
        assert text_condition("c", "Array(Date32)") is None
        assert text_condition("c", "Nullable(String)") == "ifNull(isValidUTF8(c), 1)"
        assert text_condition("c", "Array(String)") == "arrayAll(x -> ifNull(isValidUTF8(x), 1), c)"

    def test_a_list_of_columns(self) -> None:
        data = columns_txt({"k": "UInt64", "a\\`b": "String", "_row_exists": "UInt8"})
        assert [column.name for column in parse_columns(data, name="x")] == ["k", "a`b"]

    @pytest.mark.parametrize("data", [b"", b"\xff", b"columns format version: 2\n0 columns:\n", b"a\nb\n"])
    def test_one_that_is_none_is_damage(self, data: bytes) -> None:
        with pytest.raises(Damaged, match=r"t/columns\.txt"):
            parse_columns(data, name="t/columns.txt")

    def test_fewer_lines_than_it_says(self) -> None:
        with pytest.raises(Damaged):
            parse_columns(b"columns format version: 1\n2 columns:\n`k` UInt8\n", name="x")


class TestSource:
    def test_active_parts_with_their_counts(self) -> None:
        server = ClickHouse()
        for name, rows in (("all_1_1_0", 3), ("all_2_2_0", 4), ("all_1_2_1", 7), ("detached/all_9_9_0", 5)):
            part(server, name, rows=rows)
        found = source(server)
        assert ([one.part.name for one in found.parts], found.rows) == (["all_1_2_1"], 7)

    def test_which_table_must_be_clear(self) -> None:
        server = ClickHouse()
        part(server, "all_1_1_0")
        part(server, "all_1_1_0", table=OTHER, rows=9)
        with pytest.raises(UsageError, match="2 tables"):
            source(server)
        assert source(server, UUID).rows == 3
        with pytest.raises(NotFound):
            source(server, "no-such-uuid")

    def test_a_part_that_is_not_whole_is_refused(self) -> None:
        """I1: its rows would be missing without a word."""
        server = ClickHouse()
        part(server, "all_1_1_0")
        lost = server.file(f"{TABLE}/all_2_2_0/v.bin")
        server.file(f"{TABLE}/all_2_2_0/columns.txt", columns_txt({"k": "UInt64"}))
        server.file(f"{TABLE}/all_2_2_0/count.txt", b"3")
        server.file(f"{TABLE}/all_2_2_0/checksums.txt", checksums_txt({"v.bin": 4, "count.txt": 1}))
        assert source(server).rows == 6
        server.delete(lost)
        with pytest.raises(Refused, match=r"lacks v\.bin"):
            source(server)

    def test_another_table_s_losses_are_none_of_it(self) -> None:
        server = ClickHouse()
        part(server, "all_1_1_0")
        server.part(f"{OTHER}/all_1_1_0", "k.bin", checksums={"k.bin": 10, "v.bin": 5})
        assert source(server, UUID).rows == 3

    def test_updates_that_lie_beside_the_parts_are_refused(self) -> None:
        server = ClickHouse()
        part(server, "all_1_1_0")
        part(server, "patch-0123-all_1_1_1")
        with pytest.raises(Refused, match="patch-0123"):
            source(server)

    def test_a_part_without_its_name_is_told_of(self) -> None:
        server = ClickHouse()
        part(server, "all_1_1_0")
        part(server, "tmp_insert_all_2_2_0")
        found = source(server)
        assert (found.rows, [problem.kind for problem in found.problems]) == (3, ["lost_rename"])

    def test_a_count_that_is_none_is_damage(self) -> None:
        server = ClickHouse()
        part(server, "all_1_1_0")
        (key,) = [key for key, item in server.objects.items() if item.data == b"3"]
        server.delete(key)
        server.file(f"{TABLE}/all_1_1_0/count.txt", b"x")
        with pytest.raises(Damaged, match=r"count\.txt"):
            source(server)


class TestColumns:
    def server(self, one: dict[str, str], other: dict[str, str]) -> SourceTable:
        server = ClickHouse()
        part(server, "all_1_1_0", one)
        part(server, "all_2_2_0", other)
        return source(server)

    def test_a_column_that_parts_lack_needs_a_word(self) -> None:
        """What they say stands in the table's definition, which no bucket holds: a guess would be a wrong answer."""
        found = self.server({"k": "UInt64"}, {"k": "UInt64", "c": "UInt64"})
        with pytest.raises(UsageError, match="came before column c") as caught:
            plan_columns(found, {})
        assert caught.value.hint == "set it: --default c=VALUE"
        assert [column.name for column in plan_columns(found, {"c": "7"}).columns] == ["k", "c"]
        with pytest.raises(UsageError, match="no part has a column d"):
            plan_columns(found, {"c": "7", "d": "1"})

    def test_one_column_of_two_types_is_refused(self) -> None:
        with pytest.raises(UsageError, match="is UInt64 in some parts and Int64 in all_2_2_0"):
            plan_columns(self.server({"k": "UInt64"}, {"k": "Int64"}), {})


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
        server = ClickHouse()
        part(server, "all_1_1_0")
        _memory["convert"] = server.store()
        return "memory://convert"

    def test_without_chdb_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("FROSTLINE_CHDB", raising=False)
        monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
        assert cli.run(["clickhouse", "convert", "memory://convert", "db.t", "--order-by", "k"]) == 2
        assert "pip install 'frostline[clickhouse]'" in capsys.readouterr().err

    def test_a_python_without_chdb_and_one_that_is_none(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare = tmp_path / "python"
        bare.write_text("#!/bin/sh\necho '{\"error\": \"ModuleNotFoundError: No module named '\"'chdb'\"'\"}'\n")
        bare.chmod(0o755)
        for python, said in ((bare, "has no chdb"), (tmp_path / "none", "cannot run")):
            monkeypatch.setenv("FROSTLINE_CHDB", str(python))
            table = f"db.{python.name}"
            assert cli.run(["clickhouse", "convert", "memory://convert", table, "--order-by", "k"]) == 2
            assert said in capsys.readouterr().err

    def test_an_engine_that_dies_is_an_error_in_its_words(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        dying = tmp_path / "python"
        dying.write_text("#!/bin/sh\necho Segmentation >&2\nexit 139\n")
        dying.chmod(0o755)
        monkeypatch.setenv("FROSTLINE_CHDB", str(dying))
        assert cli.run(["clickhouse", "convert", "memory://convert", "db.t", "--order-by", "k"]) == 1
        assert "ended with 139: Segmentation" in capsys.readouterr().err
        assert cli.run(["table", "show", "db.t"]) == 10, "the table was made for these rows alone"

    def test_a_dry_run_changes_nothing_and_new_tables_need_an_order(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("FROSTLINE_CHDB", "/bin/false")
        assert cli.run(["clickhouse", "convert", "memory://convert", "db.t"]) == 2
        assert "--order-by with some of: k" in capsys.readouterr().err
        assert cli.run(["-n", "clickhouse", "convert", "memory://convert", "db.t", "--order-by", "k"]) == 0
        assert "1 part, 3 rows" in capsys.readouterr().out
        assert cli.run(["table", "show", "db.t"]) == 10
