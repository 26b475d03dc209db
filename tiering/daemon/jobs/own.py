"""The jobs of tiering itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oplog.errors import FrostlineError
from tiering.config.settings import Config, JobConfig
from tiering.daemon.jobs.kinds import JobKind, Told
from tiering.engine.small_parts import crowded
from tiering.merge.request import ColdOptions, MergeRequest

if TYPE_CHECKING:
    from tiering.engine.store import Store

_CROWDED_SECONDS = 3600.0


def _merges(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["tick", "--only", "merges"]]


def _snapshots(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["tick", "--only", "snapshots"]]


def _cold_merges(config: Config, store: Store) -> Sequence[Sequence[str]]:
    """One command line a table that has cold merges due, and is not paused; unless they have a time of their own, only
    of tables of which a partition has very many parts."""
    settings = config.daemon
    options = ["--spark" if settings.cold_merge_spark else "--cold", *settings.cold_merge_options]
    paused = store.context.journal.overrides.paused
    names = [table.full_name for table in store.definitions() if "merges" not in paused(table.uuid)]
    if settings.cold_merge_seconds is None and not _has_time(settings.jobs.get("cold_merges")):
        many = {partition.table for partition in crowded(store, settings.cold_merge_parts)}
        names = [name for name in names if name in many]
    return [["merge", name, *options] for name in names if _is_due(store, name)]


def _has_time(job: JobConfig | None) -> bool:
    return job is not None and (job.every_seconds is not None or job.cron is not None)


def _cold_merge_seconds(config: Config) -> float | None:
    settings = config.daemon
    by_default = _CROWDED_SECONDS if settings.cold_merge_parts else None
    return by_default if settings.cold_merge_seconds is None else settings.cold_merge_seconds


def _is_due(store: Store, table: str) -> bool:
    try:
        return bool(store.plan_merges(table, MergeRequest(cold=ColdOptions())))
    except FrostlineError:  # the verb says of this table what is wrong
        return True


def _tell_merges(document: Mapping[str, Any]) -> Told:
    merged = len(document.get("merges", ()))
    return Told(f"{merged} merged", merged)


def _tell_snapshots(document: Mapping[str, Any]) -> Told:
    return Told(
        ", ".join(f"{disk} at {revision}" for disk, revision in document.get("snapshots", {}).items()) or "none"
    )


KINDS = (
    JobKind("policy", lambda document: Told(""), every=lambda config: config.daemon.tick_seconds),
    JobKind("merges", _tell_merges, _merges, shares=frozenset({"merges"})),
    JobKind(
        "cold_merges",
        _tell_merges,
        _cold_merges,
        every=_cold_merge_seconds,
        shares=frozenset({"merges"}),
    ),
    JobKind("snapshots", _tell_snapshots, _snapshots, shares=frozenset({"buckets"})),
)
