"""Types and names of a bucket in statements of ClickHouse: written from what was parsed. Guards I22, P62.

`STATEMENT` knows nothing of the grammar: it takes quoted names and texts out, and looks at what is left.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.columns import parse as parse_columns
from oplog.clickhouse.quoting import quoted_name, quoted_text, unescaped
from oplog.clickhouse.types import Argument, ColumnType, NotAType, parse, written
from oplog.errors import Damaged, UsageError
from restore.clickhouse.convert import columns as convert_columns
from restore.clickhouse.convert.convert import ConversionPlan
from restore.clickhouse.convert.source import SourcePart
from restore.clickhouse.table_facts import TableFacts, draft_of

QUOTED = re.compile(r"`(?:[^`\\]|\\.)*`|'(?:[^'\\]|\\.)*'", re.DOTALL)
WORDS = {
    *convert_columns._SIMPLE,
    *convert_columns._AS_TEXT,
    *convert_columns._DIGITS,
    *("Date", "Date32", "DateTime", "DateTime64", "Decimal", "Enum8", "Enum16", "FixedString"),
    *("LowCardinality", "Nullable", "Array", "SimpleAggregateFunction"),
}
HOSTILE = [
    "Decimal DEFAULT file('/etc/passwd')",
    "Decimal) ENGINE = File(CSV, '/tmp/x') AS SELECT 1 --",
    "Decimal128, y String MATERIALIZED (SELECT 1)",
    "Decimal INTO OUTFILE '/tmp/x'",
    "Decimal, x UInt8 DEFAULT file(9, 2)",
    "DecimalX(9, 2)",
    "Decimal(9, 2, 1)",
    "Decimal(\u0663, 1)",
    "Decimal\n(9, 2)",
    "Enum8('a' = 1); DROP TABLE t --",
    "Enum8('a' = 1) CODEC(NONE)",
    "Array(String) ALIAS 1",
    "Nullable(UInt8",
    "UInt8)",
    "FixedString(99999999999999999999)",
]
names = st.text(max_size=12) | st.sampled_from(["`", "\\", "\\`", "a` String, `b", "'", "\x00", "\n", "\u2028", "\x85"])
sentences = st.text(string.ascii_letters + "()',=` \\-0123456789;\n\u0663", max_size=40) | st.sampled_from(HOSTILE)
numbers = st.integers(-(10**6), 10**6).map(str)
texts = st.text(max_size=8)
words = st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,8}", re.ASCII), fullmatch=True)
types = st.recursive(
    words.map(ColumnType),
    lambda inner: st.builds(
        ColumnType,
        words,
        st.lists(
            st.builds(Argument, number=numbers)
            | st.builds(Argument, text=texts)
            | st.builds(Argument, text=texts, number=numbers)
            | st.builds(Argument, type=inner)
            | st.builds(Argument, type=inner, name=names),
            max_size=3,
        ).map(tuple),
    ),
    max_leaves=6,
)


def bare(statement: str) -> str:
    """What of a statement is in no quotes."""
    return QUOTED.sub("", statement)


@given(types)
def test_a_type_is_read_as_it_was_written(value: ColumnType) -> None:
    text = written(value)
    assert parse(text) == value
    assert written(parse(text)) == text


@given(texts | names)
def test_quotes_end_where_the_text_does(value: str) -> None:
    for quoted in (quoted_name(value), quoted_text(value)):
        assert QUOTED.fullmatch(quoted)
        assert unescaped(quoted[1:-1]) == value
        assert not {"\n", "\x00"}.intersection(quoted)


@given(st.lists(st.tuples(names, sentences | types.map(written)), min_size=1, max_size=3))
@example([("c", HOSTILE[0])])
def test_no_text_of_a_part_is_a_statement(listed: list[tuple[str, str]]) -> None:
    columns = tuple({name: SourceColumn(name, kind) for name, kind in listed}.values())
    part = SourcePart(part=None, columns=columns, rows=1)  # type: ignore[arg-type]
    try:
        request = ConversionPlan(columns, {}).request(Path("/p"), [(part, Path("/p/1"), Path("/p/1.parquet"))])
    except UsageError:
        return
    left = bare(request["columns"])
    assert re.fullmatch(r"[A-Za-z0-9(), =-]*", left), left
    assert set(re.findall(r"[A-Za-z]\w*", left)) <= WORDS | {"sum", *re.findall(r"\((\w+), ", left)}
    assert left.count(", ") >= len(columns) - 1
    assert re.fullmatch(r"[CAST(), ]*", bare(request["select"]).replace(" AS ", " ")), request["select"]
    for _, literal in request["parts"]:
        assert QUOTED.fullmatch(literal)


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_only_begins_as_a_type_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="column price has the type"):
        convert_columns.declared_type(SourceColumn("price", kind))


@given(st.tuples(names, sentences))
def test_a_draft_of_a_table_says_nothing_of_its_own(column: tuple[str, str]) -> None:
    table = type("Table", (), {"directory": "store/x", "uuid": "u"})
    draft = draft_of(table, TableFacts(1, 1, (SourceColumn(*column),), (column[0],)))  # type: ignore[arg-type]
    width = draft.split("(\n", 1)[1].split("\n)\n", 1)[0]
    try:
        parse(column[1])
    except NotAType:
        assert bare(width).strip() == "<a type that is not understood here>"
    assert ";" not in bare(draft)


@given(st.lists(st.tuples(names, words), max_size=3))
def test_a_list_of_columns_is_read_as_it_was_written(columns: list[tuple[str, str]]) -> None:
    lines = "".join(f"{quoted_name(name)} {kind}\n" for name, kind in columns)
    data = f"columns format version: 1\n{len(columns)} columns:\n{lines}".encode("utf-8", "surrogatepass")
    try:
        found = parse_columns(data, name="x")
    except Damaged:
        assert any(0xD800 <= ord(sign) < 0xE000 for name, _ in columns for sign in name)
        return
    assert [(column.name, column.kind) for column in found] == [one for one in columns if one[0] != "_row_exists"]
