"""How tests are written: short names, short files, no import of a test module, and no message compared as a whole.

A message is compared by what it names (the kind of error, the exit code, the part, disk or file), so that its words may
become better without a test that fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.servers import REPOSITORY

NAME_LENGTH = 60
FILE_LINES = 600
SENTENCE_WORDS = 6
_WORD = re.compile(r"""["'(]?[A-Za-z][a-z'-]*[.,:;!?"')]*""")
_COMPARING = frozenset({"startswith", "endswith", "search", "match", "fullmatch", "count", "index"})


def faults(source: str) -> Iterator[str]:
    """What is wrong with a file of tests, or with one that tests import: sentences."""
    if (lines := len(source.splitlines())) > FILE_LINES:
        yield f"{lines} lines, {FILE_LINES} are allowed: split it by subject"
    yield from _faults(ast.parse(source))


def says_what_for(source: str) -> bool:
    """Whether a module of tests begins with a line on what they are for."""
    return bool((ast.get_docstring(ast.parse(source)) or "").strip())


def _faults(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            if len(node.name) > NAME_LENGTH:
                yield f"{node.name} has {len(node.name)} characters, {NAME_LENGTH} are allowed"
        elif isinstance(node, ast.Assert):
            yield from (_sentence(text) for text in _compared(node.test) if _is_sentence(text))
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from (_sentence(text) for text in _texts(node.value) if _is_sentence(text))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (f"imports {name}: move what is shared to a module without tests" for name in _tests(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                program = ast.parse(node.value)  # what a test runs in a process of its own
            except SyntaxError:
                continue
            yield from _faults(program)


def _tests(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The names of tests, and of their modules, that are imported."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    for name in names:
        if name.startswith(("tests.", ".")) and any(part.startswith("test_") for part in name.split(".")):
            yield name


def _compared(condition: ast.expr) -> Iterator[str]:
    """The texts that something is compared with, not those that are given to a function."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                yield from _texts(operand)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COMPARING:
            yield from (text for argument in node.args[:1] for text in _texts(argument))


def _texts(node: ast.expr | None) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in values)
        case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Set(elts=inner) | ast.Dict(values=inner):
            for one in inner:
                yield from _texts(one)
        case ast.BinOp(left=left, right=right):
            yield from _texts(left)
            yield from _texts(right)


def _is_sentence(text: str) -> bool:
    return sum(_WORD.fullmatch(word) is not None for word in text.split()) > SENTENCE_WORDS


def _sentence(text: str) -> str:
    return f"compares with the sentence {text!r}: compare the kind, the exit code, and what it names"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import tests.unit.test_one", ["tests.unit.test_one"]),
        ("from tests.unit.test_one import put, get", ["tests.unit.test_one.put", "tests.unit.test_one.get"]),
        ("def one():\n    from tests.unit import homes, test_one", ["tests.unit.test_one"]),
        ("from . import test_one", ["..test_one"]),
        ("from .test_one import put", [".test_one.put"]),
        ("PROGRAM = 'from tests.test_one import put'", ["tests.test_one.put"]),
        ("from tests.unit.homes import test_path", ["tests.unit.homes.test_path"]),
        ("from aiohttp.test_utils import TestServer\nfrom tests.homes import Home", []),
        ("'See the import of tests.test_one.'", []),
    ],
)
def test_an_import_of_a_test_is_seen(source: str, said: list[str]) -> None:
    assert [fault.removeprefix("imports ").partition(":")[0] for fault in faults(source)] == said


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (f"def test_{'a' * 55}(): ...", 0),
        (f"def test_{'a' * 56}(): ...", 1),
        (f"class TestOne:\n    async def test_{'a' * 56}(self): ...", 1),
        (f"def outer():\n    def test_{'a' * 56}(): ...", 1),
        (f"def helper_{'a' * 56}(): ...", 0),
        ("one = 1\n" * 600, 0),
        ("one = 1\n" * 601, 1),
    ],
    ids=["60", "61", "method", "inner", "no test", "600 lines", "601 lines"],
)
def test_a_long_name_and_a_long_file_are_seen(source: str, count: int) -> None:
    assert len(list(faults(source))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert 'disk ssd was set back to an older copy' in home.error", 1),
        ("assert home.error == f'disk {name} was set back to an older copy'", 1),
        ("assert [one.text for one in problems] == ['b', 'disk ssd was set back to an older copy']", 1),
        ("assert any('disk ssd was set back to an older copy' in one for one in notes)", 1),
        ("assert note.startswith('disk ssd was set back to an older copy')", 1),
        ("with pytest.raises(Refused, match='disk ssd was set back to an older copy'): ...", 1),
        ("assert 'disk ssd was set back' in home.error", 0),
        ("assert home('query', 'select k from d.t where v is null order by k') == rows", 0),
        ("assert done, 'after it was set back the disk has what it had before'", 0),
    ],
)
def test_a_whole_sentence_is_seen(source: str, count: int) -> None:
    assert sum(fault.startswith("compares with ") for fault in faults(source)) == count


def test_a_module_that_does_not_say_what_its_tests_are_for() -> None:
    assert says_what_for('"""That parts are found (I1)."""\ndef test_one(): ...')
    assert not says_what_for("def test_one(): ...")
    assert not says_what_for('""" """\ndef test_one(): ...')


def test_names_files_and_imports_of_tests_are_as_agreed() -> None:
    own = REPOSITORY / "tests/unit/test_shape_of_tests.py"  # it has the wrong ones of the tests above
    files = sorted({*(REPOSITORY / "tests").rglob("*.py")} - {own})
    assert len(files) > 500
    found = [f"{path.relative_to(REPOSITORY)}: {fault}" for path in files for fault in faults(path.read_text())]
    assert found == []
    assert [str(path) for path in files if path.name != "__init__.py" and not says_what_for(path.read_text())] == []
