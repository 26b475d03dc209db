"""Trouble is said when it begins and when it is over, once each, so that one filter of the log finds both (P15)."""

from __future__ import annotations

import logging

import pytest

from tiering.daemon.trouble import Trouble


def test_trouble_is_said_once_and_again_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble()
    for problems in ([], ["a"], ["a"], ["a", "b"], [], []):
        trouble.met("passes", problems)
    trouble.met("job gc", ["c"])
    assert [record.message for record in caplog.records] == [
        "passes: a",
        "passes: b",
        "passes: all is well again, it was: b",
        "job gc: c",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_disk_goes_away_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble()
    for away in ({}, {"s3": "disk s3: no answer"}, {"s3": "disk s3: no answer"}, {}):
        trouble.disks(away, {"s3", "ssd"})
        assert trouble.away == ("not to be reached: s3" if away else "")
    assert [record.message for record in caplog.records] == [
        "disk s3: no answer; the other disks are worked on",
        "disk s3 can be reached again",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
