"""The typed configuration of disks: one struct a type. Read once at the edge; a key that the type does not have is an
error. Nothing below sees a dict."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from oplog.errors import UsageError

SECRET_KEYS = ("secret_access_key", "session_token")

Checksums = Literal["auto", "sha256", "none"]
MOST_BYTES = 2**60
CENTURY_SECONDS = 100 * 366 * 86400
DAY_SECONDS = 86400

# Every number of a configuration has one of these bounds, or its own: beyond them it means nothing, or turns off what
# has a switch of its own.
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES, description="bytes; also '10GiB', '500M'")]
Duration = Annotated[float, msgspec.Meta(ge=0, le=CENTURY_SECONDS)]
"""Seconds."""
Interval = Annotated[float, msgspec.Meta(ge=0.01, le=CENTURY_SECONDS)]
"""Seconds from one run of something to the next."""
Timeout = Annotated[float, msgspec.Meta(ge=0.01, le=DAY_SECONDS)]
"""Seconds that a request may take."""


class DiskConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """One disk of the configuration; `type` says which keys it has. `disks.registry` knows how each is opened."""

    @property
    def type(self) -> str:
        """What `type` says in the file."""
        return str(self.__struct_config__.tag)

    def __repr__(self) -> str:
        """Without the secrets, so that no traceback and no log shows them."""
        keys = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in SECRET_KEYS:
            if keys.get(name):
                keys[name] = "********"
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in keys.items())})"


class LocalDiskConfig(DiskConfig, frozen=True, tag="local"):
    """A directory of this machine."""

    path: str
    """The directory of the disk."""
    read_only: bool = False
    """Opens any directory without writing to it."""
    keep_free_space_bytes: Size = 0
    """This much of the file system counts as used."""
    max_size_bytes: Size | None = None
    """A quota: the disk counts as full at this size. Default: the file system's size."""
    reserve_bytes: Size = 1024 * 1024
    """Kept in a file that is given up when the disk is full, so that parts can still be taken off it."""


class ObjectDiskConfig(DiskConfig, frozen=True, tag="object_disk"):
    """A bucket with an operations log."""

    url: str
    """`s3://bucket/prefix/`, `file:///path/prefix/` or `memory://name/` (tests)."""
    endpoint_url: str | None = None
    """On S3: the server; else `AWS_ENDPOINT_URL`, else AWS."""
    region: str | None = None
    """On S3: else `AWS_REGION` and the AWS configuration."""
    addressing_style: Literal["path", "virtual"] = "path"
    """On S3: `http://host/bucket/key` or `http://bucket.host/key`."""
    ca_bundle: str | None = None
    """On S3: a PEM file with the authorities of the server's certificate; else `AWS_CA_BUNDLE`, else the system's."""
    access_key_id: str | None = None
    """Better left to the AWS credential chain; a file with a secret that others can read is refused."""
    secret_access_key: str | None = None
    """Never printed."""
    session_token: str | None = None
    """Only with temporary keys, and never printed either: they end within hours."""
    log: str | None = None
    """The name of this disk's log where several logs share the prefix: each machine has one of its own below
    `logs/<NAME>/`, and all of them have their objects in one place. Default: the disk has the prefix for itself. A
    prefix is the one or the other from its first commit on."""
    log_format: Literal[1, 2] = 2
    """The format of the operations log. 1 is ClickHouse's, with weaker promises: a bucket that a ClickHouse server
    wrote, or is to restore from."""
    snapshot_every_commits: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 1000
    """A rebuild reads the newest snapshot and the commits after it."""
    retention_seconds: Annotated[int, msgspec.Meta(ge=0, le=CENTURY_SECONDS)] = 24 * 3600
    """Revisions younger than this stay restorable."""
    look_seconds: Duration | None = None
    """How long an insert, and a pass of the daemon that finds nothing to do, go by what was seen of the bucket last. 0:
    they always look. Default: 60 on S3, where a look is a request, else 0."""
    read_only: bool = False
    """Opens any bucket without writing to it."""
    max_size_bytes: Size | None = None
    """A quota: the disk counts as full at this size. Default: no limit."""
    multipart_threshold_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 256 * 1024 * 1024
    """On S3: larger files go up in pieces."""
    conditional_put: Literal["auto", "no"] = "auto"
    """`no` forces the single-writer lease, for stores whose If-None-Match is known to be wrong."""
    checksums: Checksums = "auto"
    """On S3: whether requests carry `x-amz-checksum-sha256`. `none`: a store that refuses it, such as older gateways;
    the SHA-256 in the log is the proof then. `auto`: the first write finds out."""
    delete_versions: bool = True
    """On S3: in a versioned bucket gc deletes the versions themselves. `false`: it only adds delete markers, and a
    lifecycle rule of yours ends the old versions; until then they are paid for."""
    retry_seconds: Annotated[float, msgspec.Meta(ge=0, le=DAY_SECONDS)] = 60.0
    """On S3: how long a request is repeated while the store asks for fewer (503) or fails for a while; a server that
    refuses connections is given a quarter of it."""
    retries: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    """On S3: at most so many tries of one request within that time; 1 means no second one."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for an address that cannot be taken apart."""
        try:
            path = urlsplit(self.url).path
            urlsplit(self.endpoint_url or "")
        except ValueError as error:
            raise UsageError(
                f"the address of a bucket is no URL ({error}): {self.url!r}",
                hint="url: s3://bucket/prefix/ or file:///path/; endpoint_url: http(s)://host:port",
            ) from error
        if "\0" in unquote(path):
            raise UsageError(f"the url {self.url!r} holds %00", hint="url: s3://bucket/prefix/ or file:///path/")
