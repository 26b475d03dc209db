"""Opening Keeper where kazoo may be missing: users without replicated tables do not need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oplog.errors import UsageError
from tiering.config.settings import KeeperConfig

if TYPE_CHECKING:
    from zerocopy.keeper.client import Keeper


def open_keeper(settings: KeeperConfig, stopped: Callable[[], bool] = lambda: False) -> Keeper:
    """A session of its own, which stops waiting once the process stops. Raises `UsageError` where no
    servers are configured or kazoo is not installed."""
    try:
        from zerocopy.keeper.client import Keeper
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("kazoo"):
            raise
        raise UsageError("kazoo is not installed", hint="pip install 'frostline[replicas]'") from error
    return Keeper(settings, stopped)
