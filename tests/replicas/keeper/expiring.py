"""Sessions that end."""

from __future__ import annotations

from kazoo.client import KazooClient

from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper


def expire(keeper: Keeper, settings: KeeperConfig) -> None:
    """End the session from elsewhere: for the server it is over."""
    other = KazooClient(settings.hosts[0], client_id=keeper._client.client_id)
    other.start(timeout=120)
    other.stop()
    other.close()
