"""Mutants that change nothing any more: `python -m tests.crash.stale`. The product went on, and they did not.

Each is put in, in one process that has all of the product imported, and taken out again. One that makes a name where
there was none, that changes nothing, or whose check is not there proves nothing, whatever its check says. A case of a
test, as `test_one[case]`, is there when pytest collects it.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from oplog import kinds
from tests import turns
from tests.crash.mutants import ENVIRONMENT, MUTANTS, Mutant

PACKAGES = ("oplog", "disks", "tiering", "backup", "restore", "zerocopy", "spark_tiering", "tui")
_BESIDE = ("os", "shutil", "time", "pyarrow.parquet.core")
"""Modules that are not ours, in which mutants change something."""
_ROOT = Path(__file__).parents[2]

Owners = Mapping[str, tuple[Any, dict[str, Any]]]
"""Modules and classes by name, with what each had."""


def import_all() -> None:
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def owners() -> Owners:
    found: dict[str, Any] = {}
    for name, module in sys.modules.items():
        if name.partition(".")[0] in PACKAGES or name in _BESIDE:
            found[name] = module
            for value in list(vars(module).values()):
                if isinstance(value, type) and (value.__module__.partition(".")[0] in PACKAGES or name in _BESIDE):
                    found[f"{value.__module__}:{value.__qualname__}"] = value
    return {name: (owner, dict(vars(owner))) for name, owner in found.items()}


def fault_of(mutant: Mutant, before: Owners) -> str | None:
    """Why the mutant proves nothing, if so; what it changed is as before again."""
    try:
        mutant.apply()
    except Exception as error:
        return f"cannot be put in: {type(error).__name__}: {error}"
    finally:
        changed, made = _undo(before)
    if made:
        return f"makes {', '.join(made)}, which the product does not have"
    return None if changed else "changes nothing"


def _undo(before: Owners) -> tuple[int, list[str]]:
    """How many names were changed, and those that are new and hide none of a base; all is as before."""
    changed, made = _undo_fields(), []
    for name, (owner, had) in before.items():
        now = dict(vars(owner))
        for key in had.keys() | now.keys():
            if key in had and key in now and had[key] is now[key]:
                continue
            if key in had:
                changed += 1
                setattr(owner, key, had[key])
            elif not key.startswith("__") and not _is_submodule(name, key, now[key]):
                if isinstance(owner, type) and any(key in vars(base) for base in owner.__mro__[1:]):
                    changed += 1
                else:
                    made.append(f"{name}.{key}")
                delattr(owner, key)
    return changed, made


_FIELDS = {kind: list(fields) for kind, fields in kinds._FIELDS.items()}
"""What mutants change in place."""


def _undo_fields() -> int:
    changed = 0
    for kind, fields in _FIELDS.items():
        changed += kinds._FIELDS[kind] != fields
        kinds._FIELDS[kind][:] = fields
    return changed


def _is_submodule(name: str, key: str, value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{name}.{key}"


def missing_checks(mutants: Iterable[Mutant]) -> Iterator[tuple[str, str]]:
    """Mutants whose check does not exist, or whose directory has no conftest that puts them in."""
    tests: dict[str, set[str]] = {}
    for mutant in mutants:
        file, *names = mutant.place.partition("[")[0].split("::")
        if file not in tests:
            tests[file] = set(_tests(_ROOT / file))
        if not tests[file] or (names and "::".join(names) not in tests[file]):
            yield mutant.name, f"its check {mutant.check} does not exist"
        elif not any("apply_from_environment()" in text for text in _around(_ROOT / file)):
            yield mutant.name, f"neither a conftest.py above {file} nor a __main__.py beside it puts it in"


def missing_cases(mutants: Iterable[Mutant]) -> Iterator[tuple[str, str]]:
    """Mutants whose check is a case of a test, `test_one[case]`, that pytest does not collect."""
    cases = [mutant for mutant in mutants if "[" in mutant.place]
    files = {mutant.place.partition("::")[0] for mutant in cases}
    collected = _collected(sorted(file for file in files if (_ROOT / file).is_file()))
    for mutant in cases:
        if mutant.place not in collected:
            yield mutant.name, f"pytest does not collect its check {mutant.check}"


def _collected(files: Sequence[str]) -> frozenset[str]:
    """The cases of tests in these files, all of them: whose turn it is does not count."""
    if not files:  # pytest would collect everything
        return frozenset()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=_ROOT,
        env={name: value for name, value in os.environ.items() if name not in (ENVIRONMENT, turns.ENVIRONMENT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return frozenset(done.stdout.splitlines())


def _tests(file: Path) -> Iterator[str]:
    """The classes and functions of a file of tests, as pytest names them."""
    for node in ast.parse(file.read_text()).body if file.is_file() else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))


def _around(file: Path) -> Iterator[str]:
    above = itertools.takewhile(lambda directory: directory != _ROOT, file.parents)
    for path in (file.with_name("__main__.py"), *(directory / "conftest.py" for directory in above)):
        if path.is_file():
            yield path.read_text()


def main() -> int:
    """Print each that proves nothing; 1 when there is one."""
    import_all()
    before = owners()
    faults = dict(missing_cases(MUTANTS.values())) | dict(missing_checks(MUTANTS.values()))
    for mutant in MUTANTS.values():
        if (fault := fault_of(mutant, before)) is not None:
            faults[mutant.name] = fault
    for name, fault in faults.items():
        print(f"mutant {name!r}: {fault}", file=sys.stderr)
    print(f"{len(MUTANTS) - len(faults)} of {len(MUTANTS)} mutants change what is there")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
