"""Who may look at the dashboard: the first browser to open the address that the terminal shows. Pure.

A page of another site can make a browser send requests to this machine. None of them gets in: the name that was asked
for has to be this machine's (no name of somebody else's that was pointed here), the page that asks has to be ours, and
the cookie belongs to a path that nobody can guess, for browsers send cookies to every port of a machine.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

import msgspec

COOKIE = "frostline"
_NAMES = ("127.0.0.1", "localhost")


class Pass(msgspec.Struct, frozen=True):
    """What one browser has: the path below which everything is served to it, and the cookie that goes with it."""

    path: str
    cookie: str


class Gate(msgspec.Struct):
    """The passes that were given out, and the token for the next one."""

    port: int
    _token: str = msgspec.field(default_factory=secrets.token_urlsafe)
    _cookies: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def address(self) -> str:
        """What opens the dashboard in one more browser, once."""
        return f"http://{_NAMES[0]}:{self.port}/?token={self._token}"

    def objection(self, headers: Mapping[str, str], *, needs_origin: bool = False) -> str:
        """Why a request is refused, whatever it asks for; empty when it is not."""
        host = headers.get("Host", "")
        if host not in {f"{name}:{self.port}" for name in _NAMES}:
            return f"this server is {_NAMES[0]}:{self.port} and no other"
        origin = headers.get("Origin")
        if (origin is not None or needs_origin) and origin != f"http://{host}":
            return "request from another site"
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "request from another site"
        return ""

    def admit(self, token: str) -> Pass | None:
        """A pass for the token, which is good for nothing from then on; None for another."""
        if not _same(token, self._token):
            return None
        self._token = secrets.token_urlsafe()
        new = Pass(secrets.token_hex(8), secrets.token_urlsafe())
        self._cookies[new.path] = new.cookie
        return new

    def knows(self, path: str, cookie: str) -> bool:
        """Whether the cookie is that of the path."""
        return path in self._cookies and _same(cookie, self._cookies[path])


def _same(first: str, other: str) -> bool:
    return hmac.compare_digest(first.encode(), other.encode())
