"""`ingest --spark`: files of several formats go into a table, each once, a batch of bytes a commit (I1, I2)."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import FrostlineError
from spark_tiering.running import session as session_module
from spark_tiering.writing import file_shares, ingest
from tests.homes import Home
from tests.spark.ingested import contents, expected, home, rows, written
from tiering.engine import write_job
from tiering.insert.uploaded import once_files

__all__ = ["home"]


@pytest.mark.in_turn
def test_every_format_comes_as_it_is_and_goes_in_once(home: Home) -> None:
    """The parts are in partitions and in order; the same files again are nothing to do."""
    files = [
        written(home, name, rows(number * 10, 10))
        for number, name in enumerate(("a[1].parquet", "b.csv", "c.json", "d.orc"))
    ]
    told = home.json("ingest", "d.t", *files, "--spark", "--dry-run")
    assert (told["files"], told["batches"], told["rows"], told["dry_run"]) == (4, 4, 0, True)
    assert home.keys() == []
    done = home.json("ingest", "d.t", *files, "--spark")
    assert (done["files"], done["skipped"], done["rows"], len(done["revisions"])) == (4, 0, 40, 4)
    assert {name.split("_")[0] for name in done["parts"]} == {"202601", "202602"}
    assert done["spark"]["tasks"] >= 4
    assert contents(home) == expected(0, 40)
    urls = [f"file://{home.path}/[bcd].*", f"file://{home.path}/a*.parquet"]  # as Hadoop finds them
    again = home.json("ingest", "d.t", *files, *urls, "--spark", "--error-on-nothing", code=9)
    assert (again["files"], again["skipped"], again["rows"], again["spark"]) == (0, 4, 0, None)
    assert contents(home) == expected(0, 40)
    assert home.json("fsck", "--read-data")["ok"]


def test_a_file_that_exists_is_meant(home: Home) -> None:
    """Whatever is in its name, also as a URL; another one's rows came too."""
    names = ["q?.parquet", "q1.parquet", "data[1].csv", "hour=10%3A00/p.parquet"]
    (home.path / "hour=10%3A00").mkdir()
    for number, name in enumerate(names):
        written(home, name, rows(10 * number, 1))
    home("ingest", "d.t", *(f"file://{home.path}/{name}" for name in names if name != "q1.parquet"), "--spark")
    assert contents(home) == [*expected(0, 1), *expected(20, 1), *expected(30, 1)]
    home("ingest", "d.t", f"file://{home.path}/q?.parquet", f"file://{home.path}/h*/*.parquet", "--spark")
    assert len(contents(home)) == 3, "the same files"
    home("ingest", "d.t", "s3://bucket/in//a.csv", "--spark", code=2)
    assert "Hadoop would take the `//`" in home.error


def test_columns_are_chosen_and_what_does_not_fit_is_an_error(home: Home) -> None:
    nested = home.path / "n.json"
    nested.write_text('{"id": 1, "user": {"name": "ann"}, "time": "2026-01-01T10:00:00Z", "more": [1]}\n')
    chosen = ("--select", "id as k, user.name, time as at")
    home("ingest", "d.t", str(nested), "--spark", code=2)
    assert "unknown columns: id, more, time, user" in home.error
    home("ingest", "d.t", str(nested), "--spark", "--select", "idd as k", code=2)
    assert "the files have no column idd" in home.error
    home("ingest", "d.t", str(nested), "--spark", *chosen)
    assert contents(home) == [[1, "01-01", "ann"]]
    bad = home.path / "bad.csv"
    bad.write_text("k,at,name\n2,2026-01-01T10:00:00Z,x\nthree,2026-01-01T10:00:00Z,y\n")
    home("ingest", "d.t", str(bad), "--spark", code=2)
    assert "three" in home.error
    assert f"it is in {bad}; 'frostline insert d.t FILE --dry-run'" in home.error
    home("insert", "d.t", str(bad), "--dry-run", code=2)
    assert "line 3: column k" in home.error
    assert contents(home) == [[1, "01-01", "ann"]]
    home("ingest", "d.t", str(bad), code=2)
    assert "add --spark" in home.error
    home("ingest", "d.t", "s3://nowhere/*.csv", "--spark", code=2)
    assert "Spark cannot list s3://nowhere/*.csv" in home.error
    assert "hadoop-aws" in home.error
    home("ingest", "d.t", f"file://{home.path}/*.parquet", "--spark", code=10)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "k,name,Name\n1,one,TWO\n"), ("a.json", '{"k": 1, "name": "one", "Name": "TWO"}\n')],
)
def test_columns_that_differ_in_case_go_by_their_names(home: Home, name: str, text: str) -> None:
    (home.path / name).write_text(text)
    ingest_file = ("ingest", "d.t", str(home.path / name), "--spark")
    home(*ingest_file, code=2)
    assert "column Name differs in case alone" in home.error
    home(*ingest_file, "--select", "k, Name as name")
    assert home.json("query", "SELECT k, name FROM d.t")["rows"] == [[1, "TWO"]]


def test_what_stopped_between_two_commits_goes_on_after_the_last(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before a commit, and after one whose answer was lost."""
    files = [written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(4)]
    commit, calls = write_job.commit, [0]

    def stopped(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise FrostlineError("stopped before")
        result = commit(*arguments)
        if calls[0] == 4:
            raise FrostlineError("stopped after")
        return result

    each = ("ingest", "d.t", *files, "--spark", "--batch-bytes", "1")
    with monkeypatch.context() as patch:
        patch.setattr(write_job, "commit", stopped)
        home(*each, code=1)
        assert "10 rows went in before by 1 commit" in home.error
        assert contents(home) == expected(0, 10)
        home(*each, code=1)
        assert contents(home) == expected(0, 30)
    done = home.json(*each)
    assert (done["files"], done["skipped"], done["rows"]) == (1, 3, 10)
    assert contents(home) == expected(0, 40)


def test_two_at_once_take_each_file_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one commits the same file, and another one, while this one's tasks write."""
    one, two, three = (written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(3))
    parts_of = ingest.parts_of

    def meddled(answers: Any) -> Any:
        monkeypatch.setattr(ingest, "parts_of", parts_of)
        home("ingest", "d.t", three, "--spark")
        home("ingest", "d.t", one, "--spark")
        return parts_of(answers)

    monkeypatch.setattr(ingest, "parts_of", meddled)
    home("ingest", "d.t", one, two, "--spark", code=13)
    assert "1 of the 2 files went into d.t" in home.error
    assert contents(home) == expected(0, 10) + expected(20, 10)
    home("ingest", "d.t", one, two, "--spark")
    assert contents(home) == expected(0, 30)


def test_a_changed_file_is_not_another_one_unless_asked_for(home: Home) -> None:
    file = written(home, "a.parquet", rows(0, 10))
    home("ingest", "d.t", file, "--spark")
    written(home, "a.parquet", rows(10, 11))
    home("ingest", "d.t", file, "--spark", code=13)
    assert "has changed since it went into d.t" in home.error
    home("ingest", "d.t", file, "--spark", "--take-changed")
    assert contents(home) == expected(0, 21)


def test_marks_are_merged_and_an_undone_commit_can_come_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_files, "MARKS", 2)
    files = [written(home, f"{number}.parquet", rows(number * 10, 10)) for number in range(4)]
    done = home.json("ingest", "d.t", *files, "--spark", "--batch-bytes", "1")
    assert home.json("ingest", "d.t", *files, "--spark")["skipped"] == 4
    home("undo", "s3", str(done["revisions"][-1]))
    assert contents(home) == expected(0, 30)
    assert home.json("ingest", "d.t", *files, "--spark")["files"] == 1
    assert contents(home) == expected(0, 40)


@pytest.mark.in_turn
def test_ranges_of_partition_and_key_leave_few_parts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tasks and two partitions: a part for each range, and one more where a range holds the end of a partition."""
    monkeypatch.setattr(ingest, "TASK_BYTES", 1)
    monkeypatch.setattr(ingest, "_LEAST_TASK_BYTES", 1)
    file = written(home, "a.csv", rows(0, 4000))
    size = Path(file).stat().st_size
    monkeypatch.setattr(ingest, "TASK_BYTES", size // 4 + 1)
    done = home.json("ingest", "d.t", file, "--spark")
    assert 4 <= len(done["parts"]) <= 5
    assert contents(home) == expected(0, 4000)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["parquet", "json", "orc"])
@pytest.mark.parametrize("own", [("parquet", "orc"), ()], ids=["tasks", "Spark"])
def test_files_of_one_batch_may_have_other_columns(
    home: Home, kind: str, own: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file does not have is null; nothing of the others is lost, whoever reads them."""
    monkeypatch.setattr(file_shares, "_OWN_FORMATS", own)
    files = [written(home, f"a.{kind}", rows(0, 10).drop(["name"])), written(home, f"b.{kind}", rows(10, 10))]
    done = home.json("ingest", "d.t", *files, "--spark")
    assert len(done["revisions"]) == 1
    assert contents(home) == [[key, day, None] for key, day, _ in expected(0, 10)] + expected(10, 10)


@pytest.mark.in_turn
def test_csv_is_read_as_insert_reads_it(home: Home) -> None:
    """Quotes within quotes are written twice, and a backslash is one."""
    path = home.path / "quoted.csv"
    path.write_text('k,at,name\n1,2026-01-01,"say ""hi"", x"\n2,2026-01-01,"C:\\dir\\"\n3,2026-01-01,"a\\,b"\n')
    home("ingest", "d.t", str(path), "--spark")
    found = home.json("query", "SELECT k, name FROM d.t ORDER BY k")["rows"]
    assert found == [[1, 'say "hi", x'], [2, "C:\\dir\\"], [3, "a\\,b"]]
    path.write_text("k,at,name\n4,2026-01-01,x\n5\n")
    home("ingest", "d.t", str(path), "--spark", "--take-changed", "--select", "k", code=2)
    assert "quoted.csv: Malformed CSV record: 5" in home.error
    home("ingest", "d.t", str(path), "--spark", "--take-changed", code=2)
    assert "quoted.csv: Malformed CSV record: 5" in home.error
    assert "names its line and column" in home.error
    assert home.json("query", "SELECT count(*) FROM d.t")["rows"] == [[3]]


@pytest.mark.parametrize("name", ["_rows.csv", ".rows.csv", "rows.csv._COPYING_"])
def test_a_file_that_spark_would_pass_over_is_refused(home: Home, name: str) -> None:
    (home.path / name).write_text("k,at,name\n1,2026-01-01,a\n")
    (home.path / "more.csv").write_text("k,at,name\n2,2026-01-01,b\n")
    files = [str(home.path / name), str(home.path / "more.csv")]
    home("ingest", "d.t", *files, "--format", "csv", "--spark", code=2)
    assert f"{name}: Spark takes" in home.error
    assert home.json("query", "SELECT count(*) FROM d.t")["rows"] == [[0]]


def test_a_file_that_spark_passes_over_otherwise_takes_none_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """For another reason than that it is in already."""
    monkeypatch.setattr(ingest, "_PASSED_OVER", re.compile(r"nothing\Z"))
    for name in ("_rows.csv", "more.csv"):
        (home.path / name).write_text("k,at,name\n1,2026-01-01,a\n")
    home("ingest", "d.t", str(home.path / "_rows.csv"), str(home.path / "more.csv"), "--spark", code=13)
    assert "Spark sees 1 of 2 files" in home.error
    assert home.json("query", "SELECT count(*) FROM d.t")["rows"] == [[0]]


def test_files_of_text_with_other_headers_are_refused(home: Home) -> None:
    one = written(home, "a.csv", rows(0, 10))
    other = written(home, "b.csv", rows(10, 10).select(["at", "k", "name"]))
    home("ingest", "d.t", one, other, "--spark", code=1)
    assert contents(home) == []


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_installed_command_ingests(home: Home, kind: str) -> None:
    """It leaves pandas out, which Spark needs: every ingest failed, and no test began where people do."""
    file = written(home, f"b.{kind}", rows(0, 10))
    command = [sys.executable, "-m", "frostline", "-c", str(home.configuration), "ingest", "d.t", file, "--spark"]
    command += ["--master", "local[1]", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 10
    assert contents(home) == expected(0, 10)


def test_what_spark_says_of_an_error_is_in_its_log_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a value came once more, with Java's stack, as a line of 8 KB."""
    from pyspark.logger import PySparkLogger

    names = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    for name in (*names, "py4j", "pyspark"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    session_module._quiet(tmp_path / "driver.log")
    for name in names:
        PySparkLogger.getLogger(name).exception("a value", file="f")
    assert "a value" not in "".join(capfd.readouterr())
