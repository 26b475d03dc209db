"""Die at every side effect of the inbox, and let the next run go on: each row is in the table once, each file is in one
place, and no report says more than is so (P15)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import RecordTally
from tests.crash.enumeration import Tally
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import TABLE as NAME
from tests.crash.site import Site, events
from tiering.config.settings import InboxConfig
from tiering.daemon.inbox.inbox import Inbox
from tiering.engine.store import Store

pytestmark = pytest.mark.crash

ROW = "2026-0{month}-02 00:00:00,{key},text"
FILES = {
    "a.csv": [(1, 1), (2, 2)],
    "b.csv": [(1, 3)],
    "c.csv": [(1, 3)],  # the bytes of b.csv
    "d.csv": [(9, 9), (99, 4)],  # no such month
}
BELOW = {"a.csv": "text=text"}
"""In a directory that is a column."""
KEYS = [1, 2, 3]


def home(site: Site) -> Path:
    return site.root / "inbox" / NAME


def bring_in(site: Site, store: Store) -> None:
    inbox = Inbox(store, InboxConfig(path=str(site.root / "inbox"), stable_seconds=0))
    done = inbox.once(wait=lambda seconds: None)
    assert not done.problems, done.problems


def prepare(site: Site) -> None:
    site.root.mkdir(parents=True, exist_ok=True)
    with site.open() as store:
        store.create_table(events())
    home(site).mkdir(parents=True)
    for name, rows in FILES.items():
        lines = [ROW.format(month=month, key=key) for month, key in rows]
        path = home(site) / BELOW.get(name, "") / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["ts,key,text", *lines, ""]))
    site.save()


def act(site: Site, mode: Mode, at: int) -> list[str]:
    """Bring the files in, with the hook on."""
    hook = Failpoints(mode, at)
    with site.open() as store, hooked(hook):
        bring_in(site, store)
    return hook.names


def fail(site: Site, mode: Mode, at: int) -> list[str]:
    """An error instead of an effect: what it makes of it is not judged, what it leaves is."""
    hook = Failpoints(mode, at)
    with site.open() as store:
        try:
            with hooked(hook):
                bring_in(site, store)
        except Exception:
            pass
    return examine(site)


def examine(site: Site) -> list[str]:
    """Look, let the next run go on, and look again."""
    with site.open() as store:
        violations = [f"before: {line}" for line in said_more(site, keys(store))]
        bring_in(site, store)
        store.refresh()
        violations += wrong(site, store)
    return violations


def wrong(site: Site, store: Store) -> list[str]:
    found = []
    if (there := keys(store)) != KEYS:
        found.append(f"the table has {there}")
    places = {name: [path.relative_to(home(site)).parts[0] for path in home(site).rglob(name)] for name in FILES}
    expected = {"a.csv": ["done"], "b.csv": ["done"], "c.csv": ["done"], "d.csv": ["failed"]}
    if places != expected:
        found.append(f"the files are in {places}")
    left = [path.name for path in home(site).rglob(".*") if path.is_file()]
    if left:
        found.append(f"left over: {left}")
    reports = {path.name: json.loads(path.read_text())["state"] for path in home(site).rglob("*.report.json")}
    states = {"a.csv": "done", "b.csv": "done", "c.csv": "duplicate", "d.csv": "failed"}
    if reports != {f"{name}.report.json": state for name, state in states.items()}:
        found.append(f"the reports say {reports}")
    return [*found, *said_more(site, there)]


def said_more(site: Site, there: list[int]) -> list[str]:
    """Files that are called done while their rows are not in the table."""
    found = []
    for path in (home(site) / "done").rglob("*.csv*"):
        rows = FILES[path.name.removesuffix(".report.json")]
        if missing := [key for _, key in rows if key not in there]:
            found.append(f"{path.name} is called done, and its rows {missing} are not in")
    return found


def keys(store: Store) -> list[int]:
    return sorted(row["key"] for row in store.table(NAME).scan(columns=["key"]).read_all().to_pylist())


def enumerate_all(server: ForkServer, site: Site, name: str, strike: Callable[[int], list[str]], tally: Tally) -> None:
    tally.effects = len(server.value(act, site, "count", 0))
    for at in tally.due(name, range(1, tally.effects + 1)):
        site.reset()
        tally.add(f"{name} {at}", strike(at))


def test_killed_at_every_effect(server: ForkServer, site: Site, record_tally: RecordTally) -> None:
    server.value(prepare, site)

    def kill(at: int) -> list[str]:
        server.run(act, site, "kill", at)
        found: list[str] = server.value(examine, site)
        return found

    tally = Tally()
    enumerate_all(server, site, "inbox", kill, tally)
    record_tally(tally)
    assert tally.effects > 40, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raise_before", "raise_after"])
def test_an_error_at_every_effect(server: ForkServer, site: Site, record_tally: RecordTally, mode: Mode) -> None:
    server.value(prepare, site)
    tally = Tally()
    enumerate_all(server, site, f"inbox {mode}", lambda at: server.value(fail, site, mode, at), tally)
    record_tally(tally)
    assert not tally.violations, "\n".join(tally.violations[:20])
