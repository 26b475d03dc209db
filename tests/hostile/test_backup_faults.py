"""A repository that fails in the middle, or changes what passes, and each thing that is done with backups: an error
with its exit code, nothing half done, and the same command ends it once the repository is well. I12, I15.

| what the repository does | what used to happen |
|---|---|
| refuses to show a header (403) | the backup was called damaged, and `list` ended with 0 |
| flips a bit of an answer, once | `verify` called the object damaged for good; a restore failed |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disks.stores.open import open_store
from oplog.errors import AccessDenied, Damaged, FrostlineError, NotFound, Throttled
from tests.backups import TABLE, Machine, filled, insert, machine_on
from tests.faulty_store import Fault, FaultyStore, bit_flipped, truncated

COPY = "demo.copy"
ERRORS: dict[str, FrostlineError] = {
    "403": AccessDenied("refused (403)", hint="look at the credentials"),
    "503": Throttled("slow down (503)", hint="try again later"),
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[FaultyStore]:
    """Every store that a repository was opened with since, the newest last; what the first holds strikes in all."""
    stores: list[FaultyStore] = []

    def wrapped(*arguments: Any, **options: Any) -> FaultyStore:
        stores.append(FaultyStore(open_store(*arguments, **options)))
        stores[-1].faults = stores[0].faults
        return stores[-1]

    monkeypatch.setattr("backup.repository.open_store", wrapped)
    return stores


@pytest.fixture
def machine(tmp_path: Path, faults: list[FaultyStore]) -> Machine:
    """A machine with one backup, and an insert since."""
    made = filled(machine_on(tmp_path))
    made.init()
    made.create("one")
    with made.open() as store:
        insert(store, 5000)
    return made


def listed(machine: Machine) -> list[str]:
    with machine.repository() as repository:
        return [item.header.name for item in repository.backups() if item.header is not None]


DEEDS: dict[str, Callable[[Machine], object]] = {
    "list": listed,
    "create": lambda machine: machine.create("two"),
    "verify": lambda machine: machine.verify("one"),
    "verify all data": lambda machine: machine.verify("one", share=1.0),
    "restore": lambda machine: machine.restore("one", f"{TABLE}:{COPY}"),
}


def tables(machine: Machine) -> list[str]:
    with machine.open() as store:
        return sorted(definition.full_name for definition in store.definitions())


def error_of(deed: Callable[[Machine], object], machine: Machine) -> FrostlineError | None:
    try:
        deed(machine)
    except FrostlineError as error:
        return error
    return None


@pytest.mark.in_turn
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("status", ERRORS)
def test_a_server_that_fails_in_the_middle(machine: Machine, faults: list[FaultyStore], deed: str, status: str) -> None:
    """From the n-th request on, for ever: the error of the server, and no table."""
    before, error = machine.rows(), ERRORS[status]
    for skip in (*range(8), 10, 13, 17, 25, 100):
        faults[0].faults.append(Fault("*", error, skip=skip, times=None))
        if skip == 100:
            DEEDS[deed](machine)
            break
        raised = error_of(DEEDS[deed], machine)
        if raised is None:
            assert not faults[-1].injected, f"{deed} did not notice what struck at {skip}"
            break
        assert raised.exit_code == error.exit_code, (skip, raised)
        faults[0].faults.clear()
        assert tables(machine) == [TABLE], skip
    faults[0].faults.clear()
    assert skip > 2
    assert machine.rows() == before
    assert tables(machine) == ([COPY, TABLE] if deed == "restore" else [TABLE])
    assert all(result.ok for result in machine.verify(None, share=1.0))
    if deed == "create":
        assert listed(machine) == ["one", "two"]


@pytest.mark.parametrize("only", ["packs/", "blobs/", "lists/"])
def test_what_is_gone_in_the_middle(machine: Machine, faults: list[FaultyStore], only: str) -> None:
    """A 404 for what the listing showed: verify names it, a restore makes no table of the rest, and nothing is called
    damaged once it comes again."""
    gone = NotFound("no such object (404)")
    faults[0].faults.append(Fault("get", gone, key=only, times=None))
    (result,) = machine.verify("one", share=1.0)
    assert any(only in problem.text for problem in result.problems)
    with pytest.raises(NotFound):
        machine.restore("one", f"{TABLE}:{COPY}")
    faults[0].faults.clear()
    assert tables(machine) == [TABLE]
    (result,) = machine.verify("one", share=1.0)
    assert result.problems == ()
    machine.restore("one", f"{TABLE}:{COPY}")
    assert tables(machine) == [COPY, TABLE]


@pytest.mark.in_turn
@pytest.mark.parametrize("only", ["packs/", "blobs/", "lists/", "backups/"])
@pytest.mark.parametrize("change", [bit_flipped, truncated])
def test_what_changes_on_the_way_is_no_damage(
    machine: Machine, faults: list[FaultyStore], only: str, change: Callable[[bytes], bytes]
) -> None:
    """What arrived otherwise than it was written is asked for once more before anything is called damaged."""
    for deed in ("list", "verify all data", "restore"):
        faults[0].faults.append(Fault("get", key=only, change=change))
        DEEDS[deed](machine)
        faults[0].faults.clear()
    assert listed(machine) == ["one"]
    assert all(result.ok for result in machine.verify(None, share=1.0))
    assert machine.create("two").verified
    assert machine.rows(COPY) < machine.rows()


@pytest.mark.parametrize("only", ["packs/", "blobs/", "lists/"])
def test_what_is_changed_each_time_is_never_restored(machine: Machine, faults: list[FaultyStore], only: str) -> None:
    faults[0].faults.append(Fault("get", key=only, times=None, change=bit_flipped))
    with pytest.raises(Damaged):
        machine.restore("one", f"{TABLE}:{COPY}")
    faults[0].faults.clear()
    assert tables(machine) == [TABLE]
