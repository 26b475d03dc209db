"""What goes wrong between us and the bucket. Each fault is counted when it happens, not when it is planned."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.meddling import Exchange

KINDS = ("slow_down", "internal_error", "reset", "lost_answer", "truncated", "flipped", "slow", "page")
_WHERE = (
    ".",
    ".",
    ".",
    "PUT",
    "GET",
    "LIST",
    "PUT .*/operations/",
    "GET .*/operations/",
    "PUT .*-file-",
    "GET .*-file-",
    "HEAD|POST",
)
_ERRORS = {"slow_down": (503, "SlowDown"), "internal_error": (500, "InternalError")}
_XML = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>injected</Message></Error>'
_PAGE = b"<html><body>503 Service Unavailable: this is not the store</body></html>"
_SLOW_SECONDS = 0.3


@dataclass(slots=True)
class Fault:
    """Strikes `count` requests that match, each with the probability `share`, after `after` others that do."""

    kind: str
    where: str
    after: int
    count: int
    share: float = 1.0

    def __str__(self) -> str:
        return f"{self.count} x {self.kind} of {self.where} after {self.after}"


def some(chance: random.Random) -> list[Fault]:
    """A few chosen ones, or many at random."""
    if chance.random() < 0.4:
        return [Fault(kind, ".", 0, 3, 0.15) for kind in chance.sample(KINDS, 4)]
    return [
        Fault(
            chance.choice(KINDS), chance.choice(_WHERE), chance.choice((0, 0, 0, 1, 2, 5)), chance.choice((1, 1, 2, 4))
        )
        for _ in range(chance.choice((1, 2, 2, 3)))
    ]


class Faults:
    """The hook of `tests.meddling`: what is wrong now, what went wrong, and whether anything is under way."""

    def __init__(self) -> None:
        self.fired: Counter[str] = Counter()
        self.refused = 0
        """Requests that found no bucket during the present outage."""
        self._planned: list[Fault] = []
        self._chance = random.Random(0)
        self._away = False
        self._under_way = 0
        self._lock = threading.Condition()

    def plan(self, faults: list[Fault], chance: random.Random | None = None) -> None:
        """These, and no others."""
        with self._lock:
            self._planned, self._chance = faults, chance or self._chance

    def outage(self, away: bool) -> None:
        """The bucket goes, or comes back."""
        with self._lock:
            self._away = away
            if away:
                self.refused = 0

    def wait_until_idle(self) -> None:
        """A killed client's last request may still be on its way to the server."""
        with self._lock:
            assert self._lock.wait_for(lambda: not self._under_way, 60), "the server does not answer"

    def around(self, exchange: Exchange, forward: Callable[[], None]) -> None:
        with self._lock:
            if self._away:
                self.refused += 1
                raise ConnectionResetError
            self._under_way += 1
            kind = self._next(_described(exchange))
        try:
            self._strike(kind, exchange, forward)
        finally:
            with self._lock:
                self._under_way -= 1
                self._lock.notify_all()

    def _next(self, request: str) -> str | None:
        for fault in self._planned:
            fits = request.startswith("GET") or fault.kind not in ("truncated", "flipped")
            if fault.count and fits and re.match(fault.where, request):
                if fault.after:
                    fault.after -= 1
                    continue
                if self._chance.random() > fault.share:
                    continue
                fault.count -= 1
                return fault.kind
        return None

    def _strike(self, kind: str | None, exchange: Exchange, forward: Callable[[], None]) -> None:
        if kind in _ERRORS:
            status, code = _ERRORS[kind]
            self._answer(exchange, status, _XML.format(code).encode(), "application/xml")
        elif kind == "page":
            self._answer(exchange, 503, _PAGE, "text/html")
        elif kind == "reset":
            self.fired[kind] += 1
            raise ConnectionResetError
        else:
            if kind == "slow":
                time.sleep(_SLOW_SECONDS)
            forward()
        if kind == "lost_answer":
            self.fired[kind] += 1
            raise ConnectionResetError
        if kind in ("truncated", "flipped") and exchange.status in (200, 206) and exchange.body:
            middle = len(exchange.body) // 2
            if kind == "truncated":
                exchange.cut = middle
            else:
                at, bit = self._chance.randrange(len(exchange.body)), 1 << self._chance.randrange(8)
                exchange.body = exchange.body[:at] + bytes([exchange.body[at] ^ bit]) + exchange.body[at + 1 :]
        elif kind in ("truncated", "flipped"):
            return
        if kind is not None:
            self.fired[kind] += 1

    @staticmethod
    def _answer(exchange: Exchange, status: int, body: bytes, kind: str) -> None:
        exchange.status, exchange.body, exchange.headers = status, body, {"content-type": kind}


def _described(exchange: Exchange) -> str:
    listing = exchange.method == "GET" and "list-type=" in exchange.path
    return f"{'LIST' if listing else exchange.method} {exchange.path}"
