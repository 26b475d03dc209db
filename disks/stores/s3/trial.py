"""Requests that no disk sends: how a server answers what `doctor` wants to know, past all that the store itself does
about weak servers. Keys are the caller's own, below its scratch place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from disks.effects import op
from disks.stores.s3.errors import error_of_client
from disks.stores.s3.session import S3Session


def put(session: S3Session, key: str, body: bytes, sha256: bytes, headers: Mapping[str, str]) -> None:
    """One put as it is, repeated and mended by nobody."""
    with op("store.put", key):
        session.requests.put(key, memoryview(body), sha256, headers)


def keeps_underscores(session: S3Session, key: str, body: bytes) -> tuple[bool, str]:
    """Whether user metadata with `_` in its name comes back under that name."""
    put(session, key, body, hashlib.sha256(body).digest(), {"x-amz-meta-from_path": "kept"})
    headers = session.requests.head(key)
    found = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-amz-meta-")}
    if found.get("x-amz-meta-from_path") == "kept":
        return True, ""
    return False, f"came back as {', '.join(found)}" if found else "was not returned"


def try_multipart(session: S3Session, key: str) -> tuple[bool, str]:
    """Begin an upload as the store does, find it in the listing, end it: everything but completing it."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        return _try_multipart(session, key)
    except (ClientError, BotoCoreError, ResponseParserError) as error:
        raise error_of_client(session.location, key, error) from error


def _try_multipart(session: S3Session, key: str) -> tuple[bool, str]:
    client, full = session.client, session.prefix + key
    algorithm: Any = {} if session.requests.checksums == "none" else {"ChecksumAlgorithm": "SHA256"}
    with op("store.create_upload", key):
        upload_id = client.create_multipart_upload(Bucket=session.bucket, Key=full, **algorithm)["UploadId"]
    try:
        body = b"a part of an upload that is never completed"
        query = f"partNumber=1&uploadId={quote(upload_id, safe='-_.~')}"
        with op("store.upload_part", key, 1):
            session.requests.put(key, memoryview(body), hashlib.sha256(body).digest(), {}, query=query)
        found = client.list_multipart_uploads(Bucket=session.bucket, Prefix=full).get("Uploads", [])
        listed = any(upload.get("UploadId") == upload_id for upload in found)
    finally:
        with op("store.abort_upload", key):
            client.abort_multipart_upload(Bucket=session.bucket, Key=full, UploadId=upload_id)
    return listed, "" if listed else "an upload under way is not in the list of uploads"
