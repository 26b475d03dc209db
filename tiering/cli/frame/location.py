"""A bucket that the user names by its URL instead of by a disk of the configuration."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from disks.config import DiskConfig
    from disks.stores.wrappers.metered import MeteredStore


def open_read_only(session: Session, url: str) -> "MeteredStore":
    """The store at the URL; every change to it is refused. Sends nothing. The caller closes it.

    Endpoint, region and keys of an S3 bucket are those of the configured disk in the same bucket, else of the only
    S3 endpoint that the configuration names, else of the environment.
    """
    from disks.stores.open import open_store

    return open_store(location(session, url), limiter=session.limiter())


def location(session: Session, url: str) -> "DiskConfig":
    """The configuration of a read-only disk at the URL."""
    import msgspec

    from disks.config import DiskConfig

    bucket = urlsplit(url)
    known = [disk for disk in session.loaded.config.disks.values() if (disk.url or "").startswith("s3://")]
    if bucket.scheme != "s3" or not known:
        return DiskConfig(type="object_disk", url=url, read_only=True)
    same = [disk for disk in known if urlsplit(disk.url or "").netloc == bucket.netloc]
    endpoints = {disk.endpoint_url for disk in known}
    if not same and len(endpoints) > 1:
        return DiskConfig(type="object_disk", url=url, read_only=True)
    return msgspec.structs.replace((same or known)[0], url=url, read_only=True, max_size_bytes=None)
