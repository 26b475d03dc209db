"""Seeds, one after the other: which fails, and with the least of what it needs to fail."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.log_world import LogWorld
from tests.simulation.plan import Plan, planned, shrunk
from tests.simulation.tables_world import TablesWorld
from tests.simulation.world import World

_WORLDS: dict[str, type[World]] = {"log": LogWorld, "tables": TablesWorld}
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Found:
    """A seed that fails, and how."""

    seed: int
    plan: Plan
    error: BaseException

    def __str__(self) -> str:
        where = "".join(traceback.format_exception(self.error)[-6:])
        return f"seed {self.seed}: {type(self.error).__name__}: {self.error}\n  {self.plan}\n{where}"


@contextmanager
def homes() -> Iterator[Path]:
    """A directory for the machines, in memory where there is some."""
    where = Path(tempfile.mkdtemp(prefix="frostline-simulated-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def tried(seed: int, plan: Plan, home: Path, happened: Counter[str] | None = None) -> Found | None:
    """Run the plan; what was wrong, or None."""
    world = _WORLDS[plan.world](plan, str(seed), home / "world")
    try:
        world.run()
    except Exception as error:
        return Found(seed, plan, error)
    finally:
        if happened is not None:
            happened.update(world.happened)
            happened.update({f"fault {kind}": count for kind, count in world.bucket.fired.items()})
            happened["deaths"] += sum(machine.deaths for machine in world.machines)
    return None


def smallest(found: Found, home: Path) -> Found:
    """The same seed with less of what it does, which fails with an error of the same kind."""
    last = [found]

    def fails(plan: Plan) -> bool:
        again = tried(found.seed, plan, home)
        if again is None or type(again.error) is not type(found.error):
            return False
        last.append(again)
        return True

    shrunk(found.plan, fails)
    return last[-1]


def plan_of(seed: int, world: str) -> Plan | None:
    """The seed's plan, when it is one of that world ("": of any)."""
    plan = planned(seed)
    kind = plan.world if plan.conditional else "lease"
    return plan if world in ("", kind) else None
