"""What a bucket's owner has set, read by boto3. Of a server that knows no such question: `NotAnswered`, never a no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from disks.stores.bucket_settings import BucketSettings, LifecycleRule, NotAnswered, ObjectLock, OldVersion

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_Answer = TypeVar("_Answer")

BotoDict = dict[str, Any]
"""What boto3 passes about: a piece of an answer, whose keys servers leave out and add, or of a request."""
_NOT_IMPLEMENTED = 501
_READABLE_CLASSES = {"STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY"}
"""Storage classes from which a GET reads at once; the others need a restore first."""


def read_settings(client: S3Client, bucket: str) -> BucketSettings:
    """Three requests. Raises only what boto3 raises when the server cannot be reached at all."""
    return BucketSettings(
        versioning=_asked(lambda: _versioning(client.get_bucket_versioning(Bucket=bucket).get("Status"))),
        lifecycle=_asked(
            lambda: _rules(client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])),
            absent={"NoSuchLifecycleConfiguration": ()},
        ),
        object_lock=_asked(
            lambda: _lock(client.get_object_lock_configuration(Bucket=bucket).get("ObjectLockConfiguration", {})),
            absent={"ObjectLockConfigurationNotFoundError": ObjectLock(enabled=False)},
        ),
    )


def _asked(question: Callable[[], _Answer], absent: dict[str, _Answer] | None = None) -> _Answer | NotAnswered:
    from botocore.exceptions import ClientError

    try:
        return question()
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if absent and code in absent:
            return absent[code]
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if (
            (status == 404 and code in ("", "404"))
            or status in (408, 429)
            or (status >= 500 and status != _NOT_IMPLEMENTED)
        ):
            raise  # nobody answered the question
        return NotAnswered(f"the store answers {code or 'with an error'}")


def _versioning(status: str | None) -> Any:
    return {"Enabled": "on", "Suspended": "suspended"}.get(status or "", "off")


def _rules(rules: Any) -> tuple[LifecycleRule, ...]:
    return tuple(_rule(rule) for rule in rules if rule.get("Status") == "Enabled")


def _rule(rule: BotoDict) -> LifecycleRule:
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    names = {*chosen, *both} - {"Prefix", "And"}
    archives = [
        f"{_when(move) or 'at once'} to {move['StorageClass']}"
        for move in rule.get("Transitions", ())
        if move.get("StorageClass") not in _READABLE_CLASSES
    ]
    return LifecycleRule(
        name=str(rule.get("ID") or "without a name"),
        prefix=str(rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or ""),
        filtered=bool(names - {"ObjectSizeGreaterThan"}) or bool(_larger_than(chosen) or _larger_than(both)),
        expires=_when(rule.get("Expiration") or {}),
        archives=archives[0] if archives else None,
        old_versions_days=(rule.get("NoncurrentVersionExpiration") or {}).get("NoncurrentDays"),
        abort_uploads_days=(rule.get("AbortIncompleteMultipartUpload") or {}).get("DaysAfterInitiation"),
    )


def _larger_than(chosen: BotoDict) -> int:
    return int(chosen.get("ObjectSizeGreaterThan") or 0)


def _when(action: BotoDict) -> str | None:
    if action.get("Days") is not None:
        return f"after {action['Days']} days"
    if action.get("Date") is not None:
        return f"on {action['Date']:%Y-%m-%d}"
    return None


def _lock(answer: Any) -> ObjectLock | NotAnswered:
    if not answer:
        return NotAnswered("the store gives an empty answer")
    retention = (answer.get("Rule") or {}).get("DefaultRetention") or {}
    days = retention.get("Days") or (365 * retention["Years"] if retention.get("Years") else None)
    return ObjectLock(answer.get("ObjectLockEnabled") == "Enabled", retention.get("Mode"), days)


def old_versions(client: S3Client, bucket: str, prefix: str) -> Iterator[OldVersion]:
    """Non-current versions and delete markers below a full prefix; nothing where the store keeps none."""
    from botocore.exceptions import ClientError

    try:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
            for version in page.get("Versions", []):
                if not version.get("IsLatest"):
                    size = int(version.get("Size") or 0)
                    yield OldVersion(version["Key"], size, version["LastModified"])
            for marker in page.get("DeleteMarkers", []):
                yield OldVersion(marker["Key"], 0, marker["LastModified"], is_marker=True)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("NotImplemented", "MethodNotAllowed"):
            raise
