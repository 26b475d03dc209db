"""The log of a daemon: one line an event, as text or as JSON; no password in it, and no line that others forged."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import pytest

from oplog.errors import Locked
from tiering.cli.frame.output import Output, print_error
from tiering.daemon.log_lines import JsonLines, LogFormat, LogStream, TextLines, fields

HOSTILE = "a\n2026-01-01 ERROR forged\u2028\x1b[2J\udcff\x00"
URL = "https://user:hunter2@host/bucket/key?X-Amz-Signature=abcdef01&X-Amz-Credential=AKIAX%2F2026&x=1"


@contextmanager
def begun(form: LogFormat) -> Iterator[tuple[io.StringIO, LogStream]]:
    """What is written, and by what. No fixture: pytest takes the stream back before it calls the test."""
    with redirect_stderr(io.StringIO()) as written:
        stream = LogStream(form)
        stream.begin()
        try:
            yield written, stream
        finally:
            stream.end()


def events(written: io.StringIO) -> list[dict[str, Any]]:
    """Each line is an object, or this fails."""
    text = written.getvalue()
    assert text.isascii()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def record(message: str, *values: object, **more: Any) -> logging.LogRecord:
    one = logging.LogRecord("disks", logging.WARNING, "f", 1, message, values, None)
    one.__dict__.update(more)
    return one


def test_an_object_says_what_when_how_bad_and_where() -> None:
    one = record("%s is away", "s3", created=1.5, **fields(where="disk s3", tries=3))
    assert json.loads(JsonLines(job="gc").format(one)) == {
        "time": "1970-01-01T00:00:01.500000Z",
        "level": "warning",
        "logger": "disks",
        "message": "s3 is away",
        "job": "gc",
        "where": "disk s3",
        "tries": 3,
    }


def test_a_traceback_is_in_its_object_and_covers_secrets() -> None:
    try:
        raise OSError(f"no answer from {URL}")
    except OSError:
        line = JsonLines().format(record("failed at %s", URL, exc_info=sys.exc_info(), **fields(urls=[URL])))
    assert "\n" not in line
    for secret in ("hunter2", "abcdef01", "AKIAX"):
        assert secret not in line
    event = json.loads(line)
    assert event["exception"].startswith("OSError: no answer from https://user:")
    assert event["traceback"].startswith("Traceback")
    assert "raise OSError" in event["traceback"]


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_no_name_forges_a_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("%s", HOSTILE, **fields(file=HOSTILE)))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_all_that_python_writes_is_an_event() -> None:
    with begun("json") as (written, _):
        Output().note(f"recovered: {HOSTILE}")
        sys.stderr.write("half ")
        sys.stderr.write("a line\nand more")
        logging.getLogger("frostline.daemon").warning("trouble", extra=fields(where="passes"))
        failing = threading.Thread(target=lambda: 1 // 0, name="lane")
        failing.start()
        failing.join()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", stacklevel=1)
        print_error(Locked("another daemon works here", hint="stop it"), json=False)
    found = events(written)
    assert [event["level"] for event in found] == ["info", "info", "warning", "error", "warning", "error"]
    assert found[1]["message"] == "half a line"
    assert found[2]["where"] == "passes"
    assert found[3]["exception"] == "ZeroDivisionError: integer division or modulo by zero"
    assert "lane" in found[3]["message"]
    assert found[5]["message"] == "another daemon works here; stop it"
    assert (found[5]["error"]["kind"], found[5]["error"]["exit_code"]) == (Locked("").kind, Locked.exit_code)


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_of_threads_stay_whole(form: LogFormat) -> None:
    def speak(name: str) -> None:
        for number in range(50):
            logging.getLogger("frostline").warning("%s says %s", name, number)

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abcd"]
    with begun(form) as (written, _):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = written.getvalue().splitlines()
    assert len(lines) == 200
    assert all((json.loads(line)["message"] if form == "json" else line).count(" says ") == 1 for line in lines)


def test_another_configuration_is_another_form_unless_asked_for() -> None:
    for is_fixed, expected in ((False, "text"), (True, "json")):
        stream = LogStream("json", is_fixed=is_fixed)
        stream.configured("text")
        assert stream.form == expected


def test_afterwards_all_is_as_before() -> None:
    before = (sys.stderr, list(logging.getLogger().handlers), threading.excepthook, sys.unraisablehook)
    with begun("json"):
        assert sys.stderr is not before[0]
    assert before == (sys.stderr, list(logging.getLogger().handlers), threading.excepthook, sys.unraisablehook)


def test_a_log_that_takes_nothing_ends_no_work() -> None:
    """P15: its disk is full, or who read it is gone."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with redirect_stderr(Full()):
        stream = LogStream("json")
        stream.begin()
        try:
            print("a remark", file=sys.stderr)
            logging.getLogger("frostline.daemon").warning("trouble")
            sys.stderr.flush()
        finally:
            stream.end()
