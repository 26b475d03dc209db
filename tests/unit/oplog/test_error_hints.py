"""Every error that reaches a user has a next step: its own hint, or that of its kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from oplog import errors
from oplog.errors import FrostlineError
from tiering.cli.frame.output import print_error

_ROOT = Path(__file__).parents[3]
_PACKAGES = ("oplog", "disks", "tiering", "backup", "restore", "zerocopy", "spark_tiering", "tui")
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FrostlineError)]
PRECISE = {"Refused", "Retained", "ReadOnly", "Locked", "NoSpace", "AccessDenied"}
"""A person has to do something about these: each raise says what."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("json", [False, True])
def test_an_error_without_a_hint_has_a_next_step(
    kind: type[FrostlineError], json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind.__new__(kind)
    FrostlineError.__init__(error, "it failed")
    assert error.advice == kind.next_step != ""
    print_error(error, json=json)
    assert kind.next_step in capsys.readouterr().err


def test_what_a_person_has_to_settle_has_its_own_hint() -> None:
    lacking = [f"{path}:{call.lineno} {kind}" for path, call, kind in _raised() if kind in PRECISE and _is_bare(call)]
    assert lacking == []


def _raised() -> Iterator[tuple[Path, ast.Call, str]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                    yield path.relative_to(_ROOT), node, name


def _is_bare(call: ast.Call) -> bool:
    """Whether the call gives no hint, or an empty one. Further arguments may come from elsewhere (`**`)."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    hint = given.get("hint")
    return (hint is None and None not in given) or (isinstance(hint, ast.Constant) and not hint.value)
