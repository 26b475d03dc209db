"""How replicas know one another: each request is signed with the secret they share. The secret itself never travels.
Pure.

A signature is about one request and holds for five minutes, so clocks must not differ by more.
"""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "Frostline-1"
"""With the version of the protocol."""
WINDOW_SECONDS = 300


def sign(secret: str, method: str, path: str, *, now: float) -> str:
    """The value of the header `Authorization`."""
    time = str(int(now))
    return f"{SCHEME} {time}:{_digest(secret, method, path, time)}"


def is_signed(header: str, secret: str, method: str, path: str, *, now: float) -> bool:
    """Whether who sent the request knows the secret, and sent it just now."""
    scheme, _, rest = header.partition(" ")
    time, _, digest = rest.partition(":")
    if scheme != SCHEME or not (time.isascii() and time.isdecimal() and len(time) <= 12):
        return False
    if abs(now - int(time)) > WINDOW_SECONDS:
        return False
    return hmac.compare_digest(_bytes(digest), _bytes(_digest(secret, method, path, time)))


def _digest(secret: str, method: str, path: str, time: str) -> str:
    return hmac.new(secret.encode(), _bytes(f"{method}\n{path}\n{time}"), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    """As they arrived: a header may hold any."""
    return text.encode("utf-8", "surrogateescape")
