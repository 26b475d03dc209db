"""Spans go to a collector of OpenTelemetry, and no collector holds the daemon up: one that takes none is shown."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.command_line import Frostline
from tests.unit.tiering.daemon.running import until
from tests.unit.tiering.daemon.work import Work, insert, pin
from tiering.config.settings import TracingConfig, embedded
from tiering.daemon.status import read_status
from tiering.engine.store import Store
from tiering.move.file_copies import FileCopies
from tiering.table.definitions import define_table


class Collector:
    """Takes spans as a collector does, or answers each request with `code`."""

    def __init__(self) -> None:
        self.code = 200
        self.paths = set[str]()
        self.spans: list[Span] = []
        self.services = set[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.paths.add(self.path)
                if outer.code == 200:
                    outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(outer.code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            told = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            self.services.add(told["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str, **attributes: str) -> list[Span]:
        return [span for span in self.spans if span.name == name and attributes.items() <= said(span).items()]


def said(span: Span) -> dict[str, str]:
    return {
        attribute.key.removeprefix("frostline."): attribute.value.string_value or str(attribute.value.int_value)
        for attribute in span.attributes
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches go out at once, not every five seconds."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
def store(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    config = msgspec.structs.replace(embedded(tmp_path), tracing=TracingConfig(endpoint=collector.address))
    with Store.open(config) as opened:
        opened.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        yield opened


def test_a_move_is_a_span_of_the_pass_that_made_it(store: Store, collector: Collector) -> None:
    part = insert(store, 10)
    pin(store, part)
    with Work(store):
        until(lambda: collector.named("move", part=part))
        until(lambda: collector.named("passes", doing="moving parts"))
        (move,) = collector.named("move", part=part)
        until(lambda: any(span.span_id == move.parent_span_id for span in collector.named("job policy")))
    (move,) = collector.named("move", part=part)
    told = said(move)
    assert (told["table"], told["source"], told["target"], told["state"]) == ("d.t", "ssd", "s3", "done")
    (record,) = store.context.journal.work.moves(part=part)
    assert move.start_time_unix_nano == nanoseconds(record.created)
    assert move.end_time_unix_nano == nanoseconds(record.updated)
    (pass_,) = [span for span in collector.named("job policy") if span.span_id == move.parent_span_id]
    assert said(pass_)["result"] == "done"
    (lane,) = collector.named("passes", doing="moving parts")
    assert lane.parent_span_id == pass_.span_id
    assert (collector.paths, collector.services) == ({"/v1/traces"}, {"frostline"})


def test_a_merge_is_told_once(store: Store, collector: Collector) -> None:
    for rows in range(1, 11):
        insert(store, rows)
    with Work(store) as work:
        until(lambda: collector.named("merge"))
        ticks = read_status(work.state).ticks
        until(lambda: read_status(work.state).ticks > ticks + 2)
        until(lambda: len(collector.named("merge")) >= len(store.context.journal.work.merges()))
    merges = store.context.journal.work.merges()
    told = sorted(said(span)["output"] for span in collector.named("merge"))
    assert told == sorted(merge.output for merge in merges)


def test_a_move_that_fails_is_an_error(store: Store, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    part = insert(store, 10)
    pin(store, part)

    def fail(self: Any, items: Any, transaction: Any) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(FileCopies, "stage", fail)
    with Work(store):
        until(lambda: collector.named("move", part=part, state="failed"))
    span = collector.named("move", part=part, state="failed")[0]
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert "no disk" in span.status.message


def test_a_collector_that_takes_none_is_shown_but_harmless(
    store: Store, collector: Collector, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    collector.code = 400
    part = insert(store, 10)
    pin(store, part)
    frostline = Frostline(capsys)
    with Work(store) as work:
        until(lambda: read_status(work.state).untraced)
        until(lambda: read_status(work.state).moved == 1)
        told = frostline("daemon", "status", code=3)
        assert "traces     lost: 127.0.0.1:" in told
        assert "takes no spans" in told
        collector.code = 200
        until(lambda: not read_status(work.state).untraced)
    assert [line for line in caplog.messages if line.startswith("the traces: 127.0.0.1")] != []
    assert [line for line in caplog.messages if line.startswith("the traces: all is well again")] != []


def test_without_the_packages_the_daemon_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works without them."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    part = insert(store, 10)
    pin(store, part)
    with Work(store) as work:
        until(lambda: read_status(work.state).moved == 1)
        until(lambda: read_status(work.state).untraced)
        assert "pip install 'frostline[tracing]'" in read_status(work.state).untraced


def test_keys_do_not_belong_into_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "frostline.yaml"
    path.write_text(
        "state_path: s\ndisks: {ssd: {type: local, path: d}}\n"
        "policies: {p: {volumes: [{name: hot, disks: [ssd]}]}}\n"
        "tracing: {endpoint: 'https://me:secret@example.org'}\n"
    )
    frostline = Frostline(capsys)
    frostline("--config", str(path), "config", "validate", code=2)
    assert "not the address of a collector" in frostline.error
    assert "secret@" not in frostline.error


def nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
