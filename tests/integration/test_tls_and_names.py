"""S3 over TLS with an authority of one's own, and with the bucket in the host name: every client, and queries.

The server is a real one behind a proxy of ours that ends TLS. Guards I15: a wrong certificate is an error in words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disks.stores.base import ByteRange, ObjectStore
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from oplog.errors import FrostlineError, UsageError
from tests.certificates import context
from tests.certificates import made as certificates_of
from tests.meddling import Exchange, meddling
from tests.servers import Server
from tiering.cli import main as cli

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (`ca.pem`) and what it signed for 127.0.0.1 and localhost (`server.pem` with its key)."""
    return certificates_of(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def secure(request: pytest.FixtureRequest, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(s3, "_probed", {})
    with meddling(request.getfixturevalue(request.param), tls=context(certificates)) as server:
        yield server


def open_bucket(server: Server, bucket: str, **more: Any) -> ObjectStore:
    config = server.disk(f"s3://{bucket}/some/prefix/", retry_seconds=1.0, **more)
    return open_store(config)


def use_everything(store: ObjectStore) -> None:
    """Each of the three clients, in both directions."""
    large = b"0123456789abcdef" * (9 * MIB // 16)
    for key, data in (("a", b"small"), ("large", large)):
        store.put(key, data, sha256=hashlib.sha256(data).digest(), metadata={"path": "x"})
        assert store.get(key) == data
    store.put_if_absent("b", b"", sha256=hashlib.sha256(b"").digest())
    assert store.get("large", ByteRange(5, 10)) == large[5:10]
    assert store.head("a").metadata["path"] == "x"
    assert [info.key for info in store.list()] == ["a", "b", "large"]
    store.copy("a", "c")
    assert list(store.list_uploads()) == []
    assert set(store.delete(["a", "b", "c", "large"]).values()) == {None}
    assert store.clock_skew() is not None


@pytest.mark.in_turn
@pytest.mark.parametrize("way", ["config", "AWS_CA_BUNDLE"])
def test_an_authority_of_ones_own(
    way: str, secure: Server, certificates: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = str(certificates / "ca.pem")
    if way == "AWS_CA_BUNDLE":
        monkeypatch.setenv("AWS_CA_BUNDLE", bundle)
    bucket = _plain(request).new_bucket()
    with open_bucket(
        secure, bucket, multipart_threshold_bytes=8 * MIB, ca_bundle=bundle if way == "config" else None
    ) as store:
        use_everything(store)


def _plain(request: pytest.FixtureRequest) -> Server:
    """The server that `secure` stands before, for what is set up behind the store's back."""
    kind = request.node.callspec.params.get("secure", "ministack")
    found: Server = request.getfixturevalue(kind)
    return found


def test_an_unknown_authority_is_refused(secure: Server, request: pytest.FixtureRequest) -> None:
    """Never silently without a check: neither by a put, a get, a listing nor a HEAD."""
    with open_bucket(secure, _plain(request).new_bucket()) as store:
        for call in (
            lambda: store.put("a", b"", sha256=hashlib.sha256(b"").digest()),
            lambda: store.get("a"),
            lambda: list(store.list()),
            lambda: store.head("a"),
        ):
            with pytest.raises(FrostlineError, match=r"no answer|certificate"):
                call()


def test_a_bundle_that_is_missing_is_named(secure: Server, tmp_path: Path) -> None:
    with (
        open_bucket(secure, "b", ca_bundle=str(tmp_path / "none.pem")) as store,
        pytest.raises(UsageError, match=r"none\.pem"),
    ):
        list(store.list())


@pytest.mark.parametrize("content", [b"", b"no certificate", bytes(range(256))], ids=["empty", "text", "bytes"])
def test_a_bundle_without_certificates_is_named(secure: Server, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "none.pem").write_bytes(content)
    with (
        open_bucket(secure, "b", ca_bundle=str(tmp_path / "none.pem")) as store,
        pytest.raises(UsageError, match=r"none\.pem has no certificates"),
    ):
        list(store.list())


@pytest.mark.in_turn
def test_a_table_on_an_https_server(
    secure: Server,
    certificates: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command line to the query engine's own client."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    settings = {
        "URL": f"s3://{_plain(request).new_bucket()}/p/",
        "ENDPOINT_URL": secure.endpoint_url,
        "CA_BUNDLE": str(certificates / "ca.pem"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"FROSTLINE_DISKS__S3__{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", secure.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secure.secret_access_key)
    (tmp_path / "rows.csv").write_text("k,v\n" + "".join(f"{number},{number % 7}\n" for number in range(1000)))
    for arguments in (
        ("table", "create", "d.t", "--like", "rows.csv", "--order-by", "k"),
        ("insert", "d.t", "rows.csv"),
        ("move", "d.t", "--partition", "all", "--to-disk", "s3"),
    ):
        assert cli.run(arguments) == 0
    capsys.readouterr()
    assert cli.run(["query", "SELECT count(*), sum(k) FROM d.t", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [[1000, 499500]]
    assert cli.run(["doctor", "s3"]) == 0


def test_the_bucket_in_the_host_name(ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual-host style: through a proxy, because no name server knows `<bucket>.s3.test`."""
    monkeypatch.setattr(s3, "_probed", {})
    hosts: set[str] = set()
    bucket = ministack.new_bucket()

    def request(headers: dict[str, str]) -> None:
        hosts.add(headers["host"])

    with meddling(ministack, request=request) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.endpoint_url)
        server = Server("ministack", "http://s3.test", ministack.access_key_id, ministack.secret_access_key)
        with open_bucket(server, bucket, addressing_style="virtual", multipart_threshold_bytes=8 * MIB) as store:
            use_everything(store)
    assert hosts == {f"{bucket}.s3.test"}


def test_the_exchange_is_what_a_test_sees(ministack: Server) -> None:
    """The proxy itself: without meddling nothing changes."""
    seen: list[Exchange] = []
    with meddling(ministack, answer=seen.append) as server, open_bucket(server, ministack.new_bucket()) as store:
        use_everything(store)
    assert {exchange.method for exchange in seen} == {"PUT", "GET", "HEAD", "POST"}
