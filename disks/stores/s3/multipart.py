"""Objects too large for one PUT: uploads in parts, and copies in parts that move no bytes through us."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from disks.effects import op
from disks.host.clean_up import clean_up_owed
from oplog.errors import FrostlineError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PART_BYTES = 64 * 1024 * 1024
COPY_PART_BYTES = 512 * 1024 * 1024
_MOST_PARTS = 10_000
_SIDE_BY_SIDE = 4

PutPart = Callable[[memoryview, bytes, str], str]
"""Sends one part with its SHA-256 and query string; the answer is its ETag."""


def part_bytes(total_bytes: int, wanted_bytes: int) -> int:
    """The wanted size of a part, or larger when there would be more than 10,000 of them."""
    return max(wanted_bytes, -(-total_bytes // _MOST_PARTS))


class MultipartUpload:
    """One upload that becomes an object as a whole by `complete`, or is aborted when anything fails before that."""

    def __init__(
        self, client: S3Client, bucket: str, key: str, metadata: Mapping[str, str], *, with_checksums: bool
    ) -> None:
        self._client, self._bucket, self._key = client, bucket, key
        self._with_checksums = with_checksums
        algorithm: Any = {"ChecksumAlgorithm": "SHA256"} if with_checksums else {}
        with op("store.create_upload", key):
            answer = client.create_multipart_upload(Bucket=bucket, Key=key, Metadata=dict(metadata), **algorithm)
        self.upload_id = answer["UploadId"]

    def send(
        self, view: memoryview, sha256: bytes, put_part: PutPart, wrong: FrostlineError, wanted_bytes: int
    ) -> None:
        """Upload and complete. Every part goes with its own digest; the whole is hashed on the way and must match."""
        size = part_bytes(len(view), wanted_bytes)
        whole = hashlib.sha256()
        try:
            with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="frostline-part") as pool:
                waiting: list[Future[CompletedPartTypeDef]] = []
                for number, start in enumerate(range(0, len(view), size), 1):
                    part = view[start : start + size]
                    whole.update(part)
                    waiting.append(pool.submit(self._send_part, number, part, put_part))
                    if len(waiting) > _SIDE_BY_SIDE:
                        waiting[-_SIDE_BY_SIDE - 1].result()
                parts = [future.result() for future in waiting]
            if whole.digest() != sha256:
                raise wrong
            self.complete(parts)
        except BaseException:
            self.abort_quietly()
            raise

    def _send_part(self, number: int, part: memoryview, put_part: PutPart) -> CompletedPartTypeDef:
        digest = hashlib.sha256(part).digest()
        with op("store.upload_part", self._key, number):
            etag = put_part(part, digest, f"partNumber={number}&uploadId={_quoted(self.upload_id)}")
        sent: CompletedPartTypeDef = {"PartNumber": number, "ETag": etag}
        if self._with_checksums:
            sent["ChecksumSHA256"] = base64.b64encode(digest).decode()
        return sent

    def complete(self, parts: list[CompletedPartTypeDef]) -> None:
        with op("store.complete_upload", self._key):
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=self._key, UploadId=self.upload_id, MultipartUpload={"Parts": parts}
            )

    def copy(self, source_bucket: str, source_key: str, size_bytes: int) -> None:
        """Fill the upload from another object and complete it."""
        size = part_bytes(size_bytes, COPY_PART_BYTES)
        try:
            parts: list[CompletedPartTypeDef] = []
            for number, start in enumerate(range(0, size_bytes, size), 1):
                with op("store.copy_part", self._key, number):
                    answer = self._client.upload_part_copy(
                        Bucket=self._bucket,
                        Key=self._key,
                        UploadId=self.upload_id,
                        PartNumber=number,
                        CopySource={"Bucket": source_bucket, "Key": source_key},
                        CopySourceRange=f"bytes={start}-{min(start + size, size_bytes) - 1}",
                    )
                result = answer["CopyPartResult"]
                part: CompletedPartTypeDef = {"PartNumber": number, "ETag": result["ETag"]}
                if checksum := result.get("ChecksumSHA256"):
                    part["ChecksumSHA256"] = checksum
                parts.append(part)
            self.complete(parts)
        except BaseException:
            self.abort_quietly()
            raise

    def abort_quietly(self) -> None:
        """Free the parts. When even that fails the upload stays listed, and the garbage collector ends it later."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with clean_up_owed(), op("store.abort_upload", self._key):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=self.upload_id)
        except (ClientError, BotoCoreError):
            pass


def list_uploads(client: S3Client, bucket: str, prefix: str) -> Iterator[tuple[str, str, object]]:
    """Key, id and start of every unfinished upload."""
    from botocore.exceptions import ClientError

    try:
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
            for upload in page.get("Uploads", []):
                yield upload["Key"], upload["UploadId"], upload["Initiated"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchUpload":  # what some servers say when there are none
            raise


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="-_.~")
