"""One try to tell a hook of an event: a command that reads it, or a POST. What it did not hear raises `FrostlineError`.

No argument, no name of a variable and no message has a secret: the event goes to standard input or into the body. A
webhook is asked at an address that was looked at, follows no redirect and no proxy, and has a time in which to answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from urllib.parse import urlsplit

from oplog.errors import Refused, Transient
from tiering.config.settings import HookConfig

_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What a command sees of the daemon's environment, which may hold keys of buckets."""
_MOST_ANSWER_BYTES = 64 * 1024
_running: set[subprocess.Popen[bytes]] = set()
_starting = threading.Lock()
"""Held from before a command starts until it is among those that run, so that none is overlooked between."""


def deliver(hook: HookConfig, event: bytes) -> None:
    """Tell it once. Raises `Refused` where trying again would not help."""
    if hook.command:
        _run(hook, event)
    else:
        _post(hook, event)


def why_never(hook: HookConfig) -> str:
    """Why no try can succeed on this machine, as far as that is known without one; empty where nothing says so."""
    if hook.command:
        return "" if shutil.which(hook.command[0]) else f"{hook.command[0]!r} is no program on this machine"
    host = urlsplit(hook.url).hostname or ""
    with contextlib.suppress(ValueError):  # a name, which is looked up for each try
        if not hook.allow_private and not ipaddress.ip_address(host).is_global:
            return f"{host} is a private address, and allow_private is not set"
    return ""


def end_commands() -> None:
    """End the commands that run now, with what they have started: nobody waits for them any more."""
    with _starting:
        _end_all()


def end_commands_for_good() -> None:
    """The same, and none starts after it: this process ends."""
    _starting.acquire()
    _end_all()


def _end_all() -> None:
    for process in list(_running):
        _end(process)


def signature(secret: str, body: bytes) -> str:
    """What the header `Frostline-Signature` says of a body."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def _run(hook: HookConfig, event: bytes) -> None:
    seen = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        with _starting:
            process = subprocess.Popen(
                hook.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=seen,
                start_new_session=True,
            )
            _running.add(process)
    except OSError as error:
        raise Refused(f"{hook.command[0]} cannot be run: {error.strerror}", hint="name a program in full") from error
    try:
        process.communicate(event + b"\n", timeout=hook.timeout_seconds)
    except subprocess.TimeoutExpired:
        raise Transient(f"{hook.command[0]} took more than {hook.timeout_seconds:g} s") from None
    finally:
        _end(process)
        process.wait()
        _running.discard(process)
    if process.returncode:
        raise Transient(f"{hook.command[0]} ended with {process.returncode}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)


def _post(hook: HookConfig, event: bytes) -> None:
    url = urlsplit(hook.url)
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    deadline = time.monotonic() + hook.timeout_seconds
    headers = {"Content-Type": "application/json", "User-Agent": "frostline"}
    if hook.secret:
        headers["Frostline-Signature"] = signature(hook.secret, event)
    try:
        # At the address that was looked at: a name may stand for another one a moment later.
        stream: socket.socket = socket.create_connection((_address(hook, host, port), port), hook.timeout_seconds)
        try:
            if url.scheme == "https":
                stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
            connection = http.client.HTTPConnection(host, port, timeout=hook.timeout_seconds)
            connection.sock = stream
            connection.request("POST", f"{url.path or '/'}{'?' + url.query if url.query else ''}", event, headers)
            answer = connection.getresponse()
            while answer.read(_MOST_ANSWER_BYTES):
                if time.monotonic() > deadline:
                    raise Transient(f"{host} took more than {hook.timeout_seconds:g} s to answer")
        finally:
            stream.close()
    except (OSError, http.client.HTTPException) as error:
        why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        raise Transient(f"{host} does not answer: {why}") from error
    if 300 <= answer.status < 400:
        raise Refused(f"{host} answers {answer.status}: redirects are not followed", hint="configure its target")
    if answer.status >= 400:
        kind = Transient if answer.status >= 500 or answer.status in (408, 425, 429) else Refused
        raise kind(f"{host} answers {answer.status}")


def _address(hook: HookConfig, host: str, port: int) -> str:
    """Where the host is. Raises `Refused` for an address that only this machine's network has, unless it is allowed."""
    found = [str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in () if hook.allow_private else found:
        if not ipaddress.ip_address(address.partition("%")[0]).is_global:
            raise Refused(
                f"{host} is at {address}, which is a private address",
                hint="set allow_private: true to allow it",
            )
    return found[0]
