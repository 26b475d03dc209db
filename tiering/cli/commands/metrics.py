"""`metrics`: the store as numbers, once; and the server of the daemon."""

import sys
from typing import TYPE_CHECKING

import typer

from tiering.catalog.freshness import Freshness
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.cli.reports.backups import newest_backups

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.facts.backups import BackupsStatus
    from tiering.facts.metrics.watching import Metrics


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(metrics)


def metrics(session: Session) -> None:
    """Print metrics once, in Prometheus text format. No daemon is needed."""
    from tiering.daemon.jobs.status import rows_of
    from tiering.daemon.live import live_status
    from tiering.facts.metrics import collect, exposition
    from tiering.facts.metrics.families import families

    if not session.options.json:
        exposition.check_installed()
    store = session.store(Freshness.CHANGES)
    seen = collect.look(store, _backups(session, store))
    known, records = live_status(session.config.state_directory)
    process = collect.process(known, rows_of(records, session.config, is_running=known.running))
    found = families(seen, process, version=version())
    if session.options.json:
        session.output.document({"metrics": exposition.rows(found)})
        return
    text = exposition.text(found)
    sys.stdout.buffer.write(text) if hasattr(sys.stdout, "buffer") else print(text.decode(), end="")
    sys.stdout.flush()


def metrics_server(session: Session, store: "Store") -> "Metrics | None":
    """What serves the numbers beside a daemon; None where no port is configured."""
    port = session.loaded.config.metrics.port
    if port is None:
        return None
    from tiering.facts.metrics.watching import Metrics

    return Metrics(store, port, version=version(), limiter=session.limiter(), backups=lambda: _backups(session, store))


def _backups(session: Session, store: "Store") -> "BackupsStatus | None":
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    return newest_backups().backups_status(session.config, names)


def version() -> str:
    """Of this installation."""
    from importlib.metadata import version as installed

    return installed("frostline")
