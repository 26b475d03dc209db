"""What an S3 server, its proxy or the network say, in the words of the contract. The one table for all clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit
from xml.etree import ElementTree

import msgspec

from disks.stores.checks import Unreachable, Untrusted, WrongAnswer, wrong_sha256
from disks.stores.s3.dates import date_of
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    CredentialsExpired,
    Damaged,
    FrostlineError,
    NotFound,
    OutcomeUnknown,
    QuotaReached,
    Refused,
    Throttled,
    Transient,
    UsageError,
)

_THROTTLED = {
    "SlowDown",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
}
_TRANSIENT = {"RequestTimeout", "IncompleteBody", "InternalError", "OperationAborted", "ConditionalRequestConflict"}
_WRONG_DIGEST = {"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidDigest"}
_WRONG_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "TemporaryRedirect",
    "IllegalLocationConstraintException",
}
_DENIED = {"AccessDenied", "RequestTimeTooSkewed"}
"""Also with another status than 403: rclone says 400 of a request whose time is past."""
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"}


_MOST_DIGITS = 9
_UNTRUSTED = re.compile(r"certificate verify failed: ([^(\n]*[^(\n ])")

NOT_THE_STORE = "a proxy or another server may answer in place of the store: check the network and endpoint_url"


class S3Place(msgspec.Struct, frozen=True):
    """Where a request went, for messages."""

    name: str
    bucket: str
    endpoint_url: str
    virtual_host: bool = False
    """The bucket is a part of the host's name."""


def error_of_answer(location: S3Place, key: str, status: int, code: str = "", text: str = "") -> FrostlineError:
    """The error for an answer with this HTTP status and S3 error code. `text` is the server's, for the message only."""
    where = f"{location.name}{key}"
    said = f" ({status} {code})" if code else f" ({status})"
    if code in _THROTTLED or status in (429, 503):
        return Throttled(f"{where}: {location.endpoint_url} asks to slow down{said}")
    if code in _TRANSIENT or status in (408, 500, 502, 504):
        return Transient(f"{where}: temporary failure of {location.endpoint_url}{said}")
    if code in _WRONG_DIGEST:
        return wrong_sha256(location.name, key)
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{where} exists already")
    if code == "NoSuchUpload":
        return NotFound(f"{where}: the upload is gone")
    if code == "InvalidRange" or status == 416:
        return Damaged(f"{where}: the range reaches past the end of the object", hint="run fsck")
    if code in _WRONG_REGION or status in (301, 307):
        return UsageError(f"bucket {location.bucket!r} is in another region{said}", hint="set `region` of the disk")
    if code == "NoSuchBucket":
        return missing_bucket(location)
    if status == 404:
        return NotFound(f"no object {where}")
    if code == "QuotaExceeded" or status == 507:
        return QuotaReached(
            f"{where}: the bucket's quota is used up{said}",
            hint="raise the quota, or delete orphaned objects with 'frostline gc'",
        )
    if code == "InvalidObjectState":
        return Refused(f"{where} is in an archive class", hint="restore it in the bucket first, then try again")
    if status in (401, 403) or code in _EXPIRED or code in _DENIED:
        return _denied(location, where, code, said, text)
    hint = "the store does not take checksums: set `checksums: none` for the disk" if "checksum" in text.lower() else ""
    return FrostlineError(f"{where}: {location.endpoint_url} refused the request{said}: {text[:200]}", hint=hint)


def missing_bucket(location: S3Place) -> NotFound:
    """The bucket itself is not there: said by name, for it is a mistake in the configuration more often than a loss."""
    return NotFound(
        f"no bucket {location.bucket!r} at {location.endpoint_url}",
        hint="create it, or check `url` and `endpoint_url` of the disk",
    )


def _denied(location: S3Place, where: str, code: str, said: str, text: str) -> AccessDenied:
    if code in _EXPIRED:
        return CredentialsExpired(
            f"{where}: access denied{said}", hint="the session token has expired: get a new one (`aws sso login`)"
        )
    if code == "RequestTimeTooSkewed" or "request time" in text:
        hint = "the clock of this machine is wrong: set it (NTP), then try again"
    elif code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        hint = "check the access key and the secret (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or the profile)"
    else:
        hint = (
            f"the credentials need s3:GetObject, PutObject, DeleteObject and ListBucket on bucket {location.bucket!r}"
        )
    return AccessDenied(f"{where}: access denied{said}", hint=hint)


def no_credentials(location: S3Place) -> AccessDenied:
    """Never fall back to anonymous requests: they would read a public bucket and fail on the first write."""
    return AccessDenied(
        f"no credentials for {location.name}",
        hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use an instance role",
    )


def not_answered(location: S3Place, key: str, error: BaseException) -> Transient:
    """The connection failed or broke."""
    reason = type(error).__name__
    return Transient(
        f"{location.name}{key}: no answer from {location.endpoint_url} ({reason})",
        hint="check the network and endpoint_url",
    )


def unreachable(location: S3Place, key: str, error: BaseException) -> Unreachable:
    """No connection could be made."""
    if (untrusted := _UNTRUSTED.search(str(error))) is not None:
        return _untrusted(location, key, untrusted[1])
    failed = not_answered(location, key, error)
    within = getattr(error, "kwargs", {}).get("error", error)  # boto3 wraps what its HTTP library said
    if location.virtual_host and (isinstance(within, socket.gaierror) or "Failed to resolve" in str(within)):
        host = urlsplit(location.endpoint_url).hostname
        return Unreachable(
            f"{failed.message}: no address of {location.bucket}.{host}",
            hint="the bucket is part of the host's name: set `addressing_style: path` for the disk, or check the name",
        )
    return Unreachable(failed.message, hint=failed.hint)


def _untrusted(location: S3Place, key: str, reason: str) -> Untrusted:
    """`reason` is the message of OpenSSL. Ours says what to do, for it is what every verb shows of a disk
    that cannot be reached."""
    if "expired" in reason or "not yet valid" in reason:
        remedy = "the server needs a new certificate; or the clock of this machine is wrong"
    elif "mismatch" in reason or "doesn't match" in reason:
        remedy = "`endpoint_url` must name the server as its certificate does"
    else:
        remedy = "give its authority's PEM file: `ca_bundle` of the disk, or AWS_CA_BUNDLE"
    return Untrusted(
        f"{location.name}{key}: the certificate of {location.endpoint_url} is not accepted: {reason}; {remedy}",
        hint="nothing was sent",
    )


def waiting(error: FrostlineError, headers: Mapping[str, str]) -> FrostlineError:
    """The error, with the time that the server's `Retry-After` names: in seconds, or as a date by the server's own
    clock. Names of headers are in lower case."""
    given = headers.get("retry-after", "").strip()
    if not given or not isinstance(error, Transient):
        return error
    if given.isascii() and given.isdecimal():
        error.retry_after_seconds = float(given[:_MOST_DIGITS])
        return error
    try:
        now = date_of(headers["date"]) if "date" in headers else datetime.now(UTC)
        error.retry_after_seconds = max(0.0, (date_of(given) - now).total_seconds())
    except ValueError:  # no date: the pause is ours to choose
        pass
    return error


def outcome_unknown(location: S3Place, key: str, error: FrostlineError) -> OutcomeUnknown:
    """A conditional write whose answer was lost: it may have taken effect."""
    return OutcomeUnknown(f"{location.name}{key}: written or not, the answer was lost: {error.message}")


def error_of_xml(location: S3Place, key: str, status: int, body: bytes) -> FrostlineError:
    """The error for an answer whose body is S3's XML, or a proxy's page."""
    code, text = "", body[:200].decode(errors="replace")
    try:
        root = ElementTree.fromstring(body)
        for element in root.iter():
            tag = element.tag.rpartition("}")[2]
            if tag == "Code":
                code = element.text or ""
            elif tag == "Message":
                text = element.text or ""
    except ElementTree.ParseError:
        pass
    if status == 404 and not code and body:
        return bare_404(location, key, text)
    return error_of_answer(location, key, status, code, text)


def bare_404(location: S3Place, key: str, text: str) -> WrongAnswer:
    """A store says what is missing. A 404 that says nothing of S3 may be a proxy's."""
    return WrongAnswer(
        f"{location.name}{key}: {location.endpoint_url} answers 404 without an error of S3: {text[:60]!r}",
        hint=NOT_THE_STORE,
    )


def error_of_client(location: S3Place, key: str, error: Exception) -> FrostlineError:
    """The error for an exception of boto3."""
    from botocore.exceptions import (
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        HTTPClientError,
        NoCredentialsError,
        SSLError,
    )
    from botocore.parsers import ResponseParserError

    if isinstance(error, ResponseParserError):
        fault = f"the answer of {location.endpoint_url} is rejected: it is not XML of S3"
        return WrongAnswer(f"{location.name}{key}: {fault}", hint=NOT_THE_STORE)
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(details.get("Code", ""))
        if status == 404 and code in ("", "404"):
            return bare_404(location, key, str(details.get("Message", "")))
        said = error_of_answer(location, key, status, "" if code.isdigit() else code, str(details.get("Message", "")))
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return waiting(said, {name.lower(): value for name, value in headers.items()})
    if isinstance(error, NoCredentialsError):
        return no_credentials(location)
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, SSLError)):
        return unreachable(location, key, error)
    if isinstance(error, HTTPClientError):
        return not_answered(location, key, error)
    return FrostlineError(f"{location.name}{key}: {type(error).__name__}: {error}")
