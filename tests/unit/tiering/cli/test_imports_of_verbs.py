"""A verb imports what it needs: most of the time that a small one takes are imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.constraints import REPOSITORY
from tests.homes import Home

ENGINES = {"duckdb", "pyarrow", "numpy", "pandas", "fsspec", "boto3", "botocore", "obstore", "kazoo", "aiohttp", "rich"}
"""Packages that take as long to import as a small verb takes."""
BESIDE = {
    *("tiering.engine.maintenance", "tiering.merge.merger", "tiering.move.mover", "tiering.move.policy_facts"),
    *("tiering.insert.insert", "tiering.policy.decide", "tiering.policy.explaining", "tiering.table.pruning"),
    *("zerocopy", "spark_tiering", "tui", "ctypes", "statistics", "typing_extensions"),
}
"""What a look at the store needs nothing of."""
PROGRAM = """
import os, sys
from tiering.cli import entry
def end(code):
    sys.stdout.flush()
    print(*sys.modules, sep="\\n", file=sys.stderr)
    sys.stderr.flush()
    leave(code)
leave, os._exit, sys.exit = os._exit, end, end
sys.argv = ["frostline", *sys.argv[1:]]
entry.main()
"""
VERBS: dict[tuple[str, ...], set[str]] = {
    ("--version",): ENGINES | BESIDE | {"typer", "msgspec", "sqlite3", "importlib.metadata"},
    ("--help",): ENGINES | BESIDE | {"typer", "msgspec", "sqlite3"},
    ("parts",): ENGINES | BESIDE,
    ("parts", "d.t", "--json"): ENGINES | BESIDE,
    ("disks",): ENGINES | BESIDE,
    ("table", "list"): ENGINES | BESIDE,
    ("status",): ENGINES | {"zerocopy", "pyspark", "tui", "tiering.insert.insert", "tiering.merge.merger"},
    ("plan",): ENGINES,
    ("query", "SELECT count(*) AS n FROM d.t WHERE k > 0"): ENGINES - {"duckdb"} | {"tiering.engine.maintenance"},
}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(*range(3))
    return home


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_verb_imports_what_it_needs(verb: tuple[str, ...], home: Home) -> None:
    options = [] if verb[0].startswith("-") else ["-c", str(home.configuration)]
    command = [sys.executable, "-c", PROGRAM, *options, *verb]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert "tiering.cli.entry" in modules
    assert modules & VERBS[verb] == set()
