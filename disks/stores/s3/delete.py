"""Deleting from a bucket: batches with an answer a key, and the exact version where the bucket keeps versions.

A plain delete in a versioned bucket only adds a marker: the object is gone from listings and paid for ever after. So
each key's current version is looked up (a HEAD, which also tells what a lock keeps) and that version is deleted. An
object that a lock keeps is not hidden behind a marker: the next collection must find it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from disks.effects import op
from disks.stores.s3.errors import S3Place, error_of_answer
from disks.stores.wrappers.metered import Meter
from oplog.errors import AccessDenied, FrostlineError, NotFound, Retained

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_HEADS_SIDE_BY_SIDE = 16
_STATUS = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503}

Answers = dict[str, FrostlineError | None]


class Heads(Protocol):
    """Asks for the headers of one object."""

    def head(self, key: str) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where to delete: keys are relative to `prefix`."""

    client: S3Client
    name: str
    prefix: str
    place: S3Place
    meter: Meter


def delete_current(bucket: Bucket, keys: Sequence[str]) -> Answers:
    """Delete what the keys name, with one request. In a versioned bucket that adds markers."""
    return _send(bucket, keys, {})


def delete_versions(bucket: Bucket, keys: Sequence[str], heads: Heads) -> Answers:
    """Delete the current version of each key. What is locked stays and is answered with `Retained`."""
    answers: Answers = dict.fromkeys(keys)
    versions: dict[str, str] = {}
    with ThreadPoolExecutor(_HEADS_SIDE_BY_SIDE, thread_name_prefix="frostline-head") as pool:
        for key, found in zip(keys, pool.map(lambda key: _version(bucket, key, heads), keys), strict=True):
            if isinstance(found, FrostlineError):
                answers[key] = found
            elif found is not None:
                versions[key] = found
    if versions:
        answers |= _send(bucket, list(versions), versions)
    for key, answer in answers.items():
        if isinstance(answer, AccessDenied) and key in versions and _has_object_lock(bucket):
            answers[key] = Retained(
                f"{bucket.place.name}{key} is kept by Object Lock",
                until=None,
                hint="or the credentials lack s3:DeleteObjectVersion; with s3:GetObjectRetention the time would show",
            )
    return answers


def _version(bucket: Bucket, key: str, heads: Heads) -> str | FrostlineError | None:
    """The current version's id (`null` where versioning came later), None when there is nothing to delete."""
    bucket.meter.add("HEAD")
    try:
        headers = heads.head(key)
    except NotFound:
        return None
    except FrostlineError as error:
        return error
    return (
        retained_error(bucket.place, key, headers, now=datetime.now(UTC)) or headers.get("x-amz-version-id") or "null"
    )


def retained_error(place: S3Place, key: str, headers: Mapping[str, str], *, now: datetime) -> Retained | None:
    """What the headers of an object say about its lock."""
    if headers.get("x-amz-object-lock-legal-hold", "").upper() == "ON":
        return Retained(f"{place.name}{key} is under a legal hold", until=None)
    given = headers.get("x-amz-object-lock-retain-until-date")
    if not given:
        return None
    until = datetime.fromisoformat(given)
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    if until <= now:
        return None
    return Retained(f"{place.name}{key} is kept by Object Lock until {until:%Y-%m-%d %H:%M}Z", until=until)


def _has_object_lock(bucket: Bucket) -> bool:
    from botocore.exceptions import ClientError

    bucket.meter.add("GET")
    try:
        found = bucket.client.get_object_lock_configuration(Bucket=bucket.name)
    except ClientError:
        return False
    return found.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"


def keeps_versions(client: S3Client, bucket: str) -> bool:
    """Whether a plain delete would only add a marker. A store that does not say is taken to keep none."""
    from botocore.exceptions import ClientError

    status: Literal["Enabled", "Suspended"] | None
    try:
        status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) in (429, 500, 502, 503, 504):
            raise
        return False
    return status in ("Enabled", "Suspended")


def _send(bucket: Bucket, keys: Sequence[str], versions: Mapping[str, str]) -> Answers:
    answers: Answers = dict.fromkeys(keys)
    objects: list[Any] = [
        {"Key": bucket.prefix + key} | ({"VersionId": versions[key]} if key in versions else {}) for key in keys
    ]
    with op("store.delete", *keys):
        bucket.meter.add("DELETE")
        answer = bucket.client.delete_objects(Bucket=bucket.name, Delete={"Objects": objects, "Quiet": True})
    for failed in answer.get("Errors", []):
        key, code = failed["Key"].removeprefix(bucket.prefix), failed.get("Code", "")
        if code not in ("NoSuchKey", "NoSuchVersion"):
            status = _STATUS.get(code, 400)
            answers[key] = error_of_answer(bucket.place, key, status, code, failed.get("Message", ""))
    return answers
