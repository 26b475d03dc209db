"""What `doctor` and `keeper check` say of who could do what to replicas."""

from __future__ import annotations

import msgspec
import pytest

from tiering.config.settings import InterserverConfig, KeeperConfig
from zerocopy.keeper.exposure import exposures

KEEPER = KeeperConfig(hosts=("zk.example.org:2181",), user="frostline", password="a password", tls=True)
PEERS = InterserverConfig(secret="s" * 16, certificate="a.crt", certificate_key="a.key", ca_bundle="ca.pem")


def checks(keeper: KeeperConfig, peers: InterserverConfig, *, is_open: bool | None = False) -> list[str]:
    return [one.check for one in exposures(keeper, peers, is_open=is_open)]


def test_nothing_is_said_where_all_is_locked() -> None:
    assert checks(KEEPER, PEERS) == []
    assert checks(KEEPER, PEERS, is_open=None) == []


@pytest.mark.parametrize("is_open", [True, None])
def test_a_keeper_that_anybody_may_change(is_open: bool | None) -> None:
    """Also where a user is configured, and the nodes were made before."""
    keeper = KEEPER if is_open else msgspec.structs.replace(KEEPER, user="", password="")
    assert checks(keeper, PEERS, is_open=is_open) == ["open-keeper"]


def test_a_password_and_rows_that_go_unencrypted() -> None:
    assert checks(msgspec.structs.replace(KEEPER, tls=False), PEERS) == ["keeper-password"]
    assert checks(KEEPER, msgspec.structs.replace(PEERS, certificate=None)) == ["plain-http"]
    assert checks(KEEPER, InterserverConfig()) == [], "nothing is given"


def test_what_stays_on_this_machine_is_a_note() -> None:
    keeper = KeeperConfig(hosts=("127.0.0.1:2181", "[::1]:2182", "localhost:2183"))
    assert [one.local for one in exposures(keeper, InterserverConfig(secret="s" * 16), is_open=True)] == [True, True]
    outside = InterserverConfig(secret="s" * 16, host="0.0.0.0")
    assert [one.local for one in exposures(KEEPER, outside, is_open=False)] == [False]
