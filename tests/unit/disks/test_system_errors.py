"""What the system refuses is never called damage: each number, each wording of a library, each place that reads. Guards
I1, I15."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from disks import system_errors
from disks.stores.directory import DirectoryStore
from disks.system_errors import of_sqlite, of_the_system
from oplog.errors import Damaged, FrostlineError, LimitReached, NoSpace
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.parquet import checked_local
from tiering.table.definitions import define_table

REFUSALS = sorted({*system_errors._SPOKEN, errno.EROFS})


def store_of(path: Path, parts: int) -> Store:
    store = Store.open(embedded(path))
    store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
    batches = ([pa.record_batch({"k": pa.array([number], pa.int64())})] for number in range(parts))
    store.table("d.t").insert_each(batches)
    return store


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)
def test_every_refusal_is_reported_as_what_it_is(number: int) -> None:
    """By its number, and by its text where a library passes on only that."""
    by_number = of_the_system(OSError(number, os.strerror(number), "/some/file"))
    assert by_number is not None
    assert "/some/file" in by_number.message
    assert by_number.hint
    assert not isinstance(by_number, Damaged)
    if number in system_errors._SPOKEN:
        by_text = of_the_system(pa.ArrowException(f"Cannot open file: {os.strerror(number)}"))
        assert type(by_text) is type(by_number)


def test_a_quota_and_memory_have_words_of_their_own() -> None:
    assert "quota" in str(of_the_system(OSError(errno.EDQUOT, "")))
    assert isinstance(of_the_system(OSError(errno.EDQUOT, "")), NoSpace)
    assert "ulimit -v" in str(of_the_system(MemoryError()))
    assert of_the_system(OSError(errno.ENOENT, "")) is None


@pytest.mark.parametrize(("limit", "shown"), [(3 << 29, "1.5 GiB"), (300 << 20, "300.0 MiB"), (512, "512 B")])
def test_limits_of_sizes_have_units(limit: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_errors.resource, "getrlimit", lambda kind: (limit, limit))
    assert f"(ulimit -v: {shown})" in str(of_the_system(MemoryError()))
    assert f"may write {shown} to a file" in str(of_the_system(OSError(errno.EFBIG, "")))


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)
def test_a_query_that_may_not_open_a_part(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_of(tmp_path, 1) as store:

        def refused(*_: Any) -> int:
            raise OSError(number, os.strerror(number), "data-0000.parquet")

        monkeypatch.setattr(checked_local, "_compare", refused)
        with pytest.raises(FrostlineError) as raised:
            store.query("SELECT sum(k) AS k FROM d.t").read_all()
        assert type(raised.value) is type(of_the_system(OSError(number, "")))


@pytest.mark.parametrize("number", set(REFUSALS) - {errno.EROFS}, ids=errno.errorcode.__getitem__)
def test_a_directory_as_bucket_passes_it_on(number: int, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(FrostlineError) as raised, store._translated("key"):
        raise OSError(number, os.strerror(number))
    assert type(raised.value) is type(of_the_system(OSError(number, "")))


def test_a_journal_that_may_not_be_opened_is_not_set_aside(tmp_path: Path) -> None:
    """P15 and its kind: a limit that passes must not take the history away."""
    store_of(tmp_path, 1).close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
        with pytest.raises(sqlite3.OperationalError) as raised:
            sqlite3.connect(tmp_path / "state" / "journal.db").execute("SELECT * FROM meta")
        assert isinstance(of_sqlite(raised.value, "journal.db"), LimitReached)
        with pytest.raises((FrostlineError, OSError)):
            Store.open(embedded(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)
    assert not list((tmp_path / "state").glob("journal.db.damaged-*"))


@pytest.mark.in_turn
def test_many_parts_are_queried_with_few_open_files(tmp_path: Path) -> None:
    """The engine keeps about half of its files open: where that is too many, they are served to it."""
    store_of(tmp_path, 100).close()
    command = [sys.executable, "-m", "tiering.cli.main", "query", "SELECT sum(k) AS k FROM d.t", "--output-format=csv"]
    done = subprocess.run(
        command,
        env={**os.environ, "FROSTLINE_HOME": str(tmp_path)},
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (56, 56)),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.replace('"', "").split()) == (0, ["k", str(sum(range(100)))]), done.stderr
