"""Values of any form in columns of texts: what stands in the file is what the column gets."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.insert.inputs.json.source import guess_schema
from tiering.insert.inputs.json.texts import with_json_texts

TEXT = pa.string()
_texts = st.text('ab"\\{}\né', max_size=3)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, 1e300, -0.0]) | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ('{"a": 1.10}', TEXT, "1.10"),
        ('{"a":  12345678901234567890123 }', TEXT, "12345678901234567890123"),
        ('{"a": {"b": "ü", "c": [1, 2]}}', TEXT, '{"b": "ü", "c": [1, 2]}'),
        ('{"a": true}', TEXT, "true"),
        (
            '{"a": {"b": [1, "x", null]}}',
            pa.struct([("b", pa.list_(TEXT)), ("c", pa.int64())]),
            {"b": ["1", "x", None]},
        ),
        ('{"a": {"k": {}, "l": "m"}}', pa.map_(TEXT, TEXT), '{"k":"{}","l":"m"}'),
    ],
)
def test_a_text_is_what_stands_in_the_file(line: str, kind: pa.DataType, text: object) -> None:
    written = with_json_texts(line.encode(), {"a": kind})
    assert written is not None
    assert json.loads(written) == {"a": text}


@pytest.mark.parametrize(
    ("line", "types"),
    [
        ('{"a": "x", "b": null}', {"a": TEXT, "b": TEXT}),
        ('{"a": 5}', {"a": pa.int64()}),
        ('{"a": 5}', {"b": TEXT}),
        ('{"a": 5', {"a": TEXT}),
        ('["a", 5]', {"a": TEXT}),
        ("", {"a": TEXT}),
        ('{"a": [\udcff]}', {"a": TEXT}),
        ('{"a": [1]}', {"a": pa.struct([("b", TEXT)])}),
    ],
)
def test_what_is_text_already_and_what_is_no_row_stays(line: str, types: dict[str, pa.DataType]) -> None:
    assert with_json_texts(line.encode(errors="surrogateescape"), types) is None


@given(st.lists(st.dictionaries(st.sampled_from("abc"), _values), min_size=1, max_size=4))
def test_nothing_but_the_texts_changes(rows: list[dict[str, object]]) -> None:
    block = b"\n".join(json.dumps(row).encode() for row in rows)
    written = with_json_texts(block, {"a": TEXT, "b": TEXT})
    for row, line in zip(rows, (written or block).split(b"\n"), strict=True):
        found = json.loads(line)
        assert list(found) == list(row)
        for name, value in row.items():
            if name == "c" or value is None or isinstance(value, str):
                assert found[name] == value
            else:
                assert json.loads(found[name]) == value


def test_a_sample_with_values_of_several_forms() -> None:
    lines = [
        {"n/m": 5, "deep": {"x": 1}, "same": 1, "empty": {}},
        {"n/m": "5", "deep": {"x": [1]}, "same": 2},
        {"n/m": {"o": 1}, "deep": None, "same": None},
    ]
    schema = guess_schema(io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), "x")
    assert {field.name: field.type for field in schema} == {
        "n/m": TEXT,
        "deep": TEXT,
        "same": pa.int64(),
        "empty": pa.struct([]),
    }


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["2026-01-01T00:00:00Z"], pa.timestamp("us", "UTC")),
        (["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00.123Z"], pa.timestamp("us", "UTC")),
        (["2026-01-01T00:00:00.123456789+02:00"], pa.timestamp("ns", "UTC")),
        (["2026-01-01 00:00:00.5", "2026-01-01"], pa.timestamp("us")),
        (["2026-01-01 00:00:00.5", "soon"], TEXT),
        (["2026-01-01 00:00:00.5", "2026-01-01T00:00:00.5Z"], TEXT),
        (["", "2026"], TEXT),
    ],
)
def test_texts_that_are_all_times_are_times(texts: list[str | None], kind: pa.DataType) -> None:
    lines = [{"t": text, "deep": {"t": text}, "list": [{"t": text}]} for text in texts]
    schema = guess_schema(io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), "x")
    assert schema.field("t").type == kind
    assert schema.field("deep").type == pa.struct([("t", kind)])
    assert schema.field("list").type == pa.list_(pa.struct([("t", kind)]))


def test_a_sample_that_is_no_json_says_so() -> None:
    with pytest.raises(pa.ArrowInvalid, match="JSON parse error"):
        guess_schema(io.BytesIO(b'{"a": 1}\n{"a": \n'), "x")
