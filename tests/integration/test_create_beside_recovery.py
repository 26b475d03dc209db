"""I17: a table that is created while another process opens the store, and repairs definitions there."""

from __future__ import annotations

from typing import Any

import pytest

from oplog.errors import Conflict
from tests.homes import Home
from tiering.catalog import tables


@pytest.mark.parametrize("writes", [True, False])
def test_a_conflict_with_a_repair_is_tried_again(
    writes: bool, tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery copied the definition to a disk first, or came to nothing."""
    home, real, failed = Home(tmp_path, "a", capsys), tables.write_definition, list[str]()

    def write(context: Any, definition: Any, **options: Any) -> None:
        if failed:
            return real(context, definition, **options)
        first, *_ = failed.extend(options["disks"]) or options["disks"]
        if writes:
            real(context, definition, **{**options, "disks": [first]})
            raise Conflict("another process has written table.json")
        raise Conflict("another process has committed")

    monkeypatch.setattr(tables, "write_definition", write)
    home.create()
    home.insert(1)
    assert home.keys() == [1]
    assert home.json("fsck")["ok"]


def test_conflicts_without_end_are_temporary(tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path, "a", capsys)

    def conflict(*_: Any, **__: Any) -> None:
        raise Conflict("another process has committed")

    monkeypatch.setattr(tables, "write_definition", conflict)
    home("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", code=5)
    assert "d.t" in home.error
