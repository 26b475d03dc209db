"""Text of others on a terminal: nothing in a name, a key, a reason or an error is obeyed, wherever it is printed."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplog.errors import NotFound
from tiering.cli.frame.output import Output, encode, print_error
from tiering.cli.frame.session import Session
from tiering.cli.frame.terminal_progress import Lines
from tiering.config.escaping import visible
from tiering.daemon.log_lines import TextLines

HOSTILE = "a\x1b[2Jb\rc\nd\x9b31me\u202ef\x00g\x7fh\u2028i"
SHOWN = r"a\x1b[2Jb\rc\nd\x9b31me\u202ef\x00g\x7fh\u2028i"


def obeyed(text: str) -> list[str]:
    return [one for one in text if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or one == "\u202e"]


@given(st.text())
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert not obeyed(visible(text))


@given(st.text(alphabet=st.characters(exclude_categories=("C", "Z")), max_size=40))
def test_plain_text_of_any_language_stays(text: str) -> None:
    assert visible(text) == text


def test_what_is_escaped_can_be_read() -> None:
    assert visible(HOSTILE) == SHOWN


def test_lines_notes_tables_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.line(HOSTILE)
    output.note(HOSTILE)
    output.table([HOSTILE, "n"], [(HOSTILE, 1)], shout=False)
    print_error(NotFound(HOSTILE, hint=HOSTILE), json=False)
    out, err = capsys.readouterr()
    assert not obeyed((out + err).replace("\n", ""))
    assert out.count("\n") == 3
    assert err.count("\n") == 3
    assert out.count(SHOWN) == 3
    assert err.count(SHOWN) == 3


def test_json_says_the_same_and_a_terminal_obeys_nothing_of_it() -> None:
    text = encode({HOSTILE: HOSTILE}, indent=0).decode()
    assert json.loads(text) == {HOSTILE: HOSTILE}
    assert not obeyed(text)
    assert json.loads(encode({"ä": "日本"})) == {"ä": "日本"}


def test_a_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tiering.cli.frame.options import GlobalOptions

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    with Session(GlobalOptions()) as session:
        session.confirm(f"Drop {HOSTILE}?")
    assert not obeyed(screen.getvalue())


def test_a_line_of_progress_and_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(clock=iter([0.0, 100.0]).__next__).task(HOSTILE, items=2) as task:
        task.advance(items=1)
    assert not obeyed(capsys.readouterr().err.rstrip("\n"))
    record = logging.LogRecord("disks", logging.WARNING, "f", 1, "%s", (HOSTILE,), None)
    assert not obeyed(TextLines("%(message)s").format(record))
