"""Each module of the table of plugs has what is asked of it, and is loaded when it is asked for."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pytest

from oplog.errors import UsageError
from tests.imports import sources
from tests.plugs import assignments
from tiering.cli.frame.verb_table import build
from tiering.plugins import JOB_PROGRAM, PLUGINS, Plug, Plugin

REPOSITORY = Path(__file__).parents[3]
MODULES = [(name, module) for name, plugin in PLUGINS.items() for module in plugin.modules]
_HELD = re.compile(r"Plug\[(\w+)\]\(\"([\w ]+)\"\)")


def protocol_of(plugin: Plugin) -> type:
    home, _, name = plugin.protocol.rpartition(".")
    found = getattr(import_module(home), name)
    assert isinstance(found, type)
    assert getattr(found, "_is_protocol", False)
    return found


@pytest.mark.parametrize(("name", "module"), MODULES)
def test_a_module_has_what_its_protocol_asks_for(name: str, module: str) -> None:
    """By the same names of parameters, which mypy does not compare; it compares all else."""
    asked = {word: member for word, member in vars(protocol_of(PLUGINS[name])).items() if not word.startswith("_")}
    assert asked
    for word, member in asked.items():
        given = getattr(import_module(module), word)
        if inspect.isfunction(member):
            _, *names = inspect.signature(member).parameters
            assert list(inspect.signature(given).parameters)[: len(names)] == names


def test_mypy_is_shown_each_module_with_its_protocol() -> None:
    text = assignments({"one": Plugin("low.asks.Counter", {"high.counts": (), "high.more": ("a", "b")})})
    assert text.splitlines() == [
        *("import high.counts", "import high.more", "import low.asks"),
        *("_0: low.asks.Counter = high.counts", "_1: low.asks.Counter = high.more"),
    ]


def test_each_name_is_held_once_beside_its_protocol() -> None:
    held = {
        name: f"{module}.{protocol}"
        for module, path in sources(REPOSITORY).items()
        if module != "tiering.plugins"
        for protocol, name in _HELD.findall(path.read_text())
    }
    assert held == {name: plugin.protocol for name, plugin in PLUGINS.items()}


def test_what_a_module_brings_is_what_the_table_says() -> None:
    for module, names in PLUGINS["jobs"].modules.items():
        assert tuple(kind.name for kind in import_module(module).KINDS) == names
    for module, names in PLUGINS["verbs of clickhouse"].modules.items():
        assert tuple(build(module)) == names
    assert JOB_PROGRAM in sources(REPOSITORY)


class Counter(Protocol):
    def count(self) -> int: ...


@pytest.mark.parametrize(("package", "extra"), [("zerocopy", "[replicas]"), ("tui", "[tui]"), ("backup", "")])
def test_a_missing_package_says_what_to_install(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setitem(PLUGINS, "missing", Plugin("of no interest", {f"{package}.verbs": ()}))
    with pytest.raises(UsageError, match=f"{package} is not installed") as caught:
        Plug[Counter]("missing")()
    assert caught.value.hint == f"pip install 'frostline{extra}'"


def test_what_else_is_missing_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS, "missing", Plugin("of no interest", {"zerocopy.nothing": ()}))
    with pytest.raises(ModuleNotFoundError, match=r"zerocopy\.nothing"):
        Plug[Counter]("missing")()


def test_a_store_loads_no_package_above_before_it_is_asked_for() -> None:
    program = (
        "import sys, tiering.engine.store, tiering.cli.main; "
        "print(sorted({'restore', 'backup', 'zerocopy', 'spark_tiering', 'tui'} & {name for name in sys.modules}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert answer.stdout == "[]\n"
