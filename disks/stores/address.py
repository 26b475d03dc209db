"""A disk's bucket for a process elsewhere: what an executor needs to read and write objects, and nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from disks.config import ObjectDiskConfig
from disks.stores.base import ObjectStore
from disks.stores.open import open_store
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.limit import Limiter
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import UsageError

_CONCURRENCY = 32
_opened: dict[StoreAddress, ObjectStore] = {}
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Describes the store; can be pickled, compared and hashed. Neither `repr` nor `str` shows a secret.

    The limits are for one process: a user who starts several divides them.
    """

    config: ObjectDiskConfig = field(repr=False)
    bytes_per_second: float | None = None
    requests_per_second: float | None = None

    @classmethod
    def of(
        cls,
        config: ObjectDiskConfig,
        *,
        bytes_per_second: float | None = None,
        requests_per_second: float | None = None,
    ) -> StoreAddress:
        """The store of a disk's configuration with the credentials that this process found, so that others need none.
        Credentials that must be renewed (roles, single sign-on) stay here: the others then need a chain of their own.

        Raises `UsageError` for a store that only this process has.
        """
        store = unwrapped(open_store(config))
        if config.url.startswith("memory:"):
            raise UsageError(f"{config.url} lives in this process only", hint="use s3:// or file://")
        if isinstance(store, S3Store):
            session = store.session
            config = msgspec.structs.replace(config, region=session.region, endpoint_url=_endpoint(store))
            if config.ca_bundle:
                config = msgspec.structs.replace(config, ca_bundle=str(Path(config.ca_bundle).expanduser().absolute()))
            if (keys := session.lasting_credentials) is not None:
                config = msgspec.structs.replace(
                    config,
                    access_key_id=keys.access_key,
                    secret_access_key=keys.secret_key,
                    session_token=keys.token,
                )
            store.close()
        return cls(config, bytes_per_second, requests_per_second)

    def open(self) -> ObjectStore:
        """The store, opened once a process."""
        with _opening:
            if self not in _opened:
                limiter = Limiter(self.bytes_per_second, self.requests_per_second, _CONCURRENCY)
                _opened[self] = open_store(self.config, limiter=limiter)
            return _opened[self]


def _endpoint(store: S3Store) -> str | None:
    return None if store.session.is_aws else store.session.endpoint_url
