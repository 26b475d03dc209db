"""Nothing changes a file outside of an effect: else the enumeration would step over it."""

from __future__ import annotations

import pytest

from tests.crash.harness import Audit, ForkServer
from tests.crash.scenarios import SCENARIOS
from tests.crash.site import Site

pytestmark = pytest.mark.crash


def _is_lock(path: str) -> bool:
    """Lock files hold no data; that one exists means nothing."""
    return path.endswith(".lock")


def audited(name: str, site: Site) -> tuple[int, list[str]]:
    """The whole scenario, from an empty directory: how many changes were seen, and those outside of an effect."""
    site.root.mkdir()
    scenario = SCENARIOS[name]
    audit = Audit(site.root, ignored=_is_lock)
    if scenario.fresh:
        scenario.act(None, site)  # type: ignore[arg-type]
    else:
        with site.open() as store:
            scenario.prepare(store, site)
            scenario.act(store, site)
    site.open().close()
    audit.close()
    return audit.seen, audit.holes


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("rebuild_on_open", "restore_cache")])
def test_every_change_is_an_effect(server: ForkServer, site: Site, name: str) -> None:
    seen, holes = server.value(audited, name, site)
    assert seen > 10, "the audit saw nothing"
    assert not holes, "\n".join(holes)
