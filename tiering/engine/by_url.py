"""A store that is opened by the URL of its bucket, without a configuration, to be read.

The disk has one name, `DISK`, whatever it is called where it is written. This machine keeps what it knows of the bucket
in the user's cache directory, and nothing else: deleting it costs one more look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from disks.config import ObjectDiskConfig
from oplog.errors import NotFound, UsageError
from tiering.config.settings import Config, PolicyConfig, VolumeConfig

if TYPE_CHECKING:
    from tiering.engine.store import Store

DISK = "store"
_POLICY = PolicyConfig(volumes=(VolumeConfig(name=DISK, disks=(DISK,)),))


def is_url(text: str) -> bool:
    """Whether it names a bucket, and no file."""
    return "://" in text


def config_of(url: str, environment: Mapping[str, str]) -> Config:
    """The configuration of the store whose bucket is at this URL. Raises `UsageError`."""
    if not is_url(url):
        raise UsageError(f"not the URL of a bucket: {url!r}", hint="write s3://BUCKET/PREFIX or file:///PATH")
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    state = cache / "frostline" / "stores" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    disk = ObjectDiskConfig(url=url, read_only=True)
    return Config(state_path=str(state), disks={DISK: disk}, policies={DISK: _POLICY})


def open_by_url(config: Config, **options: Any) -> Store:
    """Open the store of `config_of`. `options`: as of `Store.open`. Raises `NotFound` where there is none."""
    from tiering.engine.store import Store

    store = Store.open(config, recover=False, **options)
    try:
        if store.object_disk(DISK).revision == 0:
            url = store.object_disk(DISK).store.name
            raise NotFound(f"there is no store at {url}", hint="give the URL of a disk: 'frostline disks' shows it")
        # Each table has the policy that it names, which is configured elsewhere.
        names = {table.policy for table in store.definitions()}
        store.context.take(replace(config, policies={DISK: _POLICY, **dict.fromkeys(names, _POLICY)}))
        store.refresh()
    except BaseException:
        store.close()
        raise
    return store
