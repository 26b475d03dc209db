"""Die, or meet an error, at every side effect of the read cache, and lose what was not synced: answers stay right, the
limit holds, and the cache goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.conftest import RecordTally
from tests.crash.enumeration import Tally
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import Site
from tests.unit.tiering.parquet.cached_files import Remote, kept_files, used_bytes
from tiering.parquet.read_cache import ReadCache

pytestmark = pytest.mark.crash

ROOM = 1 << 20
NAMES = ("a", "b", "a", "c", "d", "a", "e", "f", "g", "a", "b", "h")
"""Some are read again, most of them do not fit beside one another."""


def place_of(site: Site) -> Path:
    return site.root / "cache"


def act(site: Site, mode: Mode, at: int) -> list[str]:
    """Queries one after the other, with the hook on; each must be right, whatever happens to what it keeps."""
    hook = Failpoints(mode, at)
    with hooked(hook):
        for name in NAMES:
            _query(site, name)
        ReadCache(place_of(site), ROOM).drop()
        _query(site, "a")
    return hook.names


def _query(site: Site, name: str) -> None:
    remote, cache = Remote(name), ReadCache(place_of(site), ROOM)
    for chunk in (1, 3, 0):
        start, stop = remote.chunk(chunk)
        assert b"".join(remote.opened(cache).pieces(start, stop)) == remote.data[start:stop]
    assert remote.read(cache) == remote.data
    cache.close()


def examine(site: Site, seed: int | None) -> list[str]:
    """What the next processes find; with a seed, after a power cut: of what nobody synced any page may be gone."""
    place = place_of(site)
    if seed is not None:
        _lose(place, random.Random(seed))
    elif used_bytes(place) > ROOM:
        return [f"{used_bytes(place)} bytes are kept"]
    found: list[str] = []
    for name in dict.fromkeys(NAMES):
        if Remote(name).read(ReadCache(place, ROOM)) != Remote(name).data:
            found.append(f"{name} is read wrongly")
        if used_bytes(place) > ROOM:
            found.append(f"{used_bytes(place)} bytes are kept after {name}")
    last = Remote(list(dict.fromkeys(NAMES))[-1])
    last.read(ReadCache(place, ROOM))
    if last.asked:
        found.append("what was just read is not kept")
    return found


def _lose(place: Path, chance: random.Random) -> None:
    for path in [*kept_files(place), *place.glob("figures")]:
        match chance.randrange(4):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])
            case 2:
                data = bytearray(path.read_bytes())
                for start in range(0, len(data), 4096):
                    if chance.random() < 0.3:
                        data[start : start + 4096] = bytes(len(data[start : start + 4096]))
                path.write_bytes(data)


@pytest.mark.parametrize("mode", ["kill", "raise_before", "raise_after"])
def test_stopped_at_every_effect(mode: Mode, server: ForkServer, site: Site, record_tally: RecordTally) -> None:
    site.root.mkdir(parents=True)
    site.save()
    tally = Tally()
    names = server.value(act, site, "count", 0)
    assert {"fs.write", "fs.rename", "fs.unlink", "fs.mkdir"} <= set(names)
    tally.effects = len(names)
    for at in tally.due(f"read cache {mode}", range(1, tally.effects + 1)):
        site.reset()
        if mode == "kill":
            server.run(act, site, mode, at)
        elif (outcome := server.run(act, site, mode, at)).kind != "returned" and "drop" not in outcome.trace:
            tally.add(f"{mode} {at}", [f"a query failed: {outcome.error}"])
        for seed in (None, at):
            tally.add(f"{mode} {at}", server.value(examine, site, seed))
    record_tally(tally)
    assert tally.effects > 60, "the enumeration proved nothing"
    assert not tally.violations, "\n".join(tally.violations[:20])
