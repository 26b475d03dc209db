"""Deleting from a bucket: batches with an answer a key, and the exact version where the bucket keeps versions.

A plain delete in a versioned bucket only adds a marker: the object is gone from listings and paid for ever after. So
each key's current version is looked up (a HEAD, which also tells what a lock keeps) and that version is deleted. An
object that a lock keeps is not hidden behind a marker: the next collection must find it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from xml.etree import ElementTree

import msgspec

from disks.effects import op
from disks.stores.checks import WrongAnswer
from disks.stores.s3.errors import S3Place, error_of_answer
from disks.stores.s3.requests import S3Requests
from disks.stores.wrappers.metered import Meter
from oplog.errors import AccessDenied, FrostlineError, NotFound, Retained

_HEADS_SIDE_BY_SIDE = 16
_STATUS = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503}
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

Answers = dict[str, FrostlineError | None]


class Bucket(msgspec.Struct, frozen=True):
    """Where to delete: keys are relative to `prefix`."""

    requests: S3Requests
    prefix: str
    location: S3Place
    meter: Meter


def delete_current(bucket: Bucket, keys: Sequence[str]) -> Answers:
    """Delete what the keys name, with one request. In a versioned bucket that adds markers."""
    return _send(bucket, keys, {})


def delete_versions(bucket: Bucket, keys: Sequence[str]) -> Answers:
    """Delete the current version of each key. What is locked stays and is answered with `Retained`."""
    answers: Answers = dict.fromkeys(keys)
    versions: dict[str, str] = {}
    with ThreadPoolExecutor(_HEADS_SIDE_BY_SIDE, thread_name_prefix="frostline-head") as pool:
        for key, found in zip(keys, pool.map(lambda key: _version(bucket, key), keys), strict=True):
            if isinstance(found, FrostlineError):
                answers[key] = found
            elif found is not None:
                versions[key] = found
    if versions:
        answers |= _send(bucket, list(versions), versions)
    for key, answer in answers.items():
        if isinstance(answer, AccessDenied) and key in versions and _has_object_lock(bucket):
            answers[key] = Retained(
                f"{bucket.location.name}{key} is kept by Object Lock",
                until=None,
                hint="or the credentials lack s3:DeleteObjectVersion; with s3:GetObjectRetention the time would show",
            )
    return answers


def _version(bucket: Bucket, key: str) -> str | FrostlineError | None:
    """The current version's id (`null` where versioning came later), None when there is nothing to delete."""
    bucket.meter.add("HEAD")
    try:
        headers = bucket.requests.head(key)
    except NotFound:
        return None
    except FrostlineError as error:
        return error
    return (
        retained_error(bucket.location, key, headers, now=datetime.now(UTC))
        or headers.get("x-amz-version-id")
        or "null"
    )


def retained_error(location: S3Place, key: str, headers: Mapping[str, str], *, now: datetime) -> Retained | None:
    """What the headers of an object say about its lock."""
    if headers.get("x-amz-object-lock-legal-hold", "").upper() == "ON":
        return Retained(
            f"{location.name}{key} is under a legal hold", until=None, hint="remove the legal hold in the bucket first"
        )
    given = headers.get("x-amz-object-lock-retain-until-date")
    if not given:
        return None
    until = datetime.fromisoformat(given)
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    if until <= now:
        return None
    return Retained(
        f"{location.name}{key} is kept by Object Lock until {until:%Y-%m-%d %H:%M}Z",
        until=until,
        hint="the next gc deletes it when that is over",
    )


def _has_object_lock(bucket: Bucket) -> bool:
    bucket.meter.add("GET")
    try:
        found = bucket.requests.read_object_lock()
    except FrostlineError:
        return False
    return found is not None and found.text("ObjectLockEnabled") == "Enabled"


def keeps_versions(requests: S3Requests) -> bool:
    """Whether a plain delete would only add a marker. A store that does not say is taken to keep none; one that cannot
    say now raises its error, which is worth another try."""
    try:
        found = requests.read_versioning()
    except FrostlineError as error:
        if error.retryable:
            raise
        return False
    return found is not None and found.text("Status") in ("Enabled", "Suspended")


def _send(bucket: Bucket, keys: Sequence[str], versions: Mapping[str, str]) -> Answers:
    answers: Answers = dict.fromkeys(keys)
    with op("store.delete", *keys):
        bucket.meter.add("DELETE")
        found = bucket.requests.delete(_wanted(bucket.prefix, keys, versions))
    for failed in found.all("Error"):
        full, code = failed.get("Key", ""), failed.get("Code", "")
        key = full.removeprefix(bucket.prefix)
        if key not in answers or full != bucket.prefix + key:
            raise WrongAnswer(
                f"{bucket.location.name}: the answer to a delete is about {full[:80]!r}, which was not to be deleted",
                hint="it may be that of another request: run the command again",
            )
        if code not in ("NoSuchKey", "NoSuchVersion"):
            status = _STATUS.get(code, 400)
            answers[key] = error_of_answer(bucket.location, key, status, code, failed.get("Message", ""))
    return answers


def _wanted(prefix: str, keys: Sequence[str], versions: Mapping[str, str]) -> bytes:
    """The body of the request: only what fails is to be told."""
    root = ElementTree.Element("Delete", xmlns=_NAMESPACE)
    for key in keys:
        one = ElementTree.SubElement(root, "Object")
        ElementTree.SubElement(one, "Key").text = prefix + key
        if key in versions:
            ElementTree.SubElement(one, "VersionId").text = versions[key]
    ElementTree.SubElement(root, "Quiet").text = "true"
    body: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return body
