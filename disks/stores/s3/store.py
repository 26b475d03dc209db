"""A bucket on AWS, Ceph, MinIO or any other S3 server.

Two clients, each where it is best: our own signed requests for the data plane (`s3_requests` says why), boto3 for the
control plane. Neither retries.

AWS's promises are known. Any other server is asked by the first write (`probe`). Reading alone never probes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from disks.effects import op
from disks.stores.base import (
    ByteRange,
    ObjectInfo,
    ObjectStore,
    Payload,
    S3Connection,
    StoreCapabilities,
    Upload,
    check_key,
)
from disks.stores.bucket_settings import BucketSettings, OldVersion
from disks.stores.checks import (
    Truncated,
    Unreachable,
    check_digest_length,
    check_metadata,
    check_range,
    check_sha256,
    past_the_end,
    wrong_sha256,
)
from disks.stores.payload import opened
from disks.stores.s3 import delete as s3_delete
from disks.stores.s3 import multipart as s3_multipart
from disks.stores.s3 import settings as s3_settings
from disks.stores.s3.dates import date_of
from disks.stores.s3.errors import error_of_client, missing_bucket, outcome_unknown
from disks.stores.s3.http_answers import HttpAnswer
from disks.stores.s3.multipart import PART_BYTES, MultipartUpload
from disks.stores.s3.probe import PROBE_KEY as PROBE_KEY
from disks.stores.s3.probe import WriteProbe
from disks.stores.s3.requests import ListedKey, Page, is_whole, kept_sha256, pages
from disks.stores.s3.session import S3Session
from disks.stores.time_budget import take_last_look
from disks.stores.wrappers.metered import PAGE_KEYS, Meter
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    CredentialsExpired,
    FrostlineError,
    NotFound,
    Refused,
    Throttled,
    Transient,
    UsageError,
)

_METADATA_HEADER = "x-amz-meta-"
_MOST_SINGLE_PUT_BYTES = 5 * 1024**3
_log = logging.getLogger("frostline.stores.s3")
_probed: dict[tuple[str, str, str], StoreCapabilities] = {}
_probes: dict[tuple[str, str, str], WriteProbe] = {}
"""Those that are not answered in full yet."""
_probe_lock = threading.Lock()


class S3Store(ObjectStore):
    """The objects below `prefix` of a bucket. An empty prefix is the whole bucket, which then belongs to the disk."""

    def __init__(self, session: S3Session, *, meter: Meter | None = None) -> None:
        self._s3 = session
        self._prefix = session.prefix
        self._config = session.config
        self._meter = meter or Meter()
        self._part_bytes = PART_BYTES
        self.name = session.place_name
        self.tell_foreign: Callable[[ListedKey], None] = self._skip_foreign

    @classmethod
    def from_config(cls, config: ObjectDiskConfig, bucket: str, prefix: str, meter: Meter | None = None) -> S3Store:
        """The store of a disk's configuration; sends nothing."""
        if not bucket:
            raise UsageError(f"the url names no bucket: {config.url}", hint="url: s3://bucket/prefix/")
        try:
            prefix = f"{check_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        except ValueError as error:
            raise UsageError(
                f"the url {config.url} names no prefix: {error}", hint="url: s3://bucket/prefix/"
            ) from error
        return cls(S3Session(bucket, prefix, f"s3://{bucket}/{prefix}", config), meter=meter)

    @property
    def session(self) -> S3Session:
        """The clients themselves: for trying the server out, never for a disk's work."""
        return self._s3

    # ---------------------------------------------------------------------------------------------- capabilities

    @property
    def capabilities(self) -> StoreCapabilities:
        if self._s3.is_aws:
            return StoreCapabilities(conditional_put=self._config.conditional_put != "no", checks_sha256=True)
        if self._config.read_only:
            return StoreCapabilities(conditional_put=False, checks_sha256=False)
        place = (self._s3.endpoint_url, self._s3.bucket, self._prefix)
        with _probe_lock:
            if place not in _probed:
                _probed[place] = _probes.setdefault(place, WriteProbe()).ask(self._put_probe, self._s3.requests)
                del _probes[place]
            known = _probed[place]
        if not known.takes_checksums and self._config.checksums == "auto":
            self._s3.requests.leave_checksums_out()
        return replace(known, conditional_put=False) if self._config.conditional_put == "no" else known

    @property
    def _sends_checksums(self) -> bool:
        return self.capabilities.takes_checksums and self._s3.requests.checksums != "none"

    def _put_probe(self, key: str, body: bytes, sha256: bytes, headers: Mapping[str, str]) -> None:
        self._meter.add("PUT", sent=len(body))
        with op("store.put", key):
            self._s3.requests.put(key, memoryview(body), sha256, headers)

    # ---------------------------------------------------------------------------------------------- writing

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        check_key(key)
        check_digest_length(sha256)
        headers = self._headers(metadata)
        with opened(payload) as view:
            if len(view) > min(self._config.multipart_threshold_bytes, _MOST_SINGLE_PUT_BYTES):
                self._put_in_parts(key, view, sha256, check_metadata(metadata))
                return
            headers |= self._integrity(key, view, sha256)
            with op("store.put", key):
                self._meter.add("PUT", sent=len(view))
                answered = self._s3.requests.put(key, view, sha256, headers)
            if not _arrived(headers, answered):
                self._read_back(key, sha256)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Without conditional writes: HEAD, then PUT, which is right only for a single writer (the disk's lease)."""
        check_key(key)
        check_digest_length(sha256)
        view = memoryview(payload)
        headers = self._headers(metadata) | self._integrity(key, view, sha256)
        if self.capabilities.conditional_put:
            headers["if-none-match"] = "*"
        elif self._exists(key):
            raise AlreadyExists(f"{self.name}{key} exists already")
        with op("store.put", key):
            self._meter.add("PUT", sent=len(view))
            if "if-none-match" not in headers:
                take_last_look()
            try:
                answered = self._s3.requests.put(key, view, sha256, headers)
            except (Unreachable, Throttled):
                raise
            except Transient as error:
                raise outcome_unknown(self._s3.location, key, error) from error
        if not _arrived(headers, answered):
            try:
                self._read_back(key, sha256)
            except FrostlineError as error:
                raise outcome_unknown(self._s3.location, key, error) from error

    def _read_back(self, key: str, sha256: bytes) -> None:
        """Raises `Transient` where the object is not what was sent: nobody compared it on its way."""
        if hashlib.sha256(self.get(key)).digest() != sha256:
            raise Transient(
                f"{self.name}{key}: the bytes were altered on their way to the store, which does not compare them",
                hint="check the network and proxies in between, then try again",
            )

    def _exists(self, key: str) -> bool:
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def _headers(self, metadata: Mapping[str, str] | None) -> dict[str, str]:
        return {f"{_METADATA_HEADER}{name}": value for name, value in check_metadata(metadata).items()}

    def _integrity(self, key: str, view: memoryview, sha256: bytes) -> dict[str, str]:
        """Nothing when the server checks the SHA-256; else we check it here, and the server checks an MD5."""
        if not view:  # Ceph does not check the digest of an empty body, and here it costs nothing
            check_sha256(self.name, key, view, sha256)
        if self.capabilities.checks_sha256:
            return {}
        check_sha256(self.name, key, view, sha256)
        return {"content-md5": base64.b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()}

    def _put_in_parts(self, key: str, view: memoryview, sha256: bytes, metadata: Mapping[str, str]) -> None:
        have_arrived = True

        def put_part(part: memoryview, digest: bytes, query: str) -> str:
            nonlocal have_arrived
            self._meter.add("PUT", sent=len(part))
            headers = self._integrity(key, part, digest)
            answered = self._s3.requests.put(key, part, digest, headers, query=query)
            if "etag" not in answered:  # by it the parts are put together
                raise Transient(f"{self.name}{key}: a part was taken, and the answer has no ETag")
            have_arrived = have_arrived and _arrived(headers, answered)
            return answered["etag"]

        with self._client_errors(key):
            with_checksums = self._sends_checksums
            self._meter.add("PUT", 2)
            upload = MultipartUpload(
                self._s3.client, self._s3.bucket, self._full(key), metadata, with_checksums=with_checksums
            )
            upload.send(view, sha256, put_part, wrong_sha256(self.name, key), self._part_bytes)
        if not have_arrived:
            self._read_back(key, sha256)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        wanted = [check_key(key) for key in keys]
        answers: dict[str, FrostlineError | None] = {}
        for start in range(0, len(wanted), PAGE_KEYS):
            batch = wanted[start : start + PAGE_KEYS]
            try:
                answers |= self._delete_batch(batch)
            except CredentialsExpired:  # the retry layer gets new ones
                raise
            except (Transient, Refused, AccessDenied) as error:
                answers |= dict.fromkeys(batch, error)
        return answers

    def _delete_batch(self, keys: list[str]) -> dict[str, FrostlineError | None]:
        bucket = s3_delete.Bucket(self._s3.requests, self._prefix, self._s3.location, self._meter)
        delete = s3_delete.delete_versions if self._deletes_versions else s3_delete.delete_current
        return delete(bucket, keys)

    @cached_property
    def _deletes_versions(self) -> bool:
        """Asked once, by the first delete."""
        if not self._config.delete_versions:
            return False
        self._meter.add("GET")
        return s3_delete.keeps_versions(self._s3.requests)

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        origin = unwrapped(source) if source is not None else self
        if not isinstance(origin, S3Store) or origin._s3.endpoint_url != self._s3.endpoint_url:
            raise Refused(
                f"cannot copy from {origin.name} to {self.name} inside one server", hint="copy through this machine"
            )
        full_source, full_target = origin._full(source_key), self._full(target_key)
        try:
            with self._client_errors(source_key), op("store.copy", source_key, target_key):
                self._meter.add("COPY")
                self._s3.client.copy_object(
                    Bucket=self._s3.bucket,
                    Key=full_target,
                    CopySource={"Bucket": origin._s3.bucket, "Key": full_source},
                    MetadataDirective="COPY",
                )
        except FrostlineError as error:
            # One request copies at most 5 GiB; only then is the size worth a HEAD.
            if (
                type(error) is not FrostlineError
                or (info := origin.head(source_key)).size_bytes <= _MOST_SINGLE_PUT_BYTES
            ):
                raise
            self._copy_in_parts(origin, info, full_source, target_key)

    def _copy_in_parts(self, origin: S3Store, info: ObjectInfo, full_source: str, target_key: str) -> None:
        with self._client_errors(target_key):
            full, with_checksums = self._full(target_key), self._sends_checksums
            upload = MultipartUpload(
                self._s3.client, self._s3.bucket, full, info.metadata, with_checksums=with_checksums
            )
            upload.copy(origin._s3.bucket, full_source, info.size_bytes)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        with self._client_errors(prefix):
            self._meter.add("LIST")
            for full, upload_id, started in s3_multipart.list_uploads(
                self._s3.client, self._s3.bucket, self._prefix + prefix
            ):
                if isinstance(started, datetime) and full.startswith(self._prefix + prefix):
                    yield Upload(full.removeprefix(self._prefix), upload_id, started)

    def abort_upload(self, upload: Upload) -> None:
        try:
            with self._client_errors(upload.key), op("store.abort_upload", upload.key):
                self._meter.add("DELETE")
                self._s3.client.abort_multipart_upload(
                    Bucket=self._s3.bucket, Key=self._full(upload.key), UploadId=upload.upload_id
                )
        except NotFound:
            pass

    # ---------------------------------------------------------------------------------------------- reading

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        check_key(key)
        if byte_range is None:
            return self._get(key, None).body
        if byte_range.start < 0 or byte_range.stop < byte_range.start:
            raise ValueError(f"not a byte range: {byte_range}")
        if byte_range.size_bytes == 0:  # S3 has no empty range
            if byte_range.stop > self.head(key).size_bytes:
                raise past_the_end(self.name, key, byte_range)
            return b""
        answer = self._get(key, byte_range)
        data = answer.body
        if is_whole(answer):
            check_range(self.name, key, byte_range, len(data))
            return data[byte_range.start : byte_range.stop]
        if len(data) == byte_range.size_bytes:
            return data
        if byte_range.stop > self.head(key).size_bytes:
            raise past_the_end(self.name, key, byte_range)
        raise Truncated(f"{self.name}{key}: {len(data)} of {byte_range.size_bytes} bytes arrived")

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        check_key(key)
        answer = self._get(key, None)
        return answer.body, self._info(key, answer.headers, len(answer.body))

    def _get(self, key: str, byte_range: ByteRange | None) -> HttpAnswer:
        self._meter.add("GET")
        answer = self._s3.requests.get(key, byte_range)
        self._meter.add("GET", 0, received=len(answer.body))
        return answer

    def head(self, key: str) -> ObjectInfo:
        check_key(key)
        self._meter.add("HEAD")
        try:
            headers = self._s3.requests.head(key)
        except NotFound as error:
            # A HEAD has no body that could tell a missing object from a missing bucket.
            if not self._bucket_exists():
                raise missing_bucket(self._s3.location) from error
            raise
        return self._info(key, headers)

    def _info(self, key: str, headers: Mapping[str, str], size_bytes: int | None = None) -> ObjectInfo:
        """What the headers say of the object; its size too, unless it is known from the body."""
        metadata = {
            name[len(_METADATA_HEADER) :]: _header_text(value)
            for name, value in headers.items()
            if name.startswith(_METADATA_HEADER)
        }
        try:
            modified = date_of(headers["last-modified"])
            size_bytes = int(headers["content-length"]) if size_bytes is None else size_bytes
        except (KeyError, ValueError) as error:
            raise Transient(f"{self.name}{key}: the headers are not those of S3 ({error})") from error
        return ObjectInfo(key, size_bytes, modified, metadata, kept_sha256(headers))

    def _bucket_exists(self) -> bool:
        self._meter.add("HEAD")
        try:
            self._s3.requests.head("")
        except NotFound:
            return False
        except FrostlineError:
            return True
        return True

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Keys no disk can have written (`a//b`, directory markers) are left out: they are not ours. `tell_foreign` has
        them, with their prefix, where somebody else's objects are listed; else a warning names them."""
        after = self._prefix + start_after if start_after else ""
        for item in pages(self._fetch_page, self._prefix + prefix, after, self.name):
            key = item.key.removeprefix(self._prefix)
            try:
                check_key(key)
            except ValueError:
                self.tell_foreign(item)
                continue
            if key != PROBE_KEY:
                yield ObjectInfo(key, item.size_bytes, item.modified)

    def _skip_foreign(self, listed: ListedKey) -> None:
        if key := listed.key.removeprefix(self._prefix):  # the prefix itself is a marker that consoles make
            _log.warning("%s: foreign object skipped, which no disk can have written: %r", self.name, key)

    def _fetch_page(self, prefix: str, start_after: str) -> Page:
        self._meter.add("LIST")
        return self._s3.requests.list_page(prefix, start_after)

    # ---------------------------------------------------------------------------------------------- the rest

    def url(self, key: str) -> str:
        return f"s3://{self._s3.bucket}/{self._full(key)}"

    @property
    def s3_connection(self) -> S3Connection:
        return self._s3.connection

    def clock_skew(self) -> timedelta | None:
        self._meter.add("HEAD")
        return self._s3.requests.clock_skew()

    def bucket_settings(self) -> BucketSettings:
        self._meter.add("GET", 3)
        with self._client_errors(""):
            return s3_settings.read_settings(self._s3.client, self._s3.bucket)

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion]:
        self._meter.add("LIST")
        with self._client_errors(prefix):
            for found in s3_settings.old_versions(self._s3.client, self._s3.bucket, self._prefix + prefix):
                if found.key != self._prefix + PROBE_KEY:  # a few bytes, written again where If-None-Match is ignored
                    yield replace(found, key=found.key.removeprefix(self._prefix))

    def renew_credentials(self) -> bool:
        return self._s3.renew()

    def create_bucket(self) -> None:
        """Create the bucket; nothing when it is ours already."""
        region: Any = {"CreateBucketConfiguration": {"LocationConstraint": self._s3.region}}
        with self._client_errors(""), op("store.create_bucket", self._s3.bucket):
            from botocore.exceptions import ClientError

            try:
                self._s3.client.create_bucket(
                    Bucket=self._s3.bucket, **(region if self._s3.is_aws and self._s3.region != "us-east-1" else {})
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
                    raise

    def close(self) -> None:
        self._s3.close()

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    @contextmanager
    def _client_errors(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            raise error_of_client(self._s3.location, key, error) from error


def _header_text(value: str) -> str:
    """A header's value, which the client hands out byte for byte as Latin-1; some servers send UTF-8."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _arrived(sent: Mapping[str, str], answered: Mapping[str, str]) -> bool:
    """Whether a put is known to have stored what was sent: the store compares the SHA-256, or names the MD5 as the
    object's ETag, as most do."""
    md5 = sent.get("content-md5")
    return md5 is None or answered.get("etag", "").strip('"').lower() == base64.b64decode(md5).hex()
