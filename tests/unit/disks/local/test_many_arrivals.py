"""A commit of many small parts asks the file system little of each: no more than what is there where it is to lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks.local.disk import LocalDisk
from oplog.errors import Conflict
from oplog.kinds import Dropped, Inserted

PARTS = 50


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    with closing(LocalDisk("ssd", tmp_path)) as disk:
        bring(disk, ["t/table.json"])
        yield disk


def bring(disk: LocalDisk, paths: list[str]) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path in paths:
            transaction.create(path, path.encode())
        transaction.commit()


def shown(disk: LocalDisk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def test_a_part_more_is_a_few_questions_more(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name in ("lstat", "stat", "scandir", "listdir"):
        original = getattr(os, name)

        def counted(*arguments: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            asked[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(os, name, counted)
    totals = []
    for turn in (1, 2):
        asked.clear()
        bring(disk, [f"t/{turn}-{number}/part.json" for number in range(turn * PARTS)])
        totals.append(asked.total())
    assert totals[1] - totals[0] < 6 * PARTS, asked


def test_hidden_files_and_empty_directories_make_way_for_many(disk: LocalDisk, tmp_path: Path) -> None:
    paths = [f"t/{number}/part.json" for number in range(4)]
    bring(disk, paths)
    with disk.read_lease():  # what goes stays for readers
        with disk.transaction(Dropped()) as transaction:
            for path in paths:
                transaction.remove(path.rpartition("/")[0])
            transaction.commit()
        bring(disk, [*paths, "t/0/more/deep", "t/new/part.json"])
        assert shown(disk).keys() == {"t/table.json", *paths, "t/0/more/deep", "t/new/part.json"}
    (tmp_path / "t/5/part.json").mkdir(parents=True)
    bring(disk, ["t/5/part.json", "t/6/part.json"])
    assert disk.read("t/5/part.json") == b"t/5/part.json"


@pytest.mark.parametrize("path", ["t/table.json/part.json", "t/a/part.json", "t/a/part.json/more", "t/a"])
def test_what_does_not_fit_is_refused_among_many(disk: LocalDisk, path: str) -> None:
    before = shown(disk)
    with pytest.raises(Conflict):
        bring(disk, ["t/a/part.json", "t/a/data", "t/b/part.json", path])
    assert shown(disk) == before
