"""Publications of tables below the prefix of a disk: which revisions they show, and the removal of one.

A publication names objects of the disk, for readers that know no log. Every revision that one of its snapshots shows
counts as pinned while the snapshot is in its newest metadata; metadata that cannot be read stops a collection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from disks.stores.base import ObjectStore
from oplog import bounds
from oplog.errors import Damaged
from oplog.revision import PUBLICATIONS_PREFIX

REVISION = "frostline.revision"
"""In the summary of a snapshot: the revision that it shows. Only snapshots that Frostline made have it."""
_METADATA = re.compile(r"v(\d{1,18})\.metadata\.json\Z", re.ASCII)
_BATCH_KEYS = 1_000


class _Snapshot(msgspec.Struct, frozen=True):
    summary: dict[str, str]


class _Metadata(msgspec.Struct, frozen=True, rename="kebab"):
    format_version: Literal[2]
    snapshots: tuple[_Snapshot, ...]


def version_of(key: str) -> int | None:
    """The version of the metadata at a key; None for any other key."""
    match = _METADATA.match(key.rpartition("/")[2])
    return int(match[1]) if match else None


def published_revisions(store: ObjectStore) -> dict[str, frozenset[int]]:
    """The revisions that each publication shows, by the key of its newest metadata. Raises `Damaged` for metadata that
    does not say it, and what the store raises."""
    newest: dict[str, tuple[int, str]] = {}
    for info in store.list(PUBLICATIONS_PREFIX):
        if (version := version_of(info.key)) is not None:
            directory = info.key.rpartition("/")[0]
            newest[directory] = max(newest.get(directory, (0, "")), (version, info.key))
    return {key: _revisions(store, key) for _, key in newest.values()}


def _revisions(store: ObjectStore, key: str) -> frozenset[int]:
    try:
        metadata = msgspec.json.decode(store.get(key), type=_Metadata)
        texts = [one.summary.get(REVISION) for one in metadata.snapshots]
        return frozenset(int(text) for text in texts if text is not None)
    except (ValueError, *bounds.UNREADABLE) as error:
        raise Damaged(
            f"{store.name}{key} does not say what other engines read: {error}",
            hint="'frostline iceberg publish TABLE --anew' writes it again, 'iceberg unpublish' ends it",
        ) from error


def remove_objects(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete objects of publications, in this order. Raises the first error of the store."""
    for start in range(0, len(keys), _BATCH_KEYS):
        for error in store.delete(keys[start : start + _BATCH_KEYS]).values():
            if error is not None:
                raise error


def remove_publication(store: ObjectStore, prefix: str) -> None:
    """Delete all objects of a publication: what names others goes first. Raises the first error of the store."""
    keys = [info.key for info in store.list(prefix)]
    remove_objects(store, sorted(keys, key=lambda key: not key.endswith((".json", ".text"))))
