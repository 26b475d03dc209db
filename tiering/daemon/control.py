"""What people ask of a running daemon: one line of JSON over a socket below the state directory, one line back.

The socket is its user's alone (0600). What is left of a daemon that was killed is taken away by the next one, which
holds the store's daemon lock. A path may be longer than a socket's address: it is named by its directory's descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from disks import effects
from disks.host.locks import lock_holder
from oplog.bounds import UNREADABLE
from oplog.errors import FrostlineError, Transient, UsageError
from tiering.config.jobs import JOB_NAMES
from tiering.daemon.jobs.jobs import DaemonJobs
from tiering.daemon.lock import daemon_lock_path
from tiering.daemon.reload import Taken

SOCKET_FILE = "daemon.sock"
_MOST_BYTES = 1024 * 1024
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_REST_SECONDS = 0.5
_ASK_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_BEGIN_SECONDS = 10.0

Answer = dict[str, Any]
"""What a verb answers, by its own keys: the daemon may be of another version than who asks."""
Verbs = Mapping[str, Callable[[list[str]], Answer]]

log = logging.getLogger("frostline.daemon")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked."""

    verb: str
    jobs: list[str] = []


class ErrorShown(msgspec.Struct, frozen=True):
    """An error as `--json` shows it."""

    kind: str
    message: str
    hint: str
    exit_code: int


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of it: a document, or an error."""

    document: Answer = {}
    error: ErrorShown | None = None


_requests = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(Reply)


class ControlServer:
    """Answers until `end`, one after the other; a client that connects and says nothing is disconnected."""

    def __init__(self, state_directory: Path, verbs: Verbs) -> None:
        self._path, self._verbs = state_directory / SOCKET_FILE, verbs
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._answer_all, name="control", daemon=True)
        self._ends = False

    def begin(self) -> None:
        """Listen. The caller holds the daemon lock. Raises `FrostlineError` where it cannot."""
        try:
            if stat.S_ISSOCK(self._path.lstat().st_mode):
                effects.remove_file(self._path)
        except FileNotFoundError:
            pass
        try:
            with _address(self._path) as address, effects.op("fs.create", self._path):
                os.fchmod(self._socket.fileno(), 0o600)  # before it has a name, so that it never is anybody's
                self._socket.bind(address)
            self._socket.listen(16)
        except OSError as error:
            self._socket.close()
            raise FrostlineError(
                f"the daemon cannot be asked anything: {self._path}: {error}",
                hint="it runs, but 'frostline daemon status' and 'pause' cannot reach it",
            ) from error
        self._thread.start()

    def end(self) -> None:
        """Answer no more; the socket is gone."""
        self._ends = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._thread.ident is not None:
            self._thread.join()
            effects.remove_file(self._path, missing_ok=True)

    def _answer_all(self) -> None:
        while not self._ends:
            try:
                asking, _ = self._socket.accept()
            except OSError as error:
                if self._ends or error.errno not in _NO_DESCRIPTORS:
                    return
                time.sleep(_REST_SECONDS)  # they come back when others are closed
                continue
            with asking:
                try:
                    asking.settimeout(_ASK_SECONDS)
                    answer = msgspec.json.encode(self._answer(_line(asking))) + b"\n"
                    asking.settimeout(_ASK_SECONDS)
                    asking.sendall(answer)
                except OSError as error:
                    log.debug("the client is gone: %s", error)

    def _answer(self, line: bytes) -> Reply:
        try:
            request = _requests.decode(line)
        except UNREADABLE as error:
            return _failed(UsageError(f"not a request: {error}"))
        try:
            if request.verb not in self._verbs:
                raise UsageError(
                    f"a daemon does not know {request.verb!r}", hint="its version is another one: restart it"
                )
            return Reply(self._verbs[request.verb](request.jobs))
        except FrostlineError as error:
            return _failed(error)
        except Exception as error:
            log.exception("a request failed")
            return _failed(FrostlineError(f"{type(error).__name__}: {error}"))


def verbs_of(jobs: DaemonJobs, reload: Callable[[], Taken], compare: Callable[[], Taken]) -> Verbs:
    """What a daemon with these jobs can be asked."""

    def told(act: Callable[[list[str]], None]) -> Callable[[list[str]], Answer]:
        def ask(names: list[str]) -> Answer:
            act(names)
            return {"jobs": names or list(JOB_NAMES)}

        return ask

    def trigger(names: list[str]) -> None:
        for name in names:
            jobs.trigger(name)

    def document(taken: Taken) -> Answer:
        return {"changed": list(taken.changed), "kept": list(taken.kept)}

    return {
        "pause": told(jobs.pause),
        "resume": told(jobs.resume),
        "trigger": told(trigger),
        "reload": lambda names: document(reload()),
        "compare": lambda names: document(compare()),
    }


def _connected(path: Path, begin_seconds: float, answer_seconds: float) -> socket.socket:
    """A connection to the daemon, which is there but may not listen yet: one that was killed leaves its socket."""
    deadline = time.monotonic() + begin_seconds
    while True:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            asking.settimeout(answer_seconds)
            with _address(path) as address:
                asking.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            asking.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        except BaseException:
            asking.close()
            raise
        else:
            return asking


def ask(
    state_directory: Path,
    verb: str,
    jobs: list[str],
    *,
    begin_seconds: float = _BEGIN_SECONDS,
    answer_seconds: float = _ANSWER_SECONDS,
) -> Answer:
    """Ask the store's daemon. Raises its error; `FrostlineError` where none runs, `Transient` where none listens after
    the one time, or answers within the other."""
    if lock_holder(daemon_lock_path(state_directory)) is None:
        raise FrostlineError("no daemon runs on this store", hint="'frostline daemon run' starts one")
    path = state_directory / SOCKET_FILE
    try:
        with _connected(path, begin_seconds, answer_seconds) as asking:
            asking.sendall(msgspec.json.encode(Request(verb, jobs)) + b"\n")
            answer = _answers.decode(_line(asking))
    except (OSError, msgspec.MsgspecError) as error:
        raise Transient(
            f"the daemon does not answer at {path}: {error}", hint="it starts or ends: try again"
        ) from error
    if answer.error is not None:
        raise _error(answer.error)
    return answer.document


def _line(connection: socket.socket) -> bytes:
    """A line, within the connection's timeout however slowly it arrives. Raises `TimeoutError`."""
    found, seconds = b"", connection.gettimeout()
    deadline = None if seconds is None else time.monotonic() + seconds
    while not found.endswith(b"\n") and len(found) < _MOST_BYTES:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = connection.recv(_MOST_BYTES)
        if not piece:
            break
        found += piece
    return found


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _failed(error: FrostlineError) -> Reply:
    return Reply(error=ErrorShown(error.kind, error.message, error.advice, error.exit_code))


def _error(shown: ErrorShown) -> FrostlineError:
    error = FrostlineError(shown.message, hint=shown.hint)
    error.kind, error.exit_code = shown.kind, shown.exit_code
    return error
