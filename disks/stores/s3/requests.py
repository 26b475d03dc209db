"""Signed HTTP requests to S3: the data plane.

Why not the client libraries: the caller has the SHA-256 of what it writes. boto3 takes it as the object's checksum, but
no library takes it as the payload hash of the signature: they hash the body again, or leave it out of the signature.
Here it serves as both, so Ceph and every other server that checks signatures checks the body, and AWS and others its
checksum. What that saves is measured in `docs/decisions/0002-signed-puts.md`. Besides:
  1,500 HEADs by 32 threads: 0.13 CPU seconds a thousand here, 1.2 to 1.5 in boto3, 0.16 to 0.19 in obstore.
Listings: obstore matches whole path segments only, and fails as a whole on one key that it dislikes.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol
from urllib.parse import quote, unquote_plus, urlsplit

import msgspec

from disks.config import Checksums
from disks.stores.base import ByteRange
from disks.stores.checks import Truncated, WrongAnswer
from disks.stores.s3.answers import KINDS, S3Document, S3Request, checked, wrong_answer
from disks.stores.s3.dates import date_of, time_of
from disks.stores.s3.errors import S3Place, error_of_xml, not_answered, unreachable, waiting
from disks.stores.s3.http import Connections, NotConnected
from disks.stores.s3.http_answers import CutOff, HttpAnswer
from disks.stores.time_budget import time_budget_seconds
from disks.system_errors import errno_in, of_the_system
from oplog.errors import FrostlineError, Transient

EMPTY_SHA256 = hashlib.sha256(b"").digest()
_ALGORITHM = "AWS4-HMAC-SHA256"
_CHECKSUM = "x-amz-checksum-sha256"
_CHECKSUM_MODE = "x-amz-checksum-mode"
_MOST_CHECKED_BYTES = 16 * 1024 * 1024
"""Larger objects are data, which their reader compares by itself."""
_NOT_TAKEN = (400, 501)
"""What servers answer to a header that they do not take."""
_CONNECT_TIMEOUT_SECONDS = 10.0
_READ_TIMEOUT_SECONDS = 60.0


class Credentials(Protocol):
    """A frozen set of credentials, as botocore gives it."""

    access_key: str
    secret_key: str
    token: str | None


class ListedKey(msgspec.Struct, frozen=True):
    """One key of a listing page, as the server gave it."""

    key: str
    size_bytes: int
    modified: datetime


Page = tuple[list[ListedKey], bool]
"""The keys of one page, and whether more follow."""


class S3Requests:
    """Sends one request a call: no retries, no redirects. Thread-safe."""

    def __init__(
        self,
        location: S3Place,
        *,
        bucket_url: str,
        prefix: str,
        region: str,
        credentials: Callable[[], Credentials],
        ca_bundle: str | None = None,
        proxy_url: str | None = None,
        checksums: Checksums = "auto",
    ) -> None:
        self._location = location
        self.checksums = checksums
        self._gives_checksums = checksums == "sha256"
        self._prefix = prefix
        self._region = region
        self._credentials = credentials
        parts = urlsplit(bucket_url)
        self._host, self._base = parts.netloc, parts.path.rstrip("/")
        self._connections = Connections(bucket_url, ca_bundle=ca_bundle, proxy_url=proxy_url)
        self._key_of_day: tuple[object, bytes] = (None, b"")

    @property
    def name(self) -> str:
        """What messages call the store."""
        return self._location.name

    def leave_checksums_out(self) -> None:
        """From here on no request carries or asks for `x-amz-checksum-*`: the store does not take them."""
        self.checksums = "none"

    def _is_mere_refusal(self, method: str, key: str, answer: HttpAnswer) -> bool:
        """Whether the answer may be about a header. One to HEAD has no body that could say so."""
        return method == "HEAD" or type(error_of_xml(self._location, key, answer.status, answer.body)) is FrostlineError

    def put(
        self, key: str, body: memoryview, sha256: bytes, headers: Mapping[str, str], *, query: str = ""
    ) -> Mapping[str, str]:
        """PUT the body with its known digest, below the prefix; the answer's headers. `query`: that of a part."""
        sent = dict(headers)
        if self.checksums != "none":
            sent |= {"x-amz-sdk-checksum-algorithm": "SHA256", _CHECKSUM: base64.b64encode(sha256).decode()}
        asked = self._asked("UploadPart" if query else "PutObject", key)
        answer, _ = self._send(asked, "PUT", query, sent, body, sha256.hex())
        return answer.headers

    def get(self, key: str, byte_range: ByteRange | None) -> HttpAnswer:
        """The answer with the object's bytes, or those of the range; `is_whole` tells which.

        A body that ends before its announced length is `Truncated`; a whole one that is not what the store keeps a
        checksum of is `Transient`: it was altered on the way, which no chain of digests shows of a log's last entry.
        """
        asked = self._asked("GetObject", key, byte_range=byte_range)
        if byte_range is None:
            answer = self._exchange_whole("GET", key)
            self._document(asked, answer)
        else:
            sent = {"range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
            answer, _ = self._send(asked, "GET", "", sent, None, EMPTY_SHA256.hex())
        if byte_range is None and not _is_as_kept(answer):
            raise Transient(f"{self._location.name}{key}: the bytes that arrived are not those that the store keeps")
        if "content-length" not in answer.headers and "transfer-encoding" not in answer.headers:
            raise Transient(f"{self._location.name}{key}: an answer without a length, which may be a part of it")
        return answer

    def list_page(self, prefix: str, start_after: str) -> Page:
        """Up to 1,000 full keys of the bucket in order, and whether more follow."""
        query = f"encoding-type=url&list-type=2&max-keys=1000&prefix={_quoted(prefix)}"
        if start_after:
            query += f"&start-after={_quoted(start_after)}"
        asked = S3Request(KINDS["ListObjectsV2"], self._location, prefix=prefix, start_after=start_after)
        _, document = self._send(asked, "GET", query, {}, None, EMPTY_SHA256.hex())
        assert document is not None
        return _parse_page(asked, document)

    def head(self, key: str) -> Mapping[str, str]:
        """The headers of one object."""
        asked = self._asked("HeadObject" if key else "HeadBucket", key)
        answer = self._exchange_whole("HEAD", key)
        is_page = answer.status == 404 and answer.headers.get("content-type", "").startswith("text/html")
        if answer.status == 400 or (is_page and key):
            # An answer to HEAD has no body: a GET says what is wrong, such as an expired token, and whether the store
            # itself says that there is no such object.
            self._send(self._asked("GetObject", key), "GET", "", {"range": "bytes=0-0"}, None, EMPTY_SHA256.hex())
        if is_page:
            raise wrong_answer(asked, "it is a page of HTML with status 404")
        if answer.status >= 300:
            raise self._error(key, answer)
        checked(asked, answer.headers, b"")
        return answer.headers

    def _exchange_whole(self, method: str, key: str) -> HttpAnswer:
        """The answer to a GET or HEAD of a whole object, which asks for its checksum too. A store that refuses that
        question, and answers without it, is asked without it from then on."""
        empty = EMPTY_SHA256.hex()
        if self.checksums == "none":
            return self._exchange(method, key, "", {}, None, empty)
        answer = self._exchange(method, key, "", {_CHECKSUM_MODE: "ENABLED"}, None, empty)
        if answer.status < 300:
            self._gives_checksums = True
        elif answer.status in _NOT_TAKEN and not self._gives_checksums and self._is_mere_refusal(method, key, answer):
            bare = self._exchange(method, key, "", {}, None, empty)
            if bare.status < 300 or bare.status == 404:
                self.leave_checksums_out()
            return bare
        return answer

    def read_versioning(self) -> S3Document | None:
        """What the bucket says about its versions."""
        return self._read_setting("GetBucketVersioning", "versioning")

    def read_object_lock(self) -> S3Document | None:
        """What the bucket says about its Object Lock."""
        return self._read_setting("GetObjectLockConfiguration", "object-lock")

    def _read_setting(self, operation: str, query: str) -> S3Document | None:
        """None where the server does not know the question."""
        _, found = self._send(self._asked(operation, ""), "GET", query, {}, None, EMPTY_SHA256.hex())
        return found if found is not None and found.root == KINDS[operation].roots[0] else None

    def delete(self, body: bytes) -> S3Document:
        """POST the list of keys to delete to the bucket; what the server says of them. Some servers want the body's
        MD5, and look at nothing else."""
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        sent = {"content-type": "application/xml", "content-md5": checksum}
        asked, digest = self._asked("DeleteObjects", ""), hashlib.sha256(body).hexdigest()
        _, found = self._send(asked, "POST", "delete", sent, memoryview(body), digest)
        assert found is not None
        return found

    def clock_skew(self) -> timedelta | None:
        """How far the server's clock is ahead, from the Date of an answer of any status; None when it sends none."""
        began = datetime.now(UTC)
        answer = self._exchange("HEAD", "", "", {}, None, EMPTY_SHA256.hex())
        here = began + (datetime.now(UTC) - began) / 2
        try:
            there = date_of(answer.headers["date"])
        except (KeyError, ValueError):
            return None
        # A Date has whole seconds, cut off: the middle of its second is the best guess.
        return there + timedelta(seconds=0.5) - here

    def close(self) -> None:
        self._connections.close()

    def _asked(self, operation: str, key: str, *, byte_range: ByteRange | None = None) -> S3Request:
        """`key` is below the prefix; empty for the bucket itself."""
        return S3Request(KINDS[operation], self._location, self._prefix + key if key else "", byte_range=byte_range)

    def _send(
        self,
        asked: S3Request,
        method: str,
        query: str,
        headers: Mapping[str, str],
        body: memoryview | None,
        payload_hash: str,
    ) -> tuple[HttpAnswer, S3Document | None]:
        """The answer, and its document where it has one. Raises the error of a status, and `WrongAnswer` for an answer
        to something else."""
        key = asked.key.removeprefix(self._prefix)
        answer = self._exchange(method, key, query, headers, body, payload_hash)
        return answer, self._document(asked, answer)

    def _document(self, asked: S3Request, answer: HttpAnswer) -> S3Document | None:
        if answer.status >= 300:
            raise self._error(asked.key.removeprefix(self._prefix), answer)
        return checked(asked, answer.headers, answer.body)

    def _error(self, key: str, answer: HttpAnswer) -> FrostlineError:
        error = error_of_xml(self._location, key, answer.status, answer.body)
        return waiting(error, answer.headers)

    def _exchange(
        self, method: str, key: str, query: str, headers: Mapping[str, str], body: memoryview | None, payload_hash: str
    ) -> HttpAnswer:
        """The answer, whatever its status."""
        path = f"{self._base}/{_quoted(self._prefix + key, safe='/')}" if key else self._base or "/"
        signed = self._signed(method, path, query, headers, payload_hash)
        if body is not None:
            signed["content-length"] = str(len(body))
        wanted = time_budget_seconds()
        try:
            return self._connections.exchange(
                method,
                f"{path}?{query}" if query else path,
                signed,
                body,
                connect_seconds=min(_CONNECT_TIMEOUT_SECONDS, wanted),
                # A silent server may be at work, so it gets a little more than the caller has patience for.
                silence_seconds=min(_READ_TIMEOUT_SECONDS, 2.5 * wanted),
            )
        except NotConnected as error:
            cause = error.__cause__ or error
            if errno_in(cause) in (errno.EMFILE, errno.ENFILE):  # says nothing about the server
                raise of_the_system(cause, self._location.name) or error from error
            raise unreachable(self._location, key, error.__cause__ or error) from error
        except CutOff as error:
            raise Truncated(f"{self._location.name}{key}: the body ended early") from error
        except OSError as error:
            raise not_answered(self._location, key, error) from error

    def _signed(
        self, method: str, path: str, query: str, headers: Mapping[str, str], payload_hash: str
    ) -> dict[str, str]:
        """AWS Signature Version 4 over every header we send."""
        credentials = self._credentials()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        fields = {**headers, "host": self._host, "x-amz-date": moment, "x-amz-content-sha256": payload_hash}
        if credentials.token:
            fields["x-amz-security-token"] = credentials.token
        names = sorted(fields)
        listed = ";".join(names)
        canonical_headers = "".join(f"{name}:{fields[name]}\n" for name in names)
        canonical = "\n".join((method, path, _canonical_query(query), canonical_headers, listed, payload_hash))
        scope = f"{moment[:8]}/{self._region}/s3/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._signing_key(credentials.secret_key, moment[:8]), text.encode(), "sha256").hex()
        fields["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={listed},Signature={signature}"
        )
        return fields

    def _signing_key(self, secret: str, day: str) -> bytes:
        """Derived once a day and secret. Threads may derive it twice; what they keep is one tuple, so never mixed."""
        known, key = self._key_of_day
        if known != (secret, day):
            key = b"AWS4" + secret.encode()
            for step in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, step.encode(), "sha256")
            self._key_of_day = ((secret, day), key)
        return key


def kept_sha256(headers: Mapping[str, str]) -> str | None:
    """The SHA-256 (hex) that the store keeps of the whole object; None where it says none, or one of several parts."""
    try:
        digest = base64.b64decode(headers.get(_CHECKSUM, ""), validate=True)
    except ValueError:
        return None
    return digest.hex() if len(digest) == 32 else None


def _is_as_kept(answer: HttpAnswer) -> bool:
    """Whether the body is what the answer's checksum says; so it is where there is none, or one of several parts."""
    kept = answer.headers.get(_CHECKSUM, "")
    if answer.status != 200 or len(kept) != 44 or len(answer.body) > _MOST_CHECKED_BYTES:
        return True
    return base64.b64encode(hashlib.sha256(answer.body).digest()).decode() == kept


def is_whole(answer: HttpAnswer) -> bool:
    """Whether it holds the whole object: some servers answer a range of a small object with all of it."""
    return answer.status != 206 and "content-range" not in answer.headers


def _quoted(text: str, safe: str = "") -> str:
    return quote(text, safe=f"-_.~{safe}")


def _canonical_query(query: str) -> str:
    """Sorted, every name with a `=`; names and values are quoted already."""
    return "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&"))) if query else ""


def _parse_page(asked: S3Request, document: S3Document) -> Page:
    encoded = document.text("EncodingType") == "url"
    items, listed = [], document.all("Contents")
    for fields in listed:
        try:
            key = unquote_plus(fields["Key"]) if encoded else fields["Key"]
            item = ListedKey(key, int(fields["Size"]), time_of(fields["LastModified"]))
        except (KeyError, ValueError) as error:
            raise wrong_answer(asked, f"it lists an object without key, size or time ({error})") from None
        if not key.startswith(asked.prefix) or item.size_bytes < 0:
            raise wrong_answer(asked, f"it lists {key[:80]!r} of {item.size_bytes} bytes below {asked.prefix!r}")
        items.append(item)
    count = document.text("KeyCount")
    if count is not None and count != str(len(items)):
        raise wrong_answer(asked, f"it counts {count[:20]!r} keys and lists {len(items)}")
    truncated = document.text("IsTruncated")
    if truncated not in ("true", "false"):
        raise wrong_answer(asked, f"IsTruncated is {truncated!r}")
    return items, truncated == "true"


def pages(fetch: Callable[[str, str], Page], prefix: str, start_after: str, name: str) -> Iterator[ListedKey]:
    """Every key after `start_after`, page by page. A server that begins with that key itself is put up with. Raises
    `WrongAnswer` for one that lists earlier keys, or not in key order.

    Pages go on from the last key instead of a token: a listing can then be taken up again after any failure.
    """
    last = start_after.encode()
    truncated = True
    while truncated:
        asked_after = last
        items, truncated = fetch(prefix, last.decode())
        if items and asked_after and items[0].key.encode() == asked_after:
            del items[0]
        if truncated and not items:
            raise WrongAnswer(f"{name}: an empty page of a listing says that more follow")
        for item in items:
            encoded = item.key.encode()
            if encoded <= last and last:
                raise _out_of_order(name, item.key, "after" if last == asked_after else "in order", last.decode())
            last = encoded
            yield item


def _out_of_order(name: str, key: str, rule: str, last: str) -> WrongAnswer:
    why = f"is not in key order at {key!r}" if rule == "in order" else f"begins at {key!r}, not after {last!r}"
    return WrongAnswer(
        f"{name}: the listing {why}",
        hint="a bucket that lists so (such as a directory bucket) cannot hold a disk: 'frostline doctor' tests it",
    )
