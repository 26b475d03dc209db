"""What an S3 server or the network may answer, and what the store makes of it: a scripted HTTP server on loopback.

Guards I15 (loud), the table of `reference/reliability.md` section 3, and the bad input of an S3 disk.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from disks.config import DiskConfig, ObjectDiskConfig
from disks.stores.base import ByteRange, ObjectStore, StoreCapabilities
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from disks.stores.wrappers.retry import Backoff, RetryingStore
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    FrostlineError,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Transient,
    UsageError,
)
from tests.servers import Server, free_port

DATA = b"0123456789"
DIGEST = hashlib.sha256(DATA).digest()


def answer(status: int, code: str = "", body: bytes | None = None, *, announced: int | None = None) -> bytes:
    if body is None:
        body = f"<Error><Code>{code}</Code><Message>said the server</Message></Error>".encode() if code else b""
    length = len(body) if announced is None else announced
    head = f'HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\nConnection: close\r\nETag: "e"\r\n'
    return head.encode() + b"Last-Modified: Sat, 21 Nov 2026 03:00:00 GMT\r\n\r\n" + body


@dataclass
class Scripted:
    """Answers each request with the next of `answers` (the last one for ever); None closes without an answer."""

    answers: list[bytes | None]
    port: int
    requests: list[bytes] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.requests.append(_read_request(connection))
                reply = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
                if reply is not None:
                    connection.sendall(reply)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def disk(port: int) -> DiskConfig:
    return ObjectDiskConfig(
        url="s3://bucket/prefix/",
        endpoint_url=f"http://127.0.0.1:{port}",
        access_key_id="key-id",
        secret_access_key="very-secret",
    )


@contextmanager
def scripted(monkeypatch: pytest.MonkeyPatch, *answers: bytes | None) -> Iterator[tuple[ObjectStore, Scripted]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Scripted(list(answers), listener.getsockname()[1])
        place = (f"http://127.0.0.1:{server.port}", "bucket", "prefix/")
        monkeypatch.setitem(s3._probed, place, StoreCapabilities(conditional_put=True, checks_sha256=True))
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield unwrapped(open_store(disk(server.port))), server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def put(store: ObjectStore) -> object:
    return store.put("key", DATA, sha256=DIGEST)


def put_if_absent(store: ObjectStore) -> object:
    return store.put_if_absent("key", DATA, sha256=DIGEST)


def get(store: ObjectStore) -> object:
    return store.get("key")


def get_with_info(store: ObjectStore) -> object:
    return store.get_with_info("key")


def listing(store: ObjectStore) -> object:
    return list(store.list())


def head(store: ObjectStore) -> object:
    return store.head("key")


def copy(store: ObjectStore) -> object:
    return store.copy("key", "target")


Call = Callable[[ObjectStore], object]
TIME_PAST = (
    b"<Error><Code>AccessDenied</Code><Message>The difference between the request time and the server's time exceeds"
    b" the maximum allowed.</Message></Error>"
)
BODY_VERBS: list[Call] = [put, put_if_absent, get, get_with_info, listing, copy]


@pytest.mark.in_turn
@pytest.mark.parametrize("call", BODY_VERBS)
@pytest.mark.parametrize(
    ("reply", "error", "hint"),
    [
        (answer(403, "AccessDenied"), AccessDenied, "s3:GetObject"),
        (answer(403, "RequestTimeTooSkewed"), AccessDenied, "clock"),
        (answer(400, body=TIME_PAST), AccessDenied, "clock"),  # of rclone
        (answer(403, "SignatureDoesNotMatch"), AccessDenied, "secret"),
        (answer(400, "ExpiredToken"), AccessDenied, "expired"),
        (answer(404, "NoSuchBucket"), NotFound, "create it"),
        (answer(503, "SlowDown"), Throttled, ""),
        (answer(429, "TooManyRequests"), Throttled, ""),
        (answer(503, body=b"<html>proxy</html>"), Throttled, ""),
        (answer(507, "QuotaExceeded"), NoSpace, ""),
    ],
    ids=lambda value: value[9:60].decode() if isinstance(value, bytes) else "",
)
def test_answers_become_the_errors_of_the_contract(
    monkeypatch: pytest.MonkeyPatch, call: Call, reply: bytes, error: type[FrostlineError], hint: str
) -> None:
    with scripted(monkeypatch, reply) as (store, server):
        with pytest.raises(error) as caught:
            call(store)
        assert hint in caught.value.hint
        assert "very-secret" not in caught.value.message + caught.value.hint + repr(caught.value.__cause__)
        assert "bucket" in caught.value.message
        assert len(server.requests) == 1, "the store itself must not retry"


@pytest.mark.parametrize("call", [put, get, get_with_info, listing, copy, head])
@pytest.mark.parametrize("reply", [answer(500, "InternalError"), answer(502), answer(504), None], ids=str)
def test_failures_on_the_way_are_transient(monkeypatch: pytest.MonkeyPatch, call: Call, reply: bytes | None) -> None:
    with scripted(monkeypatch, reply) as (store, server):
        with pytest.raises(Transient):
            call(store)
        assert len(server.requests) == 1


@pytest.mark.parametrize("reply", [answer(500, "InternalError"), answer(504), None], ids=str)
def test_lost_answer_of_a_conditional_put_is_unknown(monkeypatch: pytest.MonkeyPatch, reply: bytes | None) -> None:
    """It may have taken effect: a retry of our own would meet its own 412."""
    with scripted(monkeypatch, reply) as (store, _), pytest.raises(OutcomeUnknown):
        put_if_absent(store)


def test_a_conditional_put_that_was_never_sent_is_transient() -> None:
    port = free_port()
    place = (f"http://127.0.0.1:{port}", "bucket", "prefix/")
    s3._probed[place] = StoreCapabilities(conditional_put=True, checks_sha256=True)
    with pytest.raises(Transient, match="no answer"):
        put_if_absent(unwrapped(open_store(disk(port))))


@pytest.mark.parametrize("call", [put, get, listing])
def test_wrong_region_is_a_mistake_in_the_configuration(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    with (
        scripted(monkeypatch, answer(301, "PermanentRedirect")) as (store, _),
        pytest.raises(UsageError, match="region"),
    ):
        call(store)


def test_conflict_and_precondition(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, answer(412, "PreconditionFailed")) as (store, _), pytest.raises(AlreadyExists):
        put_if_absent(store)


@pytest.mark.parametrize("code", ["BadDigest", "XAmzContentSHA256Mismatch"])
def test_refused_digest_is_damage(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    with scripted(monkeypatch, answer(400, code)) as (store, _), pytest.raises(Damaged, match="SHA-256"):
        put(store)


def test_truncated_body_is_tried_again_and_then_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    short = answer(200, body=b"01234", announced=10)
    with scripted(monkeypatch, short, short, answer(200, body=DATA)) as (store, server):
        assert RetryingStore(store, sleep=lambda seconds: None).get("key") == DATA
        assert len(server.requests) == 3
    with scripted(monkeypatch, short) as (store, server):
        with pytest.raises(Transient):
            store.get("key")
        with pytest.raises(Damaged, match="early"):
            RetryingStore(store, Backoff(attempts=3), sleep=lambda seconds: None).get("key")
        assert len(server.requests) == 4


def test_a_file_that_could_not_be_sent_leaves_the_error_intact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mapping of the file is still in use in the frames of the error: closing it must not hide the error."""
    file = tmp_path / "part"
    file.write_bytes(DATA * 100_000)
    digest = hashlib.sha256(DATA * 100_000).digest()
    for reply, error in ((None, Transient), (answer(403, "AccessDenied"), AccessDenied)):
        with scripted(monkeypatch, reply) as (store, _), pytest.raises(error):
            store.put("key", file, sha256=digest)
    with pytest.raises(Transient):
        unwrapped(open_store(disk(free_port()))).put("key", file, sha256=digest)


def test_missing_object_in_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, answer(404, "NoSuchKey")) as (store, _), pytest.raises(NotFound, match="prefix/key"):
        store.get("key", ByteRange(0, 4))


def test_errors_inside_a_batch_delete_are_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        b"<DeleteResult><Error><Key>prefix/b</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
        b"<Error><Key>prefix/c</Key><Code>InternalError</Code><Message>oops</Message></Error></DeleteResult>"
    )
    versioning = answer(200, body=b"<VersioningConfiguration/>")
    with scripted(monkeypatch, versioning, answer(200, body=body)) as (store, _):
        answers = store.delete(["a", "b", "c"])
    assert answers["a"] is None
    assert isinstance(answers["b"], AccessDenied)
    assert isinstance(answers["c"], Transient)


def listed(*keys: str) -> bytes:
    """The answer to a listing of the prefix."""
    item = "<Contents><Key>prefix/{}</Key><Size>1</Size><LastModified>2026-11-21T03:00:00Z</LastModified></Contents>"
    head = "<Name>bucket</Name><Prefix>prefix/</Prefix><IsTruncated>false</IsTruncated>"
    return answer(200, body=f"<ListBucketResult>{head}{''.join(map(item.format, keys))}</ListBucketResult>".encode())


def test_listing_out_of_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, listed("b", "a")) as (store, _), pytest.raises(Transient, match="order"):
        list(store.list())


def test_a_listing_that_ignores_where_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "begins at 'prefix/a', not after 'prefix/b'"
    with scripted(monkeypatch, listed("a", "b", "c")) as (store, _), pytest.raises(Transient, match=says):
        list(store.list(start_after="b"))


def test_a_listing_that_begins_with_the_key_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, listed("b", "c")) as (store, _):
        assert [info.key for info in store.list(start_after="b")] == ["c"]


def test_foreign_keys_in_a_listing_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, listed("", "../../etc/passwd", "a//b", "good", "marker/")) as (store, _):
        assert [info.key for info in store.list()] == ["good"]


def test_no_credentials_is_said_and_nothing_is_sent() -> None:
    store = open_store(ObjectDiskConfig(url="s3://bucket/p/", endpoint_url="http://127.0.0.1:9"))
    for call in (get, listing, put):
        with pytest.raises(AccessDenied, match="no credentials"):
            call(store)


def test_missing_bucket_is_named_by_every_verb(ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ministack.environment().items():
        monkeypatch.setenv(name, value)
    store = open_store(ObjectDiskConfig(url="s3://no-such-bucket/p/"))
    for call in (put, put_if_absent, get, listing, head, copy):
        with pytest.raises(NotFound, match="no bucket 'no-such-bucket'"):
            call(store)


def test_probe_is_remembered_and_hidden_and_reading_never_probes(bucket: str, s3_environment: Server) -> None:
    url = f"s3://{bucket}/p/"
    reader = open_store(ObjectDiskConfig(url=url, read_only=True))
    assert list(reader.list()) == []
    assert not reader.capabilities.conditional_put
    assert reader.counts()["PUT"] == 0
    writer = open_store(ObjectDiskConfig(url=url))
    put(writer)
    assert writer.capabilities == StoreCapabilities(conditional_put=True, checks_sha256=True)
    assert writer.counts()["PUT"] == 4, "three for the probe of a new prefix"
    again = open_store(ObjectDiskConfig(url=url))
    put(again)
    assert again.counts()["PUT"] == 1
    assert [info.key for info in again.list()] == ["key"]
    forced = open_store(ObjectDiskConfig(url=url, conditional_put="no"))
    assert not forced.capabilities.conditional_put
    with pytest.raises(AlreadyExists):
        put_if_absent(forced)


def test_store_without_conditional_writes_says_so(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rclone.environment().items():
        monkeypatch.setenv(name, value)
    store = open_store(ObjectDiskConfig(url=f"s3://{rclone.new_bucket()}/p/"))
    assert store.capabilities == StoreCapabilities(conditional_put=False, checks_sha256=False)


def test_leftovers_of_a_multipart_upload_are_listed_and_aborted(bucket: str, s3_environment: Server) -> None:
    s3_environment.client().create_multipart_upload(Bucket=bucket, Key="p/half")
    s3_environment.client().create_multipart_upload(Bucket=bucket, Key="other/half")
    store = open_store(ObjectDiskConfig(url=f"s3://{bucket}/p/"))
    [upload] = store.list_uploads()
    assert upload.key == "half"
    store.abort_upload(upload)
    assert list(store.list_uploads()) == []
    store.abort_upload(upload)
    assert list(store.list()) == []


@pytest.mark.ceph
def test_ceph_checks_signatures(ceph: Server) -> None:
    bucket = ceph.new_bucket()
    wrong = ObjectDiskConfig(
        url=f"s3://{bucket}/p/",
        endpoint_url=ceph.endpoint_url,
        access_key_id=ceph.access_key_id,
        secret_access_key="wrong",
    )
    for call in (put, get, listing):
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            call(open_store(wrong))
