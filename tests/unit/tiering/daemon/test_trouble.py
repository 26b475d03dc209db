"""Trouble is said when it begins and when it is over, once each, so that one filter of the log finds both (P15)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tiering.daemon.jobs.runs import RunOrder, run
from tiering.daemon.state_file import StateFile
from tiering.daemon.trouble import Trouble


def test_trouble_is_said_once_and_again_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble()
    for problems in ([], ["a"], ["a"], ["a", "b"], ["b"], ["b"], [], []):
        trouble.met("passes", problems)
    trouble.met("job gc", ["c"])
    assert [tuple(record.message.split(": ")) for record in caplog.records] == [
        ("passes", "a"),
        ("passes", "b"),
        ("passes", "no longer", "a"),
        ("passes", "all is well again, it was", "b"),
        ("job gc", "c"),
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_other_times_sizes_and_chance_are_the_same_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """P15: a disk that fills up, and a clock that is wrong, were said with each pass."""
    trouble = Trouble()
    for free in ("568.0 KiB", "1.5 MiB"):
        trouble.met("space of disk ssd", [f"disk ssd has {free} of 160.0 MiB free"])
    for time in ("2027-12-30T23:27:08Z", "2027-12-30T23:27:12Z"):
        trouble.met("passes", [f"the clock says {time}, the object store of disk s3 2026-11-25T23:27:08Z"])
    for name in ("447e88b767bd8fdd", "6ecf4f7045aed140"):
        trouble.met("merges", [f"no space left on device: ssd/staging/{name}.owner"])
    for seconds in (143, 147):
        trouble.met("clock", [f"the clock says another time than the time since this process began ({seconds} s)"])
    for asked in ("reading /a was given up after 10 s", "watching /b was given up after 1 s"):
        trouble.met("replica", [f"Keeper (host:2181) cannot be reached: {asked}, and nothing was changed"])
    for others in ("; and 18 more", "; and 9 more", ""):
        trouble.met("job merges", [f"merge of d.t: no such column{others}"])
    for part in ("201302_2_7_1", "201302_8_8_0"):
        trouble.met("the inbox", [f"part {part} cannot be read"])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "space of disk ssd",
        "passes",
        "merges",
        "clock",
        "replica",
        "job merges",
        "the inbox",
        "the inbox",
        "the inbox",
    ]


def test_a_file_that_cannot_be_kept_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P15: a full state disk was an error a second."""
    directory = tmp_path / "state"
    kept = StateFile(directory / "daemon.json", "the daemon's status")
    for exists in (False, False, True, True):
        if exists:
            directory.mkdir(exist_ok=True)
        kept.replace(b"{}")
    first, last = caplog.records
    assert first.message.startswith("the daemon's status is not written")
    assert last.message.startswith("the daemon's status is written")
    assert last.message.endswith(f": {directory}/daemon.json")
    assert (directory / "daemon.json").read_bytes() == b"{}"


def test_a_process_that_leaves_no_report_says_so(tmp_path: Path) -> None:
    """On a full state disk a run that went well was told as "its process ended with exit code 0"."""
    order = RunOrder(job="gc", state=str(tmp_path), run="1")
    report = run(order, threading.Event(), program=("/bin/true",))
    assert report.result == "failed"
    assert f"left no report in {tmp_path}/jobs" in report.said


def test_a_disk_goes_away_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble()
    for away in ({}, {"s3": "disk s3: no answer"}, {"s3": "disk s3: no answer"}, {}):
        trouble.disks(away, {"s3", "ssd"})
        assert trouble.away == ("not to be reached: s3" if away else "")
    gone, back = (record.message for record in caplog.records)
    assert gone.startswith("disk s3: no answer; ")
    assert back == "disk s3 can be reached again"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
