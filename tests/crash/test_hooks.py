"""Die at every side effect of telling hooks, and begin again: each event is told, lasting trouble only once (P15)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from disks import effects
from tests.crash import enumeration
from tests.crash.conftest import RecordTally
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import Site
from tiering.config.settings import HookConfig
from tiering.daemon.hooks.outbox import HookMessage, Outbox

pytestmark = pytest.mark.crash

HOOKS = {"a": HookConfig(command=("a",)), "b": HookConfig(command=("b",), events=("backup",))}


class World:
    """An outbox whose hooks write down what they hear; the diary outlives it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.box = Outbox(site.root / "state", HOOKS, deliver=self._deliver)

    def _deliver(self, hook: HookConfig, event: bytes) -> None:
        told = msgspec.json.decode(event, type=HookMessage)
        self.note(f"heard {hook.command[0]} {told.id} {told.text}")

    def note(self, line: str) -> None:
        with effects.op("test.note", line), (self.site.root / "diary").open("a") as file:
            file.write(f"{line}\n")

    def deliver(self) -> None:
        """All that waits, in this thread: effects then come in one order."""
        for name in HOOKS:
            self.box.deliver_waiting(name)


def act(site: Site, mode: Mode, at: int) -> list[str]:
    hook = Failpoints(mode, at)
    world = World(site)
    with hooked(hook):
        for event, text, phase in (
            ("failure", "f1", "begins"),
            ("failure", "f1-again", "begins"),
            ("backup", "b1", "once"),
            ("recovery", "r1", "ends"),
            ("failure", "f2", "begins"),
        ):
            world.box.tell(event, "job x" if event == "backup" else "passes", text, phase)  # type: ignore[arg-type]
            world.note(f"told {text}")
            if text in ("b1", "r1"):
                world.deliver()
        world.note("end")
    return hook.names


def examine(site: Site) -> list[str]:
    """The next daemon delivers what is left; trouble goes on meanwhile."""
    world = World(site)
    diary = site.root / "diary"
    before = diary.read_text().splitlines() if diary.exists() else []
    if "told f2" in before:
        world.box.tell("failure", "passes", "f2-again", "begins")
    world.deliver()
    lines = diary.read_text().splitlines() if diary.exists() else []
    heard = {(line.split()[1], line.split()[3]) for line in lines if line.startswith("heard")}
    found = []
    for line in before:
        if line.startswith("told ") and not line.endswith("-again"):
            text = line.split()[1]
            names = ("a", "b") if text == "b1" else ("a",)
            found += [f"{name} never heard of {text}" for name in names if (name, text) not in heard]
    found += [f"{name} heard again of what goes on: {text}" for name, text in heard if text.endswith("-again")]
    for name, text in heard:
        ids = {line.split()[2] for line in lines if line.startswith(f"heard {name} ") and line.endswith(f" {text}")}
        if len(ids) > 1:
            found.append(f"{text} came to {name} as {len(ids)} events")
    return found


def test_killed_at_every_effect(server: ForkServer, site: Site, record_tally: RecordTally) -> None:
    Path(site.root / "state").mkdir(parents=True)
    site.save()
    tally = enumeration.kill_and_examine(server, site, "hooks", act, examine)
    record_tally(tally)
    assert tally.effects > 40, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])
