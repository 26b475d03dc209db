"""S3 stores that take less than AWS does: each is a real server behind a proxy that refuses what such a store refuses.

Guards I15: what a store does not check, Frostline does; and that `doctor` finds no store good that cannot be used.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disks.stores.base import ObjectStore
from disks.stores.checks import Unreachable
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.retry import RetryingStore
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import Damaged, FrostlineError, NotFound
from tests.command_line import Frostline
from tests.integration.doctors import Doctor, levels
from tests.integration.doctors import doctor as doctor
from tests.meddling import Around, Exchange, meddling
from tests.servers import Server

MIB = 1024 * 1024
DATA = os.urandom(4096)
DIGEST = hashlib.sha256(DATA).digest()
_CHECKSUM_HEADERS = ("x-amz-checksum-", "x-amz-sdk-checksum-")


def refusing(status: int, code: str, *, reads: bool = True) -> Around:
    """A store that refuses every request with a header of a checksum; `reads`: those that ask for one too."""

    def around(found: Exchange, forward: Callable[[], None]) -> None:
        if any(name.startswith(_CHECKSUM_HEADERS) for name in found.sent if reads or name != "x-amz-checksum-mode"):
            found.status, found.headers = status, {"x-amz-request-id": "1"}
            found.body = f"<Error><Code>{code}</Code><Message>Unsupported header</Message></Error>".encode()
            return
        forward()

    return around


REFUSALS = {
    "invalid": refusing(400, "InvalidArgument"),
    "not-implemented": refusing(501, "NotImplemented"),
    "writes-only": refusing(400, "InvalidRequest", reads=False),
}


@pytest.fixture(params=REFUSALS)
def older(request: pytest.FixtureRequest, ministack: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(s3, "_probed", {})
    with meddling(ministack, around=REFUSALS[request.param]) as server:
        yield server


def opened(server: Server, bucket: str, **more: object) -> ObjectStore:
    store = open_store(server.disk(f"s3://{bucket}/p/", multipart_threshold_bytes=6 * MIB, retry_seconds=1, **more))
    raw = unwrapped(store)
    assert isinstance(raw, S3Store)
    raw._part_bytes = 5 * MIB
    return store


@pytest.mark.in_turn
@pytest.mark.parametrize("checksums", ["auto", "none"])
def test_a_store_without_checksums_keeps_objects(
    checksums: str, older: Server, ministack: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole and in parts, read by a process that has written nothing, and wrong bytes are refused all the same."""
    bucket = ministack.new_bucket()
    large = os.urandom(7 * MIB)
    with opened(older, bucket, checksums=checksums) as store, caplog.at_level(logging.WARNING):
        store.put("small", DATA, sha256=DIGEST)
        store.put_if_absent("once", DATA, sha256=DIGEST)
        store.put("large", large, sha256=hashlib.sha256(large).digest())
        with pytest.raises(Damaged):
            store.put("wrong", DATA, sha256=hashlib.sha256(b"other").digest())
        assert store.capabilities.conditional_put
    assert ("checksums: none" in caplog.text) == (checksums == "auto")
    with opened(older, bucket, checksums=checksums) as again:
        assert again.get("small") == DATA
        assert again.head("once").size_bytes == len(DATA)
        assert again.get_with_info("large")[0] == large
        assert [info.key for info in again.list()] == ["large", "once", "small"]


@pytest.mark.parametrize("name", ["get", "head", "get_with_info"])
def test_an_object_that_is_missing_there_is_missing(name: str, older: Server, ministack: Server) -> None:
    """By a process that has written nothing: what the store refuses is the question for the checksum."""
    with opened(older, ministack.new_bucket()) as store, pytest.raises(NotFound):
        getattr(store, name)("missing")


def test_a_store_must_take_checksums_where_they_are_asked_for(older: Server, ministack: Server) -> None:
    with opened(older, ministack.new_bucket(), checksums="sha256") as store, pytest.raises(FrostlineError) as caught:
        store.put("small", DATA, sha256=DIGEST)
    assert "refused the request" in caught.value.message


@pytest.mark.in_turn
def test_doctor_says_what_a_store_does_not_take(doctor: Doctor, older: Server, ministack: Server) -> None:
    bucket = ministack.new_bucket()
    found = doctor(older, bucket)
    assert (found["checksums"]["level"], found["put"]["level"], found["multipart"]["level"]) == ("note", "ok", "ok")
    assert "checksums: none" in found["checksums"]["what"]
    assert "checksums is 'none'" in doctor(older, bucket, checksums="none")["checksums"]["what"]
    refused = doctor(older, bucket, checksums="sha256", code=4)
    assert refused["put"]["level"] == "problem"


@pytest.mark.parametrize(("method", "query", "check"), [("PUT", "doctor/", "put"), ("POST", "uploads", "multipart")])
def test_doctor_finds_no_store_good_that_refuses_writes(
    method: str, query: str, check: str, doctor: Doctor, ministack: Server
) -> None:
    def answer(found: Exchange) -> None:
        if found.method == method and query in found.path:
            found.status, found.body = 501, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"

    with meddling(ministack, answer=answer) as server:
        found = doctor(server, ministack.new_bucket(), code=4 if check == "put" else 0)
    assert levels(found)[check] == ("problem" if check == "put" else "warning")


@pytest.mark.parametrize("lost", [0, 1], ids=["first", "second"])
def test_a_probe_goes_on_with_the_question_that_broke(
    lost: int, ministack: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second answer is lost: a probe that began again with each would never end."""
    monkeypatch.setattr(s3, "_probed", {})
    monkeypatch.setattr(s3, "_probes", {})
    probes: list[str] = []

    def around(found: Exchange, forward: Callable[[], None]) -> None:
        forward()
        if found.path.endswith(s3.PROBE_KEY):
            probes.append(found.method)
            if len(probes) % 2 == lost:
                raise ConnectionResetError

    with meddling(ministack, around=around) as server:
        store = open_store(server.disk(f"s3://{ministack.new_bucket()}/p/", retries=8, retry_seconds=5))
        with store:
            store.put("small", DATA, sha256=DIGEST)
            assert store.capabilities.conditional_put
    assert len(probes) <= 6


@pytest.mark.parametrize("bare", [False, True], ids=["names-us", "says-nothing"])
def test_a_name_without_an_address_says_what_to_set(bare: bool) -> None:
    """The bucket is a part of the host's name there, which no resolver of a company knows."""
    config = Server("none", "http://store.invalid:9", "k", "s").disk("s3://b/p/", addressing_style="virtual", retries=1)
    with open_store(config) as store, pytest.raises(Unreachable) as caught:
        store.head("x") if bare else list(store.list_uploads())
    assert "addressing_style: path" in caught.value.hint
    assert "b.store.invalid" in caught.value.message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Sat, 21 Nov 2026 03:00:09 GMT", "date": "Sat, 21 Nov 2026 03:00:00 GMT"}, 9.0),
        ({"retry-after": "Sat, 21 Nov 2026 02:00:00 GMT", "date": "Sat, 21 Nov 2026 03:00:00 GMT"}, 0.0),
        ({"retry-after": "86400"}, 30.0),
        ({"retry-after": "9" * 5000}, 30.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 99999999999999999999 03:00:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2026 03:00:00 +99999999999999999999"}, 0.0),
        ({}, 0.0),
    ],
    ids=["seconds", "date", "past", "long", "endless", "words", "negative", "no year", "no zone", "none"],
)
@pytest.mark.parametrize("client", ["ours", "boto3"])
def test_a_pause_that_the_server_asks_for_is_made(
    client: str, headers: dict[str, str], seconds: float, ministack: Server
) -> None:
    """Its date counts by its own clock, and no answer makes a command wait for longer than the ceiling."""
    pauses: list[float] = []
    asked = 0

    def answer(found: Exchange) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            found.status, found.headers = 503, {"x-amz-request-id": "1", **headers}
            found.body = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"

    with meddling(ministack, answer=answer) as server:
        store = unwrapped(open_store(server.disk(f"s3://{ministack.new_bucket()}/p/")))
        with RetryingStore(store, sleep=pauses.append, chance=lambda: 0.0) as retrying:
            list(retrying.list() if client == "ours" else retrying.list_uploads())
    assert pauses == [seconds]


REFUSED = {
    "denied": (403, "AccessDenied", ("GET", "HEAD", "PUT", "POST", "DELETE")),
    "denied-writes": (403, "AccessDenied", ("PUT", "POST", "DELETE")),
    "expired": (400, "ExpiredToken", ("GET", "HEAD", "PUT", "POST", "DELETE")),
    "quota": (403, "QuotaExceeded", ("PUT",)),
}
WRITING = {
    "move": ("move", "d.t", "--partition", "all", "--to-disk", "s3"),
    "back": ("move", "d.t", "--partition", "all", "--to-disk", "ssd"),
    "snapshot": ("snapshot", "s3"),
    "tick": ("tick",),
    "backup": ("backup", "create", "b", "--to", "REPOSITORY"),
    "init": ("backup", "init", "s3://BUCKET/other/"),
    "drop": ("table", "drop", "d.t"),
}


@pytest.fixture
def cold(frostline: Frostline, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Frostline:
    """A row in the bucket and one on the SSD."""
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
    Path("rows.csv").write_text("n\n1\n")
    frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("insert", "d.t", "rows.csv", "--dedup-by", "none")
    return frostline


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", REFUSED)
def test_every_verb_that_a_store_refuses_ends_with_12(
    kind: str, cold: Frostline, ministack: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script need not read why each part failed."""
    status, code, methods = REFUSED[kind]
    repository = f"s3://{bucket}/repo/"
    cold("backup", "init", repository)

    def answer(found: Exchange) -> None:
        if found.method in methods:
            found.status, found.headers = status, {"x-amz-request-id": "1", "content-length": "100"}
            text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
            found.body = b"" if found.method == "HEAD" else text.encode()

    with meddling(ministack, answer=answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
        for name, verb in WRITING.items():
            s3._probed.clear()
            s3._probes.clear()
            words = [word.replace("REPOSITORY", repository).replace("BUCKET", bucket) for word in verb]
            _, ended = cold.any("--yes", *words)
            assert ended == (0 if name == "tick" and "GET" not in methods else 12), (name, cold.error)


@pytest.mark.parametrize("kind", ["denied", "expired", "quota"])
def test_a_check_of_a_store_that_refuses_is_no_damage(
    kind: str, frostline: Frostline, ministack: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has never seen the bucket cannot tell its id: that is no problem of what lies there."""
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
    status, code, _ = REFUSED[kind]

    def answer(found: Exchange) -> None:
        found.status, found.headers = status, {"x-amz-request-id": "1", "content-length": "100"}
        text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
        found.body = b"" if found.method == "HEAD" else text.encode()

    with meddling(ministack, answer=answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
        frostline("fsck", code=12)
