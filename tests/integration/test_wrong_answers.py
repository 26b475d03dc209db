"""Every kind of request to an S3 server, and every kind of answer that is not one to it. Guards I15 (loud), I4.

The requests are those that the store sends, through a proxy before a real server. `KINDS` of the code is the table: a
kind that no call here sends fails, and so does an answer that is believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from disks.stores.base import ByteRange, ObjectStore
from disks.stores.checks import WrongAnswer
from disks.stores.open import open_store
from disks.stores.s3 import answers
from disks.stores.s3 import store as s3
from disks.stores.s3.answers import KINDS
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.retry import Backoff, RetryingStore
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import FrostlineError, OutcomeUnknown, Transient
from tests.meddling import Exchange, meddling
from tests.servers import Server

MIB = 1024 * 1024
SMALL, LARGE = b"0123456789", b"0123456789abcdef" * (6 * MIB // 16)
CALLS: dict[str, Callable[[S3Store], object]] = {
    "ListObjectsV2": lambda store: list(store.list()),
    "GetObject": lambda store: store.get("a"),
    "HeadObject": lambda store: store.head("a"),
    "HeadBucket": lambda store: store._bucket_exists(),
    "PutObject": lambda store: put(store, "new", SMALL),
    "DeleteObjects": lambda store: raised(store.delete(["a", "b"])),
    "CopyObject": lambda store: store.copy("a", "new"),
    "CreateMultipartUpload": lambda store: put(store, "new", LARGE),
    "UploadPart": lambda store: put(store, "new", LARGE),
    "UploadPartCopy": lambda store: store._copy_in_parts(store, store.head("a"), store._full("a"), "new"),
    "CompleteMultipartUpload": lambda store: put(store, "new", LARGE),
    "AbortMultipartUpload": lambda store: store.abort_upload(next(iter(store.list_uploads("left")))),
    "ListMultipartUploads": lambda store: list(store.list_uploads()),
    "ListObjectVersions": lambda store: list(store.old_versions()),
    "GetBucketVersioning": lambda store: store.bucket_settings(),
    "GetBucketLifecycleConfiguration": lambda store: store.bucket_settings(),
    "GetObjectLockConfiguration": lambda store: store.bucket_settings(),
    "CreateBucket": lambda store: store.create_bucket(),
}
"""What sends each kind of request. A new kind needs a line."""
SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
OTHER_BUCKET = (
    f"<ListBucketResult {SPACE}><Name>another-bucket</Name><Prefix>p/</Prefix><KeyCount>0</KeyCount>"
    "<IsTruncated>false</IsTruncated></ListBucketResult>"
)


def page(body: str, kind: str = "application/xml") -> Callable[[Exchange], None]:
    """200 and this body, and no header of S3."""

    def change(found: Exchange) -> None:
        found.status, found.body = 200, body.encode()
        found.headers = {"content-type": kind, "date": found.headers.get("date", "")}

    return change


def cut(found: Exchange) -> None:
    found.body = found.body[: len(found.body) // 2] or b"<Cut"
    for name in [name for name in found.headers if name.startswith(("x-amz-", "etag", "last-modified"))]:
        del found.headers[name]


WRONG: dict[str, Callable[[Exchange], None]] = {
    "HTML": page("<html><body>please log in</body></html>", "text/html; charset=utf-8"),
    "HTML that is no XML": page("<!doctype html><p>please<br>log in", "text/html"),
    "nothing": page(""),
    "an error": page("<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"),
    "half of it": cut,
    "another request's": page(f"<LocationConstraint {SPACE}>eu</LocationConstraint>"),
    "another bucket's": page(OTHER_BUCKET),
    "a bare root": page("<ListBucketResult/>"),
    "JSON": page('{"error": "not found", "status": 404}', "application/json"),
    "a file of a web server": lambda found: _as_file(found),
}


def _as_file(found: Exchange) -> None:
    page("<html><body>welcome</body></html>", "text/html")(found)
    found.headers |= {"etag": '"5f3a-1a"', "last-modified": "Sat, 21 Nov 2026 03:00:00 GMT"}


NOT_READ = {"HeadBucket": "its status says whether the bucket is there; nothing is decided by it alone"}


def kind_of(found: Exchange) -> str:
    """The operation of a request, from method, path and query."""
    url = urlsplit(found.path)
    query = parse_qs(url.query, keep_blank_values=True)
    is_object = "/" in url.path.strip("/")
    copies = any(name == "x-amz-copy-source" for name in found.sent)
    match found.method:
        case "HEAD":
            return "HeadObject" if is_object else "HeadBucket"
        case "DELETE":
            return "AbortMultipartUpload"
        case "POST" if "delete" in query:
            return "DeleteObjects"
        case "POST":
            return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
        case "PUT" if "partNumber" in query:
            return "UploadPartCopy" if copies else "UploadPart"
        case "PUT" if not is_object:
            return "CreateBucket"
        case "PUT":
            return "CopyObject" if copies else "PutObject"
    asked = {
        "list-type": "ListObjectsV2",
        "uploads": "ListMultipartUploads",
        "versions": "ListObjectVersions",
        "versioning": "GetBucketVersioning",
        "lifecycle": "GetBucketLifecycleConfiguration",
        "object-lock": "GetObjectLockConfiguration",
    }
    return next((operation for word, operation in asked.items() if word in query), "GetObject")


def put(store: ObjectStore, key: str, data: bytes) -> None:
    store.put(key, data, sha256=hashlib.sha256(data).digest())


def raised(deleted: dict[str, FrostlineError | None]) -> None:
    for error in deleted.values():
        if error is not None:
            raise error


class Meddler:
    """Changes the answers to one kind of request, and forwards none of them that would change something."""

    def __init__(self) -> None:
        self.kind = ""
        self.wrong: Callable[[Exchange], None] = cut
        self.seen: set[str] = set()
        self.struck = 0

    def __call__(self, found: Exchange, forward: Callable[[], None]) -> None:
        kind = kind_of(found)
        self.seen.add(kind)
        if kind != self.kind:
            forward()
            return
        self.struck += 1
        if found.method in ("GET", "HEAD"):
            forward()
        else:
            found.status = 200
        self.wrong(found)


class Place:
    """A bucket with objects and a store that reaches it through the proxy."""

    def __init__(self, server: Server, direct: Server, meddler: Meddler, bucket: str) -> None:
        self.meddler = meddler
        self.store = self._opened(server, bucket)
        self.direct = self._opened(direct, bucket)

    @staticmethod
    def _opened(server: Server, bucket: str) -> S3Store:
        store = unwrapped(open_store(server.disk(f"s3://{bucket}/p/", multipart_threshold_bytes=5 * MIB)))
        assert isinstance(store, S3Store)
        store._part_bytes = 5 * MIB
        return store


@pytest.fixture(scope="module")
def place(ministack: Server) -> Iterator[Place]:
    meddler, bucket = Meddler(), ministack.new_bucket()
    with meddling(ministack, around=meddler) as server:
        place = Place(server, ministack, meddler, bucket)
        for key in ("a", "b"):
            put(place.direct, key, SMALL)
        client = place.direct.session.client
        client.create_multipart_upload(Bucket=bucket, Key="p/left")
        assert place.store.capabilities.conditional_put
        yield place
    s3._probed.clear()


@pytest.fixture
def meddler(place: Place) -> Iterator[Meddler]:
    place.meddler.kind, place.meddler.struck = "", 0
    place.meddler.seen.clear()
    yield place.meddler
    place.meddler.kind = ""


def test_each_kind_of_request_is_sent_by_a_call(place: Place, meddler: Meddler) -> None:
    """A kind that the code gets is asked for here, and what is sent is of a kind."""
    assert CALLS.keys() == KINDS.keys()
    for kind in CALLS.keys() - {"AbortMultipartUpload", "DeleteObjects"}:  # they take away what others list
        meddler.seen.clear()
        CALLS[kind](place.store)
        assert kind in meddler.seen <= KINDS.keys()
    place.direct.delete(["new"])


@pytest.mark.in_turn
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_READ])
def test_no_wrong_answer_is_believed(place: Place, meddler: Meddler, kind: str, wrong: str) -> None:
    meddler.kind, meddler.wrong = kind, WRONG[wrong]
    with pytest.raises(Transient) as caught:
        CALLS[kind](place.store)
    assert meddler.struck
    assert caught.value.exit_code == 5
    assert place.store.name in caught.value.message
    meddler.kind = ""
    assert [info.key for info in place.direct.list()] == ["a", "b"]
    assert [upload.key for upload in place.direct.list_uploads("left")] == ["left"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_conditional_put_may_have_been_done(place: Place, meddler: Meddler, wrong: str) -> None:
    """Whoever answered, the store may have the object: the caller reads it."""
    meddler.kind, meddler.wrong = "PutObject", WRONG[wrong]
    with pytest.raises(OutcomeUnknown, match="is rejected"):
        place.store.put_if_absent("new", SMALL, sha256=hashlib.sha256(SMALL).digest())


@pytest.mark.parametrize("kind", ["GetObject", "HeadObject"])
def test_a_404_of_a_web_server_is_no_missing_object(place: Place, meddler: Meddler, kind: str) -> None:
    def change(found: Exchange) -> None:
        WRONG["HTML"](found)
        found.status = 404

    meddler.kind, meddler.wrong = kind, change
    with pytest.raises(WrongAnswer):
        CALLS[kind](place.store)


def test_a_range_of_another_place_is_not_taken(place: Place, meddler: Meddler) -> None:
    def change(found: Exchange) -> None:
        found.headers["content-range"] = "bytes 0-3/10"

    meddler.kind, meddler.wrong = "GetObject", change
    with pytest.raises(WrongAnswer, match="another range"):
        place.store.get("a", ByteRange(4, 8))


FAULTS = {
    "count": (b"<KeyCount>3<", b"<KeyCount>4<", "counts '4' keys and lists 3"),
    "more": (b"<IsTruncated>false<", b"<IsTruncated>maybe<", "IsTruncated is 'maybe'"),
    "no end": (b"<IsTruncated>false</IsTruncated>", b"", "has no IsTruncated"),
    "prefix": (b"<Prefix>p/<", b"<Prefix>q/<", "about Prefix 'q/' instead of 'p/'"),
    "no prefix": (b"<Prefix>p/</Prefix>", b"", "has no Prefix"),
    "key": (b"<Key>p/a<", b"<Key>q/a<", "lists 'q/a'"),
    "size": (b"<Size>10<", b"<Size>-1<", "-1 bytes"),
    "no size": (b"<Size>10</Size>", b"", "without key, size or time"),
    "time": (b"<LastModified>", b"<LastModified>x", "without key, size or time"),
    "marker": (b"</IsTruncated>", b"</IsTruncated><StartAfter>p/z</StartAfter>", "about StartAfter 'p/z'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_listing_that_is_about_something_else(place: Place, meddler: Meddler, fault: str) -> None:
    before, after, says = FAULTS[fault]

    def change(found: Exchange) -> None:
        assert before in found.body
        found.body = found.body.replace(before, after, 1)

    meddler.kind, meddler.wrong = "ListObjectsV2", change
    with pytest.raises(WrongAnswer, match=says):
        list(place.store.list())


@pytest.mark.parametrize("left_out", [b"<KeyCount>3</KeyCount>", b"<MaxKeys>1000</MaxKeys>"])
def test_what_real_servers_leave_out(place: Place, meddler: Meddler, left_out: bytes) -> None:
    def change(found: Exchange) -> None:
        assert left_out in found.body
        found.body = found.body.replace(left_out, b"")

    meddler.kind, meddler.wrong = "ListObjectsV2", change
    assert [info.key for info in place.store.list()] == ["a", "b"]


def test_a_wrong_answer_is_asked_for_again(place: Place, meddler: Meddler) -> None:
    """One page that is not believed, and then the listing: nobody hears of it."""

    def change(found: Exchange) -> None:
        if meddler.struck == 1:
            WRONG["HTML"](found)

    meddler.kind, meddler.wrong = "ListObjectsV2", change
    pauses: list[float] = []
    store = RetryingStore(place.store, Backoff(attempts=3), sleep=pauses.append)
    assert [info.key for info in store.list()] == ["a", "b"]
    assert len(pauses) == 1


def test_a_kind_that_is_not_in_the_table_is_not_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(answers.KINDS, "ListObjectVersions")
        with pytest.raises(KeyError):
            list(place.store.old_versions())
