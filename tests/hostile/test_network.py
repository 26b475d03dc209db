"""A server, or a network, that means no good, and the real command line. Guards I15 (loud); nothing waits for ever.

| what it does | what is answered |
|---|---|
| shows a certificate of its own making, an expired one, another host's | exit 5 at once: which, and what to do |
| sends, or takes, a byte now and then, for ever | exit 5 after the time that a silence is given, twice |
| announces a body of an exabyte | exit 5; no memory is taken for it |
| names another ETag, or none | nothing goes by an ETag but a multipart upload, which fails and leaves no object |
| answers with other headers of encryption (SSE) | nothing goes by them |
| sends the checksum of the whole object beside a range (rclone) | the rows: each page is compared |
| answers each request with an endless header, a negative length, TLS | exit 5 |
| answers each request with a page of HTML | exit 5: what is not believed |
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from disks.stores.s3 import requests
from disks.stores.s3 import store as s3
from oplog.errors import FrostlineError, NotFound
from tests import certificates
from tests.command_line import Frostline
from tests.meddling import Exchange, meddling
from tests.servers import Server
from tiering.engine.store import Store

MIB = 1024 * 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"


@pytest.fixture(autouse=True)
def _no_probe_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_probed", {})


@pytest.fixture
def table(frostline: Frostline, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Frostline:
    """100 rows in the bucket, 100 on the SSD, and no long patience."""
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
    monkeypatch.setenv("FROSTLINE_DISKS__S3__RETRY_SECONDS", "1")
    for name, first in (("cold", 0), ("hot", 100)):
        Path(f"{name}.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(first, first + 100)))
    frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
    frostline("insert", "d.t", "cold.csv")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("insert", "d.t", "hot.csv")
    return frostline


def total(frostline: Frostline) -> list[int]:
    return [int(value) for value in frostline.json("query", "select count(*), sum(n) from d.t")["rows"][0]]


class TestCertificates:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (certificates.self_signed, ("self-signed", "ca_bundle", "AWS_CA_BUNDLE")),
            (certificates.made, ("unable to get local issuer", "ca_bundle")),
        ],
        ids=["self-signed", "unknown authority"],
    )
    def test_one_that_nobody_vouches_for(
        self,
        table: Frostline,
        ministack: Server,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        make: Callable[[Path], Path],
        says: tuple[str, ...],
    ) -> None:
        place = make(tmp_path)
        with meddling(ministack, tls=certificates.context(place)) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
            self.refused(table, says)
            monkeypatch.setenv("FROSTLINE_DISKS__S3__CA_BUNDLE", str(place / "ca.pem"))
            assert total(table) == [201, 20900]
            monkeypatch.delenv("FROSTLINE_DISKS__S3__CA_BUNDLE")
            monkeypatch.setenv("AWS_CA_BUNDLE", str(place / "ca.pem"))
            assert total(table) == [201, 20900]
            assert table.json("fsck", "--read-data")["ok"]

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("days", "names", "says"),
        [
            (-1, "IP:127.0.0.1", ("expired", "clock")),
            (2, "DNS:s3.elsewhere.test", ("mismatch", "endpoint_url")),
        ],
        ids=["expired", "another host's"],
    )
    def test_one_that_is_not_good_any_more(
        self,
        table: Frostline,
        ministack: Server,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        days: int,
        names: str,
        says: tuple[str, ...],
    ) -> None:
        place = certificates.made(tmp_path, days=days, names=names)
        with meddling(ministack, tls=certificates.context(place)) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
            monkeypatch.setenv("FROSTLINE_DISKS__S3__CA_BUNDLE", str(place / "ca.pem"))
            self.refused(table, says)

    def refused(self, table: Frostline, says: tuple[str, ...]) -> None:
        """What needs the bucket says why; what does not goes on."""
        for verb in (
            ("query", "select count(*) from d.t"),
            ("log", "s3"),
            ("gc",),
            ("fsck",),
            ("move", "d.t", "--partition", "all", "--to-disk", "s3"),
            ("clickhouse", "inspect", "s3://bucket/p/"),
        ):
            if verb[0] == "clickhouse" and "ca_bundle" not in says:
                continue  # it has no disk, and so no authority of ours
            table(*verb, code=5)
            for word in ("certificate", *says):
                assert word in table.error, (verb, table.error)
        assert total_hot(table) == 100
        Path("more.csv").write_text("n\n1000\n")
        table("insert", "d.t", "more.csv")
        findings = table.json("doctor", "s3", code=4)["findings"]
        assert says[0] in json.dumps(findings)
        for partition in table.json("parts")["parts"]:
            assert partition["disk"] in ("ssd", "s3")
        table("query", "select count(*) from d.t where n >= 1000")

    def test_no_try_is_repeated(self, ministack: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waited"))
        with meddling(ministack, tls=certificates.context(certificates.made(tmp_path))) as server:
            config = ObjectDiskConfig(
                url="s3://b/p/", endpoint_url=server.endpoint_url, access_key_id="k", secret_access_key="s"
            )
            with open_store(config) as store, pytest.raises(FrostlineError, match="not accepted"):
                store.get("key")


def total_hot(frostline: Frostline) -> int:
    return int(frostline.json("query", "select count(*) from d.t where n between 100 and 199")["rows"][0][0])


# A server that is slow on purpose


@contextmanager
def serving(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server whose every connection is answered by `serve`, which ends when the event is set."""
    over = threading.Event()

    def run(made: socket.socket) -> None:
        with suppress(OSError), made:
            serve(made, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=run, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


def dripping(start: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while not over.wait(0.02):
            connection.sendall(b"x")

    return serve


def drinking(connection: socket.socket, over: threading.Event) -> None:
    """Takes what is sent byte by byte."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while not over.wait(0.02):
        connection.recv(1)


SLOW = {
    "the body": dripping(HEAD + b"Content-Length: 1000000\r\n\r\n"),
    "the head": dripping(b"HTTP/1.1 200 OK\r\nX-"),
    "chunks": dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n"),
    "a body without an end": dripping(HEAD + b"\r\n"),
    "before an answer": dripping(b"HTTP/1.1 100 Continue\r\n"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("serve", SLOW.values(), ids=SLOW)
def test_a_byte_now_and_then_is_not_waited_for_for_ever(
    table: Frostline,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[socket.socket, threading.Event], None],
) -> None:
    monkeypatch.setattr(requests, "_READ_TIMEOUT_SECONDS", 0.3)
    with serving(serve) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        table("query", "select count(*) from d.t", code=5)
        assert "no answer" in table.error
        assert total_hot(table) == 100


def test_a_body_that_is_taken_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_READ_TIMEOUT_SECONDS", 0.3)
    data = bytes(32 * MIB)
    with serving(drinking) as url:
        config = ObjectDiskConfig(
            url="s3://b/p/", endpoint_url=url, access_key_id="k", secret_access_key="s", retry_seconds=0.1
        )
        with open_store(config) as store, pytest.raises(FrostlineError, match="no answer"):
            store.put("key", data, sha256=hashlib.sha256(data).digest())


# Lies


@pytest.mark.in_turn
def test_a_length_that_nobody_can_hold(table: Frostline, ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def answering(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + b"Content-Length: 1152921504606846976\r\n\r\n<a>")

    with serving(answering) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        table("query", "select count(*) from d.t", code=5)
        assert total_hot(table) == 100


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"X: " + b"y" * 300_000,
        HEAD + b"Content-Length: -1\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02",
        HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n<a/>",
    ],
    ids=["an endless header", "a negative length", "TLS", "two lengths"],
)  # fmt: skip
def test_what_is_no_answer_of_a_store(table: Frostline, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    def answering(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with serving(answering) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        table("query", "select count(*) from d.t", code=5)
        assert total_hot(table) == 100


@pytest.mark.in_turn
def test_a_page_of_somebody_else(table: Frostline, ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As networks show that want a password first. Nothing of it is taken for what the store holds."""

    def answering(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + b"Content-Length: 26\r\n\r\n<html>please log in</html>")

    with serving(answering) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        table("query", "select count(*) from d.t", code=5)
        assert "'html' instead of ListBucketResult" in table.error
        table("restore", "s3", "--apply", code=5)
        assert "is rejected" in table.error
        assert total_hot(table) == 100
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint_url)
    assert total(table) == [200, 19900]


class TestHeaders:
    @pytest.mark.in_turn
    @pytest.mark.parametrize("etag", ['"00000000000000000000000000000000"', "no quotes", "\x7f" * 5000, None])
    def test_nothing_goes_by_the_etag_of_an_object(
        self, table: Frostline, ministack: Server, monkeypatch: pytest.MonkeyPatch, etag: str | None
    ) -> None:
        def answer(exchange: Exchange) -> None:
            exchange.headers.pop("etag", None)
            if etag is not None:
                exchange.headers["etag"] = etag

        with meddling(ministack, answer=answer) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
            assert total(table) == [200, 19900]
            table("move", "d.t", "--partition", "all", "--to-disk", "s3")
            table("merge", "d.t", "--final")
            assert total(table) == [200, 19900]
            assert table.json("fsck", "--read-data")["ok"]

    @pytest.mark.parametrize("etag", ['"00000000000000000000000000000000"', None])
    def test_a_large_object_whose_parts_change_etag_is_not_made(
        self, bucket: str, ministack: Server, monkeypatch: pytest.MonkeyPatch, etag: str | None
    ) -> None:
        def answer(exchange: Exchange) -> None:
            if "partNumber" in exchange.path:
                exchange.headers.pop("etag", None)
                if etag is not None:
                    exchange.headers["etag"] = etag

        data = b"0123456789abcdef" * (9 * MIB // 16)
        with meddling(ministack, answer=answer) as server:
            config = ObjectDiskConfig(
                url=f"s3://{bucket}/p/",
                endpoint_url=server.endpoint_url,
                multipart_threshold_bytes=5 * MIB,
                retry_seconds=0.1,
            )
            with open_store(config) as store:
                with pytest.raises(FrostlineError):
                    store.put("large", data, sha256=hashlib.sha256(data).digest())
                with pytest.raises(NotFound):
                    store.head("large")
                assert list(store.list_uploads()) == []

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-amz-server-side-encryption": "AES256"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "../../x\x7f"},
            {"x-amz-server-side-encryption-customer-algorithm": "AES256", "x-amz-storage-class": "GLACIER"},
        ],
        ids=["SSE-S3", "SSE-KMS", "SSE-C"],
    )
    def test_a_bucket_that_encrypts_by_itself(
        self, table: Frostline, ministack: Server, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
    ) -> None:
        with meddling(ministack, answer=lambda exchange: exchange.headers.update(headers)) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
            table("move", "d.t", "--partition", "all", "--to-disk", "s3")
            assert total(table) == [200, 19900]
            assert table.json("fsck", "--read-data")["ok"]


class TestFlippedOnTheWay:
    """A bit of an entry that turns over on the way was taken into the cache, and the next commit named its digest."""

    @pytest.mark.in_turn
    @pytest.mark.parametrize("which", [0, 0.3, 0.6, 0.99])
    def test_the_last_entry_of_a_log_is_not_believed_altered(
        self, table: Frostline, home: Path, ministack: Server, monkeypatch: pytest.MonkeyPatch, which: float
    ) -> None:
        struck = 0

        def answer(exchange: Exchange) -> None:
            nonlocal struck
            if exchange.method == "GET" and "/operations/" in exchange.path and not struck:
                struck += 1
                at = int(len(exchange.body) * which)
                exchange.body = exchange.body[:at] + bytes([exchange.body[at] ^ 1]) + exchange.body[at + 1 :]

        shutil.rmtree(home / "state")
        with meddling(ministack, answer=answer) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
            assert total(table) == [200, 19900]
            table("move", "d.t", "--partition", "all", "--to-disk", "s3")
        assert struck
        monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint_url)
        shutil.rmtree(home / "state")
        assert total(table) == [200, 19900]
        assert table.json("fsck", "--read-data")["ok"]


@pytest.mark.in_turn
def test_a_whole_object_s_checksum_is_not_held_against_a_range(
    frostline: Frostline, rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**rclone.environment(), "FROSTLINE_DISKS__S3__URL": f"s3://{rclone.new_bucket()}/p/"}.items():
        monkeypatch.setenv(name, value)
    frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
    Path("rows.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(5_000)))
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    with Store.open() as store:
        dataset = store.table("d.t").dataset()
        assert sorted(dataset.to_table()["n"].to_pylist()) == list(range(5_000))
