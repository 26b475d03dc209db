"""A node as `keeper ls` shows it."""

from __future__ import annotations

import msgspec


class KeeperNode(msgspec.Struct, frozen=True):
    """Of the children of a path."""

    name: str
    bytes: int
    version: int
    children: int
    ephemeral: bool
