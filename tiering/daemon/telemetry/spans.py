"""Spans of what the daemon does, for a collector of OTLP over HTTP.

    job policy ─┬─ move      each try that ended during the pass, with its own beginning and end
                └─ merge
    job gc                   each run of another job
    passes, inbox, large …   work of a lane, as `daemon status` shows it while it is under way

What a span says comes from where the daemon notes it anyhow: the jobs' reports, the lanes' progress, the journal. So
moves and merges of commands are spans, too: of those that end between two passes the next one tells. Nothing waits for
the collector: spans that it does not take are lost, and that is shown as trouble.

The packages of OpenTelemetry are an extra, loaded where a collector is configured.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from oplog.errors import UsageError
from tiering.catalog.context import wall_clock
from tiering.config.settings import TracingConfig
from tiering.daemon.trouble import Trouble
from tiering.journal.journal import Journal
from tiering.journal.records import ACTIVE_MERGES, ACTIVE_MOVES, MergeRecord, MoveRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span

INSTALL = "pip install 'frostline[tracing]'"
WHERE = "the traces"
_PATH = "/v1/traces"
"""Where a collector takes spans unless the configuration says another path: OTLP/HTTP's default."""
_LAST_SECONDS = 2.0
"""So long the last spans may take to go out when the daemon ends."""

log = logging.getLogger("frostline.daemon")


class UnderWay(Protocol):
    """What is under way: it may be told more of before it ends."""

    def note(self, **attributes: str | int | float | bool) -> None:
        """Add to what the span says."""


class _Untraced:
    def note(self, **attributes: str | int | float | bool) -> None:
        """Nobody asks."""


_UNTRACED = _Untraced()


class Spans:
    """The spans of one daemon; without a collector nothing is made. Thread-safe."""

    def __init__(self, settings: TracingConfig, trouble: Trouble, record: Callable[..., Any]) -> None:
        """`record` changes the daemon's status."""
        self._settings, self._trouble, self._record = settings, trouble, record
        self._sender: _Sender | None = None
        self._told = wall_clock()
        """Until when moves and merges of the journal are reported: by the clock that it notes times by."""
        self._problem = ""
        """Why spans are lost, as last logged."""

    def begin(self) -> None:
        """Be ready to send. That it cannot be is trouble, and hinders nothing."""
        if self._settings.endpoint is None:
            return
        try:
            self._sender = _Sender(self._settings.endpoint, self._settings.service_name)
        except UsageError as error:
            self._met(f"{error.message}: {error.hint}")

    def look(self) -> None:
        """Show how sending goes."""
        if self._sender is not None and self._sender.problem != self._problem:
            self._met(self._sender.problem)

    def _met(self, problem: str) -> None:
        self._problem = problem
        self._trouble.met(WHERE, [problem] if problem else [])
        self._record(untraced=problem)

    def end(self) -> None:
        """Send what is left, within two seconds."""
        if self._sender is not None:
            self._sender.end()

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[UnderWay]:
        """One piece of work, from here to its end. What it raises ends the span as an error."""
        if self._sender is None:
            yield _UNTRACED
            return
        with self._sender.tracer.start_as_current_span(name, attributes=_named(attributes)) as span:
            yield _Traced(span)

    def journal(self, journal: Journal) -> None:
        """Tell the moves and merges that ended since the last call, as parts of what is under way."""
        if self._sender is None:
            return
        since, self._told = self._told, wall_clock()
        records: list[MoveRecord | MergeRecord] = [*journal.work.moves_since(since)]
        records += journal.work.merges_since(since)
        for record in records:
            if record.updated < self._told and record.state not in (*ACTIVE_MOVES, *ACTIVE_MERGES):
                self._sender.record(record)


class _Traced:
    def __init__(self, span: Span) -> None:
        self._span = span

    def note(self, **attributes: str | int | float | bool) -> None:
        """As `UnderWay`."""
        self._span.set_attributes(_named(attributes))


class _Sender:
    """Sends spans in batches, by a thread of its own. Raises `UsageError` where the packages are missing."""

    def __init__(self, endpoint: str, service_name: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
        except ImportError as error:
            raise UsageError("spans need OpenTelemetry, which is not installed", hint=INSTALL) from error

        self.problem = ""
        address = urlsplit(endpoint)
        where = endpoint if address.path.strip("/") else f"{address.scheme}://{address.netloc}{_PATH}"
        noting = self._note

        class Noted(OTLPSpanExporter):
            """The exporter, which says whether it went well."""

            def export(self, spans: Iterable[ReadableSpan]) -> SpanExportResult:
                result = super().export(list(spans))
                noting("" if result is SpanExportResult.SUCCESS else f"{address.netloc} takes no spans")
                return result

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would say each failure, with a traceback
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name, "host.name": socket.gethostname()}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(Noted(endpoint=where)))
        self.tracer = self._provider.get_tracer("frostline")

    def _note(self, problem: str) -> None:
        self.problem = problem

    def record(self, record: MoveRecord | MergeRecord) -> None:
        """A span of what has ended, with the times that the journal noted."""
        from opentelemetry.trace import Status, StatusCode

        name, attributes = (
            ("move", _of_move(record)) if isinstance(record, MoveRecord) else ("merge", _of_merge(record))
        )
        span = self.tracer.start_span(name, attributes=_named(attributes), start_time=_nanoseconds(record.created))
        if record.error:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(end_time=_nanoseconds(record.updated))

    def end(self) -> None:
        """Send what is left; what the collector does not take in time is lost."""
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)


def _of_move(move: MoveRecord) -> dict[str, str | int]:
    return {
        "table": move.table,
        "part": move.part,
        "source": move.source,
        "target": move.target,
        "bytes": move.bytes,
        "requests": move.requests,
        "reason": move.reason_kind,
        "actor": move.actor,
        "state": move.state,
    }


def _of_merge(merge: MergeRecord) -> dict[str, str | int]:
    return {
        "table": merge.table,
        "partition": merge.partition,
        "inputs": len(merge.inputs),
        "output": merge.output,
        "rows_in": merge.rows_in,
        "rows_out": merge.rows_out,
        "bytes_in": merge.bytes_in,
        "bytes_out": merge.bytes_out,
        "reason": merge.reason,
        "actor": merge.actor,
        "state": merge.state,
    }


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"frostline.{name}": value for name, value in attributes.items()}


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
