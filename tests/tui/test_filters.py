"""What is written in the filter line, and which rows it leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pytest

from oplog.errors import UsageError
from tui.facts.filters import matcher
from tui.facts.listing import ListColumn

COLUMNS = tuple(ListColumn(key, key, 8, itemgetter(key)) for key in ("part", "disk", "age", "size", "due", "state"))
ROWS: list[dict[str, Any]] = [
    {
        "part": "old",
        "disk": "s3",
        "age": timedelta(days=40),
        "size": 2 << 20,
        "due": datetime(2030, 1, 1, tzinfo=UTC),
        "state": "active",
    },
    {"part": "new one", "disk": "s3", "age": timedelta(days=5), "size": 2 << 20, "due": None, "state": "active"},
    {"part": "here", "disk": "ssd", "age": timedelta(days=40), "size": 10, "due": None, "state": "failed"},
]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ["old", "new one", "here"]),
        ("disk:s3 age>30d", ["old"]),
        ("disk:S", ["old", "new one", "here"]),
        ("disk=s", []),
        ("disk=SSD", ["here"]),
        ("age<=5d", ["new one"]),
        ("size>1M", ["old", "new one"]),
        ("size>=10 size<11", ["here"]),
        ("-state:failed", ["old", "new one"]),
        ("-disk:s3 -age>30d", []),
        ('"new one"', ["new one"]),
        ("due<2031-01-01", ["old"]),
        ("due>2031-01-01", []),
        ("FAILED", ["here"]),
    ],
)
def test_every_term_must_hold(text: str, left: list[str]) -> None:
    wanted = matcher(text, COLUMNS)
    assert [row["part"] for row in ROWS if wanted(row)] == left


@pytest.mark.parametrize("text", ["colour:red", '"open', "age>soon", "size>much", "due>soon"])
def test_what_cannot_be_read_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        [matcher(text, COLUMNS)(row) for row in ROWS]
    assert refused.value.hint
