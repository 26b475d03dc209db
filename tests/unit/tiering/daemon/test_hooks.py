"""Hooks: each event once, tried again, in nobody's way, and no secret where others read (P15)."""

from __future__ import annotations

import http.server
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from oplog.errors import FrostlineError, Refused, Transient, UsageError
from tests.unit.tiering.daemon.running import FAST, until
from tiering.config.reading import load, masked
from tiering.config.settings import HookConfig, embedded
from tiering.daemon import daemon
from tiering.daemon.hooks import outbox
from tiering.daemon.hooks.delivery import deliver, signature
from tiering.daemon.hooks.outbox import HOOKS_FILE, Outbox
from tiering.engine.store import Store

EVENT = b'{"event": "failure"}'
READS = (sys.executable, "-c", "import sys, os; open(sys.argv[1], 'a').write(sys.stdin.read() + str(dict(os.environ)))")


class Site:
    """A web server that says what it was sent, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[tuple[dict[str, str], bytes]] = queue.SimpleQueue()
        self.status, self.headers = 200, dict[str, str]()
        self.hangs = threading.Event()
        self.hangs.set()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.requests.put((dict(self.headers), body))
                site.hangs.wait(100)
                self.send_response(site.status)
                for name, value in site.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/in?token=hidden"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.hangs.set()
    made.server.shutdown()
    made.server.server_close()


def test_a_command_reads_the_event_and_sees_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    deliver(HookConfig(command=(*READS, str(tmp_path / "read"))), EVENT)
    read = (tmp_path / "read").read_text()
    assert read.startswith(EVENT.decode())
    assert "hidden" not in read
    assert os.environ["PATH"] in read


def test_a_command_that_fails_hangs_or_is_not_there() -> None:
    with pytest.raises(Transient, match="ended with 7"):
        deliver(HookConfig(command=(sys.executable, "-c", "raise SystemExit(7)")), EVENT)
    with pytest.raises(Refused, match="/no/such cannot be run"):
        deliver(HookConfig(command=("/no/such",)), EVENT)
    with pytest.raises(Transient, match="took more than"):
        deliver(HookConfig(command=("/bin/sleep", "1000"), timeout_seconds=0.05), EVENT)


def test_a_webhook_gets_the_event_signed(site: Site) -> None:
    deliver(HookConfig(url=site.url, secret="between us", allow_private=True), EVENT)
    headers, body = site.requests.get()
    assert body == EVENT
    assert headers["Content-Type"] == "application/json"
    assert headers["Frostline-Signature"] == signature("between us", EVENT)


@pytest.mark.parametrize(
    ("status", "kind", "what"),
    [(302, Refused, "redirects are not followed"), (404, Refused, "answers 404"), (503, Transient, "answers 503")],
)
def test_an_answer_that_is_no_yes(site: Site, status: int, kind: type[FrostlineError], what: str) -> None:
    site.status, site.headers = status, {"Location": site.url}
    with pytest.raises(kind, match=what) as caught:
        deliver(HookConfig(url=site.url, allow_private=True), EVENT)
    assert site.requests.qsize() == 1
    assert "hidden" not in str(caught.value)


def test_a_webhook_that_hangs_has_its_time(site: Site) -> None:
    site.hangs.clear()
    with pytest.raises(Transient, match=r"127\.0\.0\.1 does not answer"):
        deliver(HookConfig(url=site.url, allow_private=True, timeout_seconds=0.1), EVENT)


def test_a_private_address_is_refused_unless_it_is_allowed(site: Site) -> None:
    for host in ("127.0.0.1", "localhost", "10.1.2.3", "169.254.169.254", "[::1]"):
        with pytest.raises(Refused, match="private address"):
            deliver(HookConfig(url=f"http://{host}:{site.server.server_address[1]}/"), EVENT)
    assert site.requests.empty()


class Deliveries:
    """Stands for hooks: what each was told, and what it answers next."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[FrostlineError]] = {}
        self.waits: list[float] = []
        self.holds: dict[str, threading.Event] = {}

    def __call__(self, hook: HookConfig, event: bytes) -> None:
        name = hook.command[0]
        if name in self.holds:
            self.holds[name].wait(100)
        self.told.append((name, json.loads(event)))
        if self.answers.get(name):
            raise self.answers[name].pop(0)

    def wait(self, changed: threading.Event, seconds: float) -> None:
        if seconds < 300:
            self.waits.append(seconds)
        else:
            changed.wait(seconds)

    def outbox(self, root: Path, *names: str, **changes: Any) -> Outbox:
        hooks = {name: HookConfig(command=(name,), **changes) for name in names}
        return Outbox(root, hooks, deliver=self, wait=self.wait)


def status_of(box: Outbox, name: str = "a") -> outbox.HookStatus:
    return next(status for status in box.status() if status.hook == name)


def test_trouble_is_told_once_and_so_is_its_end(tmp_path: Path) -> None:
    deliveries = Deliveries()
    box = deliveries.outbox(tmp_path, "a")
    box.begin()
    box.tell("recovery", "passes", "well", "ends")
    for _ in range(3):
        box.tell("failure", "passes", "no route to https://me:word@host/", "begins")
    until(lambda: status_of(box).delivered == 1)
    box.end()

    box = deliveries.outbox(tmp_path, "a")  # a daemon that begins again
    box.begin()
    box.tell("failure", "passes", "no route", "begins")
    box.tell("backup", "job backup", "one", "once")
    box.tell("backup", "job backup", "two", "once")
    box.tell("recovery", "passes", "well", "ends")
    until(lambda: status_of(box).delivered == 3)
    box.end()
    assert [event["event"] for _, event in deliveries.told] == ["failure", "backup", "backup", "recovery"]
    assert deliveries.told[0][1]["text"] == "no route to https://me:********@host/"
    assert set(deliveries.told[0][1]) == {"id", "time", "event", "where", "text", "host"}


def test_a_hook_is_told_what_it_wants_to_hear(tmp_path: Path) -> None:
    deliveries = Deliveries()
    box = deliveries.outbox(tmp_path, "a", events=("backup",))
    box.begin()
    box.tell("failure", "passes", "x", "begins")
    box.tell("backup", "job backup", "y", "once")
    until(lambda: status_of(box).delivered == 1)
    assert [event["event"] for _, event in deliveries.told] == ["backup"]
    box.end()


def test_what_was_not_heard_is_retried_ever_later_and_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries = Deliveries()
    deliveries.answers["a"] = [*[Transient("no answer")] * 6, Refused("answers 404")]
    box = deliveries.outbox(tmp_path, "a", attempts=4)
    for number in range(4):
        box.tell("backup", "job backup", str(number), "once")
    box.begin()
    until(lambda: status_of(box).waiting == 0)
    box.end()
    assert [event["text"] for _, event in deliveries.told] == ["0", "0", "0", "0", "1", "1", "1", "2"] or [
        event["text"] for _, event in deliveries.told
    ] == ["0", "0", "0", "0", "1", "1", "1", "2", "3"]
    assert len({event["id"] for _, event in deliveries.told}) == 4
    assert deliveries.waits == [1, 2, 4, 1, 2]
    done = status_of(box)
    assert (done.delivered, done.given_up, done.last_error) == (2, 2, "")
    assert caplog.records[3].message.startswith("hook a: no answer: ")


def test_a_dead_hook_holds_nobody_up(tmp_path: Path) -> None:
    deliveries = Deliveries()
    deliveries.holds["a"] = threading.Event()
    box = deliveries.outbox(tmp_path, "a", "b")
    box.begin()
    box.tell("backup", "job backup", "x", "once")
    until(lambda: status_of(box, "b").delivered == 1)
    assert status_of(box, "a").waiting == 1
    deliveries.holds["a"].set()
    until(lambda: status_of(box, "a").delivered == 1)
    box.end()


def test_a_command_ends_with_the_daemon_and_its_event_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with what it started, and with one attempt: nobody heard it. The next daemon sends the event."""
    monkeypatch.setattr(outbox, "_END_SECONDS", 0.0)
    (tmp_path / "pid").touch()
    script = f"echo $$ > {tmp_path}/pid; sleep 1000 & sleep 1000"
    slow = HookConfig(command=("/bin/sh", "-c", script), timeout_seconds=1000, attempts=1)
    box = Outbox(tmp_path, {"a": slow})
    box.begin()
    box.tell("failure", "disk s3", "away", "begins")
    until(lambda: (tmp_path / "pid").read_text().endswith("\n"))
    group = int((tmp_path / "pid").read_text())
    box.end()
    until(lambda: not alive(group))
    until(lambda: not box._threads["a"].is_alive())
    told = tmp_path / "told"
    box = Outbox(tmp_path, {"a": HookConfig(command=(*READS, str(told)))})
    box.deliver_waiting("a")
    assert '"where":"disk s3"' in told.read_text()


def test_a_command_ends_with_a_daemon_that_gives_up_its_step(tmp_path: Path) -> None:
    """Such as a large file on a slow link, at SIGTERM: the process then ends without ending its hooks in order."""
    pid = tmp_path / "pid"
    pid.touch()
    script = f"""
import threading, signal
from contextlib import suppress
from oplog.errors import Transient
from tiering.cli.commands import daemon
from tiering.config.settings import HookConfig
from tiering.daemon.hooks.delivery import deliver

def delivered():
    with suppress(Transient):  # its command is killed, and the process may not be gone yet
        deliver(slow, b"x")

daemon._MOST_STOP_SECONDS = 0
slow = HookConfig(command=("/bin/sh", "-c", "echo $$ > {pid}; sleep 1000"), timeout_seconds=1000)
threading.Thread(target=delivered).start()
while not open({str(pid)!r}).read().endswith("\\n"):
    pass
stop = threading.Event()
stop.set()
daemon._end_in_time(stop, [signal.SIGTERM], threading.Event())
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 143
    assert done.stderr.startswith("daemon: stopped within a step")
    assert done.stderr.count("\n") == 1
    group = int(pid.read_text())
    until(lambda: not alive(group))


def alive(group: int) -> bool:
    """Whether a process of the group is left."""
    found = subprocess.run(["pgrep", "-g", str(group), "-r", "R,S,D"], capture_output=True, check=False)
    return found.returncode == 0


def test_only_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    deliveries = Deliveries()
    box = deliveries.outbox(tmp_path, "a")
    for number in range(5):
        box.tell("backup", "job backup", str(number), "once")
    box.begin()
    until(lambda: status_of(box).delivered == 3)
    box.end()
    assert [event["text"] for _, event in deliveries.told] == ["2", "3", "4"]


def test_hooks_come_and_go_with_the_configuration(tmp_path: Path) -> None:
    deliveries = Deliveries()
    box = deliveries.outbox(tmp_path, "a")
    box.tell("backup", "job backup", "x", "once")
    box.change({"b": HookConfig(command=("b",))})
    box.tell("backup", "job backup", "y", "once")
    until(lambda: status_of(box, "b").delivered == 1)
    assert [status.hook for status in box.status()] == ["b"]
    box.end()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"waiting": 3}'])
def test_a_file_that_cannot_be_read_is_begun_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HOOKS_FILE).write_bytes(content)
    box = Deliveries().outbox(tmp_path, "a")
    assert "cannot be read" in caplog.text
    box.tell("backup", "job backup", "x", "once")
    assert json.loads((tmp_path / HOOKS_FILE).read_bytes())["waiting"]["a"][0]["text"] == "x"


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        (HookConfig(), "either a command or a url"),
        (HookConfig(command=("x",), url="https://example.org/"), "either a command or a url"),
        (HookConfig(url="ftp://example.org/"), "not the address of a webhook"),
        (HookConfig(url="https://me:word@example.org/"), "not the address of a webhook"),
        (HookConfig(url="https://example.org/\nHost: x"), "not the address of a webhook"),
    ],
)
def test_a_hook_that_cannot_work_is_refused(tmp_path: Path, hook: HookConfig, what: str) -> None:
    config = msgspec.structs.replace(embedded(tmp_path), hooks={"a": hook})
    (tmp_path / "frostline.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    with pytest.raises(UsageError, match=what):
        load(tmp_path / "frostline.yaml")


def test_what_lets_others_post_is_not_shown(tmp_path: Path) -> None:
    hooks = {"a": HookConfig(url="https://example.org/in/token?key=word", secret="between us")}
    shown = masked(msgspec.structs.replace(embedded(tmp_path), hooks=hooks))["hooks"]["a"]
    assert (shown["url"], shown["secret"]) == ("https://example.org/********", "********")
    (tmp_path / "frostline.yaml").write_text("hooks: {a: {url: 'https://example.org/', secret: word}}")
    (tmp_path / "frostline.yaml").chmod(0o644)
    with pytest.raises(Refused, match="others can read it"):
        load(tmp_path / "frostline.yaml")


def test_a_daemon_tells_of_trouble_and_of_low_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "told"
    hooks = {"a": HookConfig(command=(*READS, str(told)), timeout_seconds=100)}
    config = msgspec.structs.replace(embedded(tmp_path), hooks=hooks)
    settings = msgspec.structs.replace(FAST, low_space_ratio=0.999999)
    caplog.set_level(logging.WARNING)
    with Store.open(config) as store:
        original, calls = store.tick, iter([False, True, True, False])

        def tick(**arguments: Any) -> Any:
            if next(calls, False):
                raise Transient("no route to host")
            return original(**arguments)

        monkeypatch.setattr(store, "tick", tick)
        stop = threading.Event()
        thread = threading.Thread(target=daemon.run, args=(store, settings, stop))
        thread.start()
        _heard(told, lambda text: text.count('"where"') == 3)
        stop.set()
        thread.join(100)
    text = told.read_text()
    assert text.count('"event":"failure","where":"passes"') == 1
    assert text.count('"event":"recovery","where":"passes"') == 1
    assert text.count('"event":"low_space","where":"space of disk ssd"') == 1


def _heard(file: Path, enough: Callable[[str], bool]) -> None:
    until(lambda: file.exists() and enough(file.read_text()))
