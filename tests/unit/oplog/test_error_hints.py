"""Every error that reaches a user has a next step: its own hint, or that of its kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from oplog import errors
from oplog.errors import FrostlineError
from tiering.cli.frame.output import print_error
from tiering.cli.main import build

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
    for path, node in _nodes():
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            yield path, node, name


def _is_bare(call: ast.Call) -> bool:
    """Whether the call gives no hint, or an empty one. Further arguments may come from elsewhere (`**`)."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    hint = given.get("hint")
    return (hint is None and None not in given) or (isinstance(hint, ast.Constant) and not hint.value)


def test_every_command_that_the_code_names_is_there() -> None:
    """Of each `'frostline …'` in a text of the product: verb and options. A hint may also begin with one."""
    root = typer.main.get_command(build())
    context = typer.Context(root)
    wrong = []
    for path, node in _nodes():
        commands = _QUOTED.findall(_text(node))
        if isinstance(node, ast.keyword) and node.arg == "hint":
            commands += [" ".join(found.split()[:2]) for found in _FIRST.findall(_text(node.value))]
        wrong += [f"{path}: frostline {command}" for command in commands if not _is_there(command, root, context)]
    assert wrong == []


_QUOTED = re.compile(r"['`]frostline ([^'`]+)['`]")
_FIRST = re.compile(r"\Afrostline ([^'`]+)")
_GAP = "\0"
"""In a text: what is known only when the program runs."""


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(_text(value) or _GAP for value in node.values)
        case ast.BinOp(op=ast.Add()):
            return (_text(node.left) or _GAP) + (_text(node.right) or _GAP)
    return ""


def _is_there(command: str, root: Any, context: typer.Context) -> bool:
    """Whether the command line has the verb and its options, as far as the text names them."""
    verb, words = root, command.split()
    while hasattr(verb, "get_command") and words and re.fullmatch("[a-z][a-z-]*", words[0]):
        verb = verb.get_command(context, words.pop(0))
        if verb is None:
            return False
    if hasattr(verb, "get_command"):
        return True
    options = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {found[0] for word in words if (found := re.search("--[a-z][a-z-]+", word))} <= options | {"--help"}


def _nodes() -> Iterator[tuple[Path, ast.AST]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                yield path.relative_to(_ROOT), node
