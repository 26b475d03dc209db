"""Options of the format of one table: it says which table it is, and Spark's catalogue makes none that would forget."""

from __future__ import annotations

import pytest

from oplog.errors import Refused, UsageError
from spark_tiering.reading import read_options


def test_a_table_s_format_names_it_and_a_read_may_say_more() -> None:
    given = read_options.options_of_format({"Filter": "k = 1"}, "db.t", "/etc/frostline.yaml")
    assert given == {"filter": "k = 1", "path": "db.t", "config": "/etc/frostline.yaml"}
    assert read_options.options_of_format({"config": "mine.yaml"}, "db.t", "other.yaml")["config"] == "mine.yaml"
    assert read_options.options_of_format({"path": "db.t"}, "", "") == {"path": "db.t"}
    with pytest.raises(UsageError, match=r"is of db.t, and not of db.other"):
        read_options.options_of_format({"path": "db.other"}, "db.t", "")


@pytest.mark.parametrize(
    ("said", "table", "forgotten"),
    [
        ({"option.filter": "k = 1", "filter": "k = 1"}, "db.t", "filter would be forgotten"),
        ({"path": "/warehouse/t"}, "db.t", "path would be forgotten"),
        ({"option.path": "db.t", "path": "db.t"}, "", "path would be forgotten"),
        ({}, "", "the table would be forgotten"),
    ],
)
def test_a_table_is_not_made_with_options_that_it_would_forget(
    said: dict[str, str], table: str, forgotten: str
) -> None:
    """A table of the catalogue."""
    with pytest.raises(Refused, match=forgotten) as caught:
        read_options.options_of_format({"provider": "frostline", "owner": "me", **said}, table, "")
    assert "create table t using frostline.db.t" in caught.value.hint


def test_words_of_the_catalogue_itself_are_no_options() -> None:
    said = {"provider": "frostline.db.t", "owner": "me", "comment": "mine", "team": "a", "filter": "of tblproperties"}
    assert read_options.options_of_format(said, "db.t", "") == {"path": "db.t"}
