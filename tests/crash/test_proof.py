"""The seeded mistakes themselves: each changes what is there, and what was proved once is not proved again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import stale
from tests.crash.mutants import Mutant
from tests.crash.proof import Proved, prove
from tests.servers import REPOSITORY
from tiering.move import mover


def test_every_mutant_changes_what_is_there() -> None:
    """In a process of its own: what mutants leave behind is nobody else's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.stale"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def _renamed() -> None:
    mover._removes_from = None  # type: ignore[attr-defined]


def _lost() -> None:
    del mover._removes_from  # type: ignore[attr-defined]


def _sound() -> None:
    mover._remove_from = print  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("apply", "said"),
    [
        (_renamed, "makes tiering.move.mover._removes_from, which the product does not have"),
        (_lost, "cannot be put in: AttributeError"),
        (print, "changes nothing"),
        (_sound, None),
    ],
)
def test_a_mutant_that_the_product_left_behind_is_said(apply: Callable[[], None], said: str | None) -> None:
    before, original = stale.owners(), mover._remove_from
    fault = stale.fault_of(Mutant("one", "", "test_kill.py", apply), before)
    assert fault is said or (said is not None and fault is not None and fault.startswith(said))
    assert mover._remove_from is original
    assert not hasattr(mover, "_removes_from")


def test_missing_checks_and_places_without_a_conftest_are_said() -> None:
    places = ("test_kill.py::test_gone[insert]", "tests/contract/test_disk.py::test_an_empty_disk_has_nothing",
              "test_kill.py::test_killed_at_every_effect[move]", "test_gone.py")  # fmt: skip
    found = dict(stale.missing_checks(Mutant(place, "", place, print) for place in places))
    assert list(found) == [*places[:2], places[3]]


def test_a_case_that_pytest_does_not_collect_is_said() -> None:
    test = "tests/unit/test_guards.py::test_numbers"
    places = (f"{test}[P7, P9-found1]", f"{test}[P7, P9]", "tests/unit/test_gone.py::test_numbers[one]", test)
    said = dict(stale.missing_cases(Mutant(place, "", place, print) for place in places))
    assert list(said) == [*places[1:3]]


def test_what_was_proved_is_kept_and_what_survived_is_run_again(tmp_path: Path) -> None:
    mutants = [Mutant(name, "", f"test_kill.py::{check}", print) for name, check in zip("abc", "xxy", strict=True)]
    asked: list[str] = []
    survivors = {"b"}

    def run(name: str, checks: tuple[str, ...], mutated: bool) -> Proved:
        asked.append(name)
        word = "SURVIVED" if name in survivors else "killed" if mutated else "passed"
        return Proved(name=name, checks=checks, word=word, seconds=0.0)

    def words() -> dict[str, str]:
        asked.clear()
        return {one.name: one.word for one in prove(mutants, 1, tmp_path / "kept", run)}

    file = "tests/crash/test_kill.py"
    assert words() == {file: "passed", "a": "killed", "b": "SURVIVED", "c": "killed"}
    assert asked == [file, "a", "b", "c"], "the checks of a file together without a mutant"
    with (tmp_path / "kept").open("ab") as notes:
        notes.write(b'{"name": "b", "che')
    survivors.clear()
    assert words() == {file: "passed", "a": "killed", "b": "killed", "c": "killed"}
    assert asked == ["b"]
    words()
    assert asked == []
