"""The jobs that this package brings to the daemon (`tiering.config.jobs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.daemon.jobs.kinds import JobKind, Told, read_share

if TYPE_CHECKING:
    from tiering.engine.store import Store


_LEFT = (("orphaned", "deleted"), ("orphaned_bytes", "deleted_bytes"))


def _gc(config: Config, store: Store) -> Sequence[Sequence[str]]:
    """One command line a bucket that answers, unless gc is paused. Collecting is what lets the log forget, too."""
    if "gc" in store.context.journal.overrides.paused(None):
        return []
    disks = [
        disk.name
        for disk in store.context.disks.values()
        if disk.capabilities.remote and not disk.read_only and not disk.unreachable
    ]
    how = ["--guard-interval", f"{int(config.daemon.gc_guard_seconds)}s"]
    how += ["--delete"] if config.daemon.gc_delete else []
    return [["gc", name, *how] for name in disks]


def _fsck(config: Config, store: Store) -> Sequence[Sequence[str]]:
    return [["fsck", *read_share(config, "fsck")]]


def _tell_gc(document: Mapping[str, Any]) -> Told:
    deleted, orphaned = document.get("deleted", 0), document.get("orphaned", 0)
    text = f"{counted(deleted, 'object')} deleted" if deleted else f"{counted(orphaned, 'object')} that nothing names"
    left = {name: document.get(name, 0) - document.get(gone, 0) for name, gone in _LEFT}
    return Told(text, figures=left)


def _tell_fsck(document: Mapping[str, Any]) -> Told:
    problems = document.get("problems", [])
    first = f", the first: {problems[0]['what']}" if problems else ""
    parts = counted(document.get("checked", {}).get("parts", 0), "part")
    return Told(f"{parts} checked, {counted(len(problems), 'problem')}{first}")


KINDS = (
    JobKind(
        "gc",
        _tell_gc,
        _gc,
        every=lambda config: config.daemon.gc_seconds,
        shares=frozenset({"buckets"}),
        fine=frozenset({0, 4}),
    ),
    JobKind("fsck", _tell_fsck, _fsck, shares=frozenset({"buckets"}), bad_codes=frozenset({4})),
)
