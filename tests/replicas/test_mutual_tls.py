"""TLS between replicas: each shows a certificate of one authority, and who has none is refused."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from oplog.errors import UsageError
from tests import certificates
from tests.replicas.machines import SECRET, Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.replica.connections import connections


@pytest.fixture
def shared_url() -> str:
    return ""


def secured(one: Machine, settings: KeeperConfig, place: Path) -> None:
    """It speaks TLS by the certificates there."""
    files = {"certificate": "server.crt", "certificate_key": "server.key", "ca_bundle": "ca.pem"}
    shown = {key: str(place / file) for key, file in files.items()}
    one.write_configuration(settings, interserver={"secret": SECRET, "port": 0, **shown})


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    place = tmp_path / "authority"
    place.mkdir()
    return certificates.made(place)


@pytest.mark.in_turn
def test_replicas_that_show_certificates_give_each_other_parts(
    a: Machine, b: Machine, settings: KeeperConfig, authority: Path
) -> None:
    for one in (a, b):
        secured(one, settings, authority)
    a.insert(1, 2)
    with a.serving() as store:
        server = connections(store.context).server
        assert server is not None
        anybody = ssl.create_default_context(cafile=authority / "ca.pem")
        with pytest.raises(OSError) as refused:  # it is who it says, and wants to know who asks
            urllib.request.urlopen(f"https://{server.address}/", context=anybody).read()
        assert not isinstance(refused.value, urllib.error.HTTPError), "it was heard, without a certificate"
        assert b.sync()["fetched"] == ["all_0_0_0"]
    assert b.keys() == [1, 2]


@pytest.mark.in_turn
def test_plain_speech_or_another_authority_gets_nothing(
    a: Machine, b: Machine, settings: KeeperConfig, authority: Path, tmp_path: Path
) -> None:
    """Though it knows the secret."""
    secured(a, settings, authority)
    a.insert(1)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    with a.serving():
        b.sync(code=1)
        secured(b, settings, certificates.made(stranger))
        assert "certificate" in b.sync(code=1)["postponed"][0]["reason"]
        assert b.keys() == []
        secured(b, settings, authority)
        b.sync()
    assert b.keys() == [1]


def test_what_is_lacking_is_said(machine: Machines, settings: KeeperConfig, authority: Path) -> None:
    one = machine("one")
    one.write_configuration(settings, interserver={"secret": SECRET, "certificate": str(authority / "server.crt")})
    one("table", "list", code=2)
    assert "belong together" in one.error
    (authority / "server.key").write_text("no key")
    secured(one, settings, authority)
    one.run("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--replicated")
    with pytest.raises(UsageError, match="certificates of interserver cannot be used"), one.serving():
        pass
