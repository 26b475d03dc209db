"""A bucket that the user names by its URL instead of by a disk of the configuration."""

from typing import TYPE_CHECKING

from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from disks.config import ObjectDiskConfig
    from disks.stores.wrappers.metered import MeteredStore


def open_read_only(session: Session, url: str) -> "MeteredStore":
    """The store at the URL; every change to it is refused. The caller closes it.

    Endpoint, region and keys of an S3 bucket are those of the configured disk in the same bucket, else of the only
    S3 endpoint that the configuration names, else of the environment.
    """
    from disks.stores.open import open_store

    return open_store(location(session, url), limiter=session.limiter())


def location(session: Session, url: str) -> "ObjectDiskConfig":
    """The configuration of a read-only disk at the URL; at that of a log among several (`<prefix>/logs/<NAME>/`), of
    this one. Only for such a URL is a request sent."""
    from disks.object_disk.sharing.prefix import at_url
    from disks.stores.open import open_store
    from tiering.config.disk_locations import bucket_at

    config = bucket_at(session.loaded.config, url)
    return at_url(config, lambda of: open_store(of, limiter=session.limiter()))
