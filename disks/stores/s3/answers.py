"""What an answer of an S3 server must look like to be believed: one table of all kinds of requests, for both clients.

A status below 300 says that somebody answered, not that it was the store, nor that it answered this request: a proxy, a
page that asks for a password, a cache or a server that is being set up says 200 too. So each answer is compared with
what was asked. One that does not fit is a temporary error, and nothing of it is used. What servers leave out or write
differently is allowed here by name:

| what differs | where |
|---|---|
| `KeyCount` is missing | Swift, Zenko, rclone (of an empty listing) |
| `StartAfter` is missing, or not encoded where `Key` is | Versity; rclone, Ceph |
| a space in `Prefix` is a plus sign | rclone |
| `Name` is that of the tenant's bucket, or of the bucket behind an access point | Ceph; AWS |
| `InitiateMultipartUpload` instead of `InitiateMultipartUploadResult` | rclone |
| the bucket's listing as the answer to a setting that the server does not know | rclone |
| an ETag is missing, where other headers of S3 are there | MinIO, of files that it did not write |
| the ETag of a completed multipart upload is missing | Ceph |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote, unquote_plus
from xml.etree import ElementTree

import msgspec

from disks.stores.base import ByteRange
from disks.stores.checks import WrongAnswer
from disks.stores.s3.dates import date_of
from disks.stores.s3.errors import NOT_THE_STORE, S3Place

_ACCESS_POINTS = ("-s3alias", "--ol-s3", "--xa-s3")
"""How AWS ends the names of access points, which stand for a bucket of another name."""
_OF_S3 = ("x-amz-", "x-amzn-", "x-goog-", "x-guploader-")
"""How the headers begin that S3 servers send with every answer, and Google's."""
_LISTING = "ListBucketResult"
_SHOWN = 60

Headers = Literal["any", "of S3", "ETag", "of an object"]


class AnswerKind(msgspec.Struct, frozen=True):
    """The answer to one operation of S3."""

    operation: str
    roots: tuple[str, ...] = ()
    """What its document may begin with; empty: it has no document."""
    required: tuple[str, ...] = ()
    """Elements of the document that all servers send."""
    repeats: tuple[str, ...] = ()
    """Elements that repeat what was asked, where they are there."""
    headers: Headers = "any"
    body: Literal["document", "empty", "bytes", "none"] = "document"
    """What follows the headers. `empty`: nothing but space. `none`: whatever there is, nobody reads it."""
    may_list: bool = False
    """Servers that do not know the question answer it with the bucket's listing."""


KINDS = {
    kind.operation: kind
    for kind in (
        AnswerKind("ListObjectsV2", (_LISTING,), ("Name", "IsTruncated"), ("Name", "Prefix", "StartAfter")),
        AnswerKind("GetObject", headers="of an object", body="bytes"),
        AnswerKind("HeadObject", headers="of an object", body="none"),
        AnswerKind("HeadBucket", body="none"),
        AnswerKind("PutObject", headers="of S3", body="empty"),
        AnswerKind("DeleteObjects", ("DeleteResult",)),
        AnswerKind("CopyObject", ("CopyObjectResult",)),
        AnswerKind(
            "CreateMultipartUpload",
            ("InitiateMultipartUploadResult", "InitiateMultipartUpload"),
            ("UploadId",),
            ("Bucket", "Key"),
        ),
        AnswerKind("UploadPart", headers="ETag", body="empty"),
        AnswerKind("UploadPartCopy", ("CopyPartResult",), ("ETag",)),
        AnswerKind("CompleteMultipartUpload", ("CompleteMultipartUploadResult",), (), ("Bucket", "Key")),
        AnswerKind("AbortMultipartUpload", headers="of S3", body="empty"),
        AnswerKind("ListMultipartUploads", ("ListMultipartUploadsResult",), ("Bucket",), ("Bucket", "Prefix")),
        AnswerKind("ListObjectVersions", ("ListVersionsResult",), ("Name",), ("Name", "Prefix"), may_list=True),
        AnswerKind(
            "GetBucketVersioning", ("VersioningConfiguration", "GetBucketVersioningResponse"), may_list=True
        ),  # moto names it so
        AnswerKind("GetBucketLifecycleConfiguration", ("LifecycleConfiguration",), may_list=True),
        AnswerKind("GetObjectLockConfiguration", ("ObjectLockConfiguration",), may_list=True),
        AnswerKind("CreateBucket", headers="of S3", body="empty"),
    )
}
"""By the operation's name. A request of a kind that is not here is not sent."""


class S3Request(msgspec.Struct, frozen=True):
    """What a request asked for. `key` and `prefix` are those of the bucket, in full."""

    kind: AnswerKind
    location: S3Place
    key: str = ""
    prefix: str = ""
    start_after: str = ""
    byte_range: ByteRange | None = None


class S3Document(msgspec.Struct, frozen=True):
    """A document of S3: the elements below its root, whatever their namespace."""

    root: str
    elements: tuple[tuple[str, ElementTree.Element], ...]

    def text(self, name: str) -> str | None:
        """The text of the first element of this name; None where there is none."""
        return next((element.text or "" for found, element in self.elements if found == name), None)

    def all(self, name: str) -> list[dict[str, str]]:
        """Each element of this name, as the texts in it."""
        return [
            {plain_name(child): child.text or "" for child in element}
            for found, element in self.elements
            if found == name
        ]


def plain_name(element: ElementTree.Element) -> str:
    """Without its namespace."""
    return element.tag.rpartition("}")[2]


def checked(asked: S3Request, headers: Mapping[str, str], body: bytes) -> S3Document | None:
    """The document of an answer with a status below 300, when it answers what was asked; where the server may not know
    the question, its root tells. Raises `WrongAnswer` that names the store and what is wrong with the answer. Names of
    headers are in lower case."""
    kind = asked.kind
    _check_headers(asked, headers)
    if kind.body == "empty" and body.strip():
        raise wrong_answer(asked, f"it has a body: {_shown(body)}")
    if kind.body != "document":
        return None
    try:
        root = ElementTree.fromstring(body.lstrip())
    except ElementTree.ParseError as error:
        raise wrong_answer(asked, f"it is not XML ({error}): {_shown(body)}") from None
    document = S3Document(plain_name(root), tuple((plain_name(element), element) for element in root))
    if kind.may_list and document.root == _LISTING and document.text("Name"):
        _check_repeated(asked, document, "Name")
        return document
    _check_root(asked, document)
    for repeated in kind.repeats:
        _check_repeated(asked, document, repeated)
    return document


def wrong_answer(asked: S3Request, fault: str) -> WrongAnswer:
    """The error of an answer that is not one to what was asked."""
    said = f"the answer of {asked.location.endpoint_url} to {asked.kind.operation}"
    return WrongAnswer(
        f"{asked.location.name}: {said} is rejected: {fault}",
        hint=f"{NOT_THE_STORE}; 'frostline doctor' tests the store",
    )


def _check_headers(asked: S3Request, headers: Mapping[str, str]) -> None:
    expected = asked.kind.headers
    if expected == "any":
        return
    if "etag" not in headers and (expected == "ETag" or not any(name.startswith(_OF_S3) for name in headers)):
        raise wrong_answer(asked, "it has no ETag" if expected == "ETag" else "it has no header of S3")
    if expected != "of an object":
        return
    if headers.get("content-type", "").lower().startswith("text/html"):
        raise wrong_answer(asked, "it is a page of HTML")
    try:
        date_of(headers["last-modified"])
    except (KeyError, ValueError):
        raise wrong_answer(asked, "it has no Last-Modified that can be read") from None
    given = headers.get("content-range", "")
    if asked.byte_range is not None and given and not given.startswith(f"bytes {asked.byte_range.start}-"):
        raise wrong_answer(asked, f"it holds another range: {given[:_SHOWN]!r}")


def _check_root(asked: S3Request, document: S3Document) -> None:
    kind = asked.kind
    if document.root not in kind.roots:
        raise wrong_answer(asked, f"it is {document.root[:_SHOWN]!r} instead of {kind.roots[0]}")
    for required in kind.required:
        if not document.text(required):
            raise wrong_answer(asked, f"it has no {required}")


def _check_repeated(asked: S3Request, document: S3Document, element: str) -> None:
    place = asked.location
    match element:
        case "Name" | "Bucket":
            if place.bucket.endswith(_ACCESS_POINTS):
                return
            expected = place.bucket.rpartition(":")[2]
        case "Prefix":
            expected = asked.prefix
        case "StartAfter":
            expected = asked.start_after
        case _:
            expected = asked.key
    given = document.text(element)
    if given is None:
        if element == "Prefix" and expected and "IsTruncated" in asked.kind.required:
            raise wrong_answer(asked, f"it has no {element}")
        return
    if expected not in (given, unquote(given), unquote_plus(given)):
        raise wrong_answer(asked, f"it is about {element} {given[:_SHOWN]!r} instead of {expected[:_SHOWN]!r}")


def _shown(body: bytes) -> str:
    return repr(body[:_SHOWN].decode(errors="replace"))
