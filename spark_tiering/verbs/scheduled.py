"""The job that this package brings to the daemon (`tiering.config.jobs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.daemon.jobs.kinds import JobKind, Told

if TYPE_CHECKING:
    from tiering.engine.store import Store

_EVERY_SECONDS = 3600.0


def _ingest(config: Config, store: Store) -> Sequence[Sequence[str]]:
    """One command line for each entry of `daemon.ingests`. The verb starts no Spark where all files went in before."""
    return [["ingest", one.table, *one.files, "--spark", *one.options] for one in config.daemon.ingests]


def _ingest_seconds(config: Config) -> float | None:
    return _EVERY_SECONDS if config.daemon.ingests else None


def _tell(document: Mapping[str, Any]) -> Told:
    rows, files = document.get("rows") or 0, document.get("files") or 0
    return Told(f"{document.get('table')}: {counted(rows, 'row')} of {counted(files, 'file')}")


KINDS = (JobKind("ingest", _tell, _ingest, every=_ingest_seconds),)
