"""Shares of the crash points: disjoint, together everything, and never nothing by mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import turns
from tests.servers import REPOSITORY
from tests.turns import EVERYTHING, TEST_TURNS, TURNS, Turn


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("operation", ["kill move", "kill merge", "power cut insert"])
def test_every_point_has_one_turn(operation: str, count: int) -> None:
    shares = [{at for at in range(count) if Turn(number, TURNS).takes(operation, at)} for number in range(1, TURNS + 1)]
    assert sorted(point for share in shares for point in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_operations_begin_at_points_of_their_own() -> None:
    firsts = {min(at for at in range(3) if Turn(1, 3).takes(f"kill {name}", at)) for name in "abcdef"}
    assert len(firsts) > 1


def test_the_environment_names_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(turns.ENVIRONMENT, "2/3")
    assert turns.current() == Turn(2, 3)
    assert [turns.examples(most) for most in (300, 20, 8)] == [100, 10, 8]
    assert [turns.histories(most, 5).max_examples for most in (30, 8, 2)] == [10, 2, 1]
    for stride in (1, 3, 9):
        assert len(turns.due("an operation", range(1, 30 * stride, stride))) == 10


def test_without_a_turn_everything_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", None):
        monkeypatch.delenv(turns.ENVIRONMENT, raising=False)
        if value is not None:
            monkeypatch.setenv(turns.ENVIRONMENT, value)
        assert turns.current() == EVERYTHING
        assert turns.examples(300) == turns.histories(300, 5).max_examples == 300
        assert turns.due("an operation", range(30)) == list(range(30))


@pytest.mark.parametrize(("of", "times"), [(TURNS, TURNS // TEST_TURNS), (TEST_TURNS, 1), (3, 1)])
def test_each_test_has_its_turns(of: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the turns of crash points it has two, and so have random examples."""
    names = [f"tests/a.py::test_{number}" for number in range(11)]
    left = []
    for number in range(1, of + 1):
        monkeypatch.setenv(turns.ENVIRONMENT, f"{number}/{of}")
        left.append(turns.left_out(reversed(names)))
        assert turns.examples(300) == 300 * times // of
    assert sorted(name for share in left for name in set(names) - share) == sorted(names * times)
    monkeypatch.delenv(turns.ENVIRONMENT)
    assert turns.left_out(names) == set()


@pytest.mark.parametrize("one_in", range(1, TEST_TURNS + 1))
def test_each_test_comes_once_in_so_many_consecutive_turns(one_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/a.py::test_{number}" for number in range(11)]
    left = []
    for number in (*range(1, TURNS + 1), *range(1, TURNS + 1)):
        monkeypatch.setenv(turns.ENVIRONMENT, f"{number}/{TURNS}")
        left.append(turns.left_out(names, one_in=one_in))
    for first in range(len(left) - one_in + 1):
        assert set.intersection(*left[first : first + one_in]) == set()


def test_servers_that_run_in_turn_come_once_in_three_turns() -> None:
    contract = (REPOSITORY / "tests/contract/test_store.py").read_text()
    for server in ("seaweedfs", "moto"):
        assert f'pytest.param("{server}", marks=pytest.mark.in_turn(one_in=3))' in contract


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "2/", "x/3", "2/3/4", "-1/3"])
def test_what_is_no_turn_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(turns.ENVIRONMENT, text)
    with pytest.raises(ValueError, match="turn"):
        turns.current()


def test_a_checkout_without_git_has_a_turn(tmp_path: Path) -> None:
    for place in (REPOSITORY, tmp_path):
        turn = turns.of_commit(place)
        assert turn == turns.of_commit(place)
        assert turn.of == TURNS


def test_the_summary_counts_the_points_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run the tests, another process prints what they did."""
    monkeypatch.setenv(turns.ENVIRONMENT, "1/3")
    test = "tests/crash/test_disk_transactions.py::test_killed_at_every_effect[open_local-replace-alone]"
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    summary = done.stdout.partition("crash points (FROSTLINE_TURN=1/3)")[2]
    assert "runs in all" in summary
    assert "test_killed_at_every_effect[open_local-replace-alone]" in summary
