"""Moves to a real S3 server and back: the requests users pay for, the bytes, a refusal. Guards P16 and P59."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disks.config import DiskConfig
from disks.object_disk.disk import ObjectDisk
from oplog.errors import AccessDenied
from tests.moving import close, configuration, create_table, holders, move, open_context, put_part
from tests.servers import Server
from tiering.catalog.context import Context
from tiering.move import mover


def bucket_of(server: Server) -> DiskConfig:
    return server.disk(f"s3://{server.new_bucket()}/store/")


@pytest.fixture
def context(tmp_path: Path, ministack: Server) -> Iterator[Context]:
    opened = open_context(configuration(tmp_path, s3=bucket_of(ministack)), workers=8)
    create_table(opened)
    yield opened
    close(opened)


def test_a_batch_costs_one_put_a_file_and_one_commit(context: Context) -> None:
    parts = [put_part(context, number, files=2) for number in range(1, 21)]
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    before = disk.store.counts()
    report = mover.execute(context, [move(made) for made in parts])
    after = disk.store.counts()
    assert len(report.moved) == 20
    spent = {verb: after[verb] - before[verb] for verb in after if after[verb] != before[verb]}
    assert spent == {"PUT": 41, "LIST": 1}, "no HEAD, no GET: what is written, and the proof that the log ends with it"
    assert all(holders(context, made) == ["s3"] for made in parts)


def test_there_and_back_again(context: Context) -> None:
    parts = [put_part(context, number, files=3, size=100_000) for number in range(1, 6)]
    for source, target in (("ssd", "s3"), ("s3", "ssd2"), ("ssd2", "s3"), ("s3", "ssd")):
        report = mover.execute(context, [move(made, target, source) for made in parts])
        assert len(report.moved) == 5, report
    assert all(holders(context, made) == ["ssd"] for made in parts)


def test_a_server_that_went_away_fails_the_moves_only(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [put_part(context, number) for number in (1, 2)]
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)

    def refuse(*arguments: object, **options: object) -> None:
        raise AccessDenied("the store refused our credentials", hint="check them")

    monkeypatch.setattr(disk.store, "put", refuse)
    report = mover.execute(context, [move(made) for made in parts])
    assert [failed.error for failed in report.failed] == ["the store refused our credentials"] * 2
    monkeypatch.undo()
    assert all(holders(context, made) == ["ssd"] for made in parts)
    assert len(mover.execute(context, [move(made) for made in parts]).moved) == 2
    assert [record.attempts for record in context.journal.work.moves(limit=2)] == [2, 2]
