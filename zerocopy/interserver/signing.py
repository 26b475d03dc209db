"""How replicas know one another: each request is signed with the secret they share. The secret itself never travels.
Pure.

A signature is about one request to one machine. It holds once, and for five minutes, so clocks must not differ by more.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque

import msgspec

SCHEME = "Frostline-2"
"""With the version of the protocol."""
EARLIER_SCHEME = "Frostline-1"
"""Bound the method, the path and the time alone, so that a request could be repeated, and at another machine."""
WINDOW_SECONDS = 300
_NONCE_BYTES = 16


class AskedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a signature is about: all that an answer depends on."""

    method: str
    address: str
    """Of the machine that is asked, as it announces itself: `host:port`."""
    path: str
    """With what follows the `?`."""
    byte_range: str = ""
    digest: str = ""
    whole: str = ""
    """The headers `Range`, `Frostline-Digest` and `Frostline-Whole`; empty where they are missing."""


def sign(secret: str, asked: AskedRequest, *, now: float) -> str:
    """The value of the header `Authorization`: another one each time."""
    time, nonce = str(int(now)), secrets.token_hex(_NONCE_BYTES)
    return f"{SCHEME} {time}:{nonce}:{_digest(secret, asked, time, nonce)}"


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is not answered."""

    why: str
    is_repeat: bool = False
    """It was answered before, or may have been: who sent it may sign another one."""


class SignatureCheck:
    """Tells requests of replicas from others. Used from one thread. `began`: when it came to be; of what was answered
    before nobody knows any more."""

    def __init__(self, secret: str, *, began: float = 0.0) -> None:
        self._secret = secret
        self._began = int(began)
        self._nonces: set[str] = set()
        self._by_time: deque[tuple[int, str]] = deque()

    def refusal(self, header: str, asked: AskedRequest, *, now: float) -> Refusal | None:
        """None for a request that who knows the secret signed just now, for this machine, and that came for the first
        time."""
        scheme, _, rest = header.partition(" ")
        if scheme == EARLIER_SCHEME:
            return Refusal("it is signed as an earlier version of Frostline does: upgrade the replica that asks")
        time, _, rest = rest.partition(":")
        nonce, _, digest = rest.partition(":")
        if scheme != SCHEME or not (time.isascii() and time.isdecimal() and len(time) <= 12):
            return Refusal("it is not signed by a replica")
        if abs(now - int(time)) > WINDOW_SECONDS:
            return Refusal("it was signed more than five minutes ago, or by another clock")
        if not hmac.compare_digest(_bytes(digest), _digest(self._secret, asked, time, nonce).encode()):
            return Refusal(f"it is not signed with the secret of {asked.address}, or for another machine")
        if int(time) < self._began:
            return Refusal("it was signed before this daemon began, which may have answered it before", is_repeat=True)
        return self._repeated(nonce, int(now))

    def _repeated(self, nonce: str, now: int) -> Refusal | None:
        while self._by_time and self._by_time[0][0] < now - 2 * WINDOW_SECONDS:
            self._nonces.discard(self._by_time.popleft()[1])
        if nonce in self._nonces:
            return Refusal("it was answered before", is_repeat=True)
        self._nonces.add(nonce)
        self._by_time.append((now, nonce))
        return None


def _digest(secret: str, asked: AskedRequest, time: str, nonce: str) -> str:
    lines = (SCHEME, asked.method, asked.address, asked.path, asked.byte_range, asked.digest, asked.whole, time, nonce)
    return hmac.new(secret.encode(), _bytes("\n".join(lines)), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    """Of a header, which may hold bytes that are no text."""
    return text.encode(errors="surrogatepass")
