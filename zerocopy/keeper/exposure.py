"""What somebody on the network could do to replicas, by the configuration and by whom nodes belong to. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tiering.config.settings import InterserverConfig, KeeperConfig

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


class Exposure(msgspec.Struct, frozen=True):
    """One thing that others may do or see. `local`: only who is on this machine."""

    subject: str
    check: str
    message: str
    hint: str
    local: bool


def exposures(keeper: KeeperConfig, interserver: InterserverConfig, *, is_open: bool | None) -> Iterator[Exposure]:
    """`is_open`: whether Keeper lets anybody change the root's nodes; None where that is not known."""
    local = all(host.startswith(_LOOPBACK) for host in keeper.hosts)
    if is_open or (is_open is None and not keeper.user):
        what = "Keeper is open: anyone who reaches it can drop parts of replicated tables and mislead replicas"
        hint = "set keeper.user and keeper.password, and let only replicas reach Keeper; nodes made before stay open"
        yield Exposure("keeper", "open-keeper", what, hint, local)
    if keeper.user and not keeper.tls:
        what = "the password of keeper.user is sent over the network unencrypted"
        yield Exposure("keeper", "keeper-password", what, "set keeper.tls and keeper.ca_bundle", local)
    if interserver.secret and not interserver.certificate:
        what = "replicas give their parts over plain HTTP: anyone who sees the network sees the rows"
        hint = "set interserver.certificate, certificate_key and ca_bundle on all replicas"
        inside = (interserver.advertise or interserver.host).startswith(_LOOPBACK)
        yield Exposure("interserver", "plain-http", what, hint, inside)
