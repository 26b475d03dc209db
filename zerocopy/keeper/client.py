"""`Keeper`: one connection to ZooKeeper, for all that replicated tables ask of it.

Every call ends within `request_timeout_seconds`, and within a second where nobody was heard for so long already, with
an answer or one of these:

* `NotFound`, `AlreadyExists`, `Conflict`: the server said no, and nothing was changed;
* `Transient`: the request was never sent, or changes nothing;
* `OutcomeUnknown`: a change was sent and every answer was lost.

A call without an answer ends sooner when the process stops.

A lost answer is not guessed: the call is repeated until there is one. A repeated change that is then refused may be
refused because the first try was carried out, so a change names its witness: a node that holds what the caller wrote
if, and only if, the change took place. It is read after a `sync`, for a server may lag behind the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.retry import KazooRetry
from kazoo.security import Permissions, make_digest_acl

from disks.effects import op
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    FrostlineError,
    NotFound,
    OutcomeUnknown,
    Transient,
    UsageError,
)
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.batched import AtOnce, BatchedRequests
from zerocopy.keeper.operations import ANY_VERSION, CheckNode, CreateNode, DeleteNode, Operation, Set, check_size

_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_AT_ONCE = 1000
"""Questions that are on their way at the same time, at most."""
_ANEW_SECONDS = 5.0
"""How long a client hears nothing, at least, before it reconnects; and the time between two reconnects."""
_END_SECONDS = 3.0
"""How long the end of a session is waited for; who does not hear of it ends it when it times out."""
_NONE_CONFIGURED = "name the servers in the configuration: keeper: {hosts: [host:2181]}"

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Node(msgspec.Struct, frozen=True):
    """What a node holds, and how often it was written."""

    data: bytes
    version: int
    children: int
    children_version: int
    created_milliseconds: int
    """By the server's clock."""
    owner: int
    """The session that an ephemeral node goes with; 0 for one that stays."""
    written_milliseconds: int = 0
    """When it was written last, by the server's clock."""


def _node(answer: Any) -> Node | None:
    if answer is None:
        return None
    data, stat = answer
    times = stat.ctime, stat.ephemeralOwner, stat.mtime
    return Node(data, stat.version, stat.numChildren, stat.cversion, *times)


def _end(client: KazooClient) -> None:
    with suppress(zk.WriterNotClosedException):
        client.stop()
        client.close()


class Witness(msgspec.Struct, frozen=True):
    """The node that tells whether a change took place: it then holds this."""

    path: str
    data: bytes


class Keeper:
    """A session. Thread-safe. Paths are absolute below `root`. A context manager: leaving it ends the session, and with
    it what is ephemeral."""

    def __init__(self, settings: KeeperConfig, stopped: Callable[[], bool] = lambda: False) -> None:
        """Connects in the background; the first call waits for it. `stopped` says whether the process is to end: then
        nobody is waited for. Raises `UsageError` without hosts."""
        if not settings.hosts:
            raise UsageError("no ZooKeeper is configured", hint=_NONE_CONFIGURED)
        self._settings = settings
        self._stopped = stopped
        self._acl = [make_digest_acl(settings.user, settings.password, all=True)] if settings.user else None
        self._connected = threading.Event()
        self._silent_since: float | None = time.monotonic()
        self._made: set[str] = set()
        self._many = BatchedRequests()
        self._is_closing = False
        self.requests = 0
        """How many were sent, repeats included, heartbeats not."""
        self._starting = threading.Lock()
        self._begun = time.monotonic()
        self._client = self._start()

    def _start(self) -> KazooClient:
        client = unconnected(self._settings)

        def changed(state: str) -> None:
            if self._client is client:
                self._changed(state)

        self._client = client
        client.add_listener(changed)
        client.start_async()
        return client

    def _start_anew(self) -> None:
        """Begin as a new process does, when nothing was heard for so long that the session is over: a server that knows
        less than the client has seen, as one that lost its data, refuses it for ever."""
        with self._starting:
            longest = max(2 * self._settings.session_timeout_seconds, _ANEW_SECONDS)
            if self.silent_seconds < longest or time.monotonic() - self._begun < longest:
                return
            self._begun = time.monotonic()
            self._made.clear()
            old, _ = self._client, self._start()
            threading.Thread(target=_end, args=(old,), name="keeper-end", daemon=True).start()

    def close(self) -> None:
        """End the session. A server that does not answer is not waited for."""
        self._is_closing = True
        ending = threading.Thread(target=_end, args=(self._client,), name="keeper-end", daemon=True)
        ending.start()
        ending.join(_END_SECONDS if self._connected.is_set() else LOOK_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """How to reach it, for messages."""
        return f"{','.join(self._settings.hosts)}{self._settings.root}"

    @property
    def session(self) -> int:
        """The id of the session; 0 while there is none. What belonged to an earlier one may be gone."""
        known = self._client.client_id
        return int(known[0]) if known is not None and self._client.state != KazooState.LOST else 0

    @property
    def silent_seconds(self) -> float:
        """How long the server has not been heard of; 0 while it can be reached. Past the session's timeout others may
        have taken over, whatever the server says when it is back."""
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Node:
        """What the node holds. Raises `NotFound`."""
        found = _node(self._ask(f"reading {path}", lambda: self._client.get_async(self._full(path))))
        assert found is not None
        return found

    def find(self, path: str) -> Node | None:
        """What the node holds; None when there is none."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def find_all(self, paths: Sequence[str]) -> list[Node | None]:
        """What each of the nodes holds, in this order; asked at once, so that many cost little more than one."""
        return [_node(one) for one in self._ask_all("reading", GetData, paths)]

    def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of the nodes, sorted, in the order of the nodes; None for one that is not there."""
        found = self._ask_all("listing", GetChildren, paths)
        return [sorted(map(str, one)) if one is not None else None for one in found]

    def _ask_all(self, operation: str, question: type[Any], paths: Sequence[str]) -> Iterator[Any]:
        for begin in range(0, len(paths), _AT_ONCE):
            full = [self._full(path) for path in paths[begin : begin + _AT_ONCE]]
            yield from self._ask(f"{operation} {full[0]} and others", partial(self._asked_all, question, full))

    def _asked_all(self, question: type[Any], full: Sequence[str]) -> AtOnce:
        asked = self._many.ask(self._client, question, full)
        self.requests += asked.requests - 1
        return asked

    def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        return self._ask(f"looking for {path}", lambda: self._client.exists_async(self._full(path))) is not None

    def is_open(self, path: str) -> bool:
        """Whether anybody may change the node, or what is below it. Raises `NotFound`."""
        rules, _ = self._ask(f"reading the rules of {path}", lambda: self._client.get_acls_async(self._full(path)))
        return any(rule.id.scheme == "world" and rule.perms & ~Permissions.READ for rule in rules)

    def await_node(self, path: str, changed: Callable[[], None]) -> bool:
        """As `exists`; `changed` is called once when it comes or goes, or when that cannot be told any more."""
        full = self._full(path)
        ask = partial(self._client.exists_async, full, watch=lambda event: changed())
        return self._ask(f"waiting for {path}", ask) is not None

    def children(self, path: str) -> list[str]:
        """The names below the node, sorted. Raises `NotFound`."""
        found = self._ask(f"listing {path}", lambda: self._client.get_children_async(self._full(path)))
        return sorted(map(str, found))

    def watch(self, path: str, changed: Callable[[], None]) -> list[str]:
        """As `children`; `changed` is called once when they are others, or when that cannot be told any more."""

        def ask() -> Any:
            return self._client.get_children_async(self._full(path), watch=lambda event: changed())

        return sorted(map(str, self._ask(f"watching {path}", ask)))

    def watch_node(self, path: str, changed: Callable[[], None]) -> Node | None:
        """As `find`; `changed` is called once when it holds something else, when it comes or goes, or when that cannot
        be told any more."""
        full = self._full(path)
        while True:
            try:
                return _node(
                    self._ask(f"watching {path}", lambda: self._client.get_async(full, watch=lambda event: changed()))
                )
            except NotFound:
                pass
            if (
                self._ask(f"watching {path}", lambda: self._client.exists_async(full, watch=lambda event: changed()))
                is None
            ):
                return None

    def sync(self, path: str = "/") -> None:
        """Returns when what is read next is at least as new as every change that was answered before, to anybody."""
        self._ask("catching up", lambda: self._client.sync_async(self._full(path)))

    # -- changing ----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make the node; one that is there with the same data already is as good after a lost answer. Raises
        `AlreadyExists`, or `NotFound` without its parent."""
        self.multi([CreateNode(path, data, ephemeral)], witness=Witness(path, data))

    def create_numbered(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> str:
        """Make a node whose name is this path and a number, and return its path. The path must be one that nobody used
        before: by it the node is found again when the answer was lost."""
        parent, _, prefix = path.rpartition("/")

        def made_before() -> str | None:
            self.sync(parent)
            return next((f"{parent}/{name}" for name in self.children(parent) if name.startswith(prefix)), None)

        def create() -> Any:
            return self._client.create_async(self._full(path), data, acl=self._acl, ephemeral=ephemeral, sequence=True)

        made = self._change(f"creating {path}", create, look=made_before)
        return str(made).removeprefix(self._settings.root)

    def make_path(self, path: str) -> None:
        """Make the node and those above it, where they are missing. Each is looked for once a session."""
        steps = self._full(path).strip("/").split("/")
        for length in range(1, len(steps) + 1):
            full = "/" + "/".join(steps[:length])
            if full in self._made:
                continue
            try:
                self._change(f"creating {full}", lambda full=full: self._client.create_async(full, b"", acl=self._acl))  # type: ignore[misc]
            except AlreadyExists:
                pass
            self._made.add(full)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Write the node. Raises `NotFound`, or `Conflict` when its version is another one."""
        self.multi([Set(path, data, version)], witness=Witness(path, data))

    def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """Take the node away; False when there was none. Raises `Conflict` for one that has children."""
        try:
            self._change(f"deleting {path}", lambda: self._client.delete_async(self._full(path), version))
        except NotFound:
            return False
        return True

    def delete_tree(self, path: str) -> None:
        """Take the node and all below it away, the deepest first. Nothing when it is missing."""
        self._made = {made for made in self._made if not f"{made}/".startswith(f"{self._full(path)}/")}
        try:
            names = self.children(path)
        except NotFound:
            return
        for name in names:
            self.delete_tree(f"{path}/{name}")
        self.delete(path)

    def multi(self, operations: Sequence[Operation], *, witness: Witness | None = None) -> list[str]:
        """Carry out all of the operations or none; returns the path of each (of a numbered node, the one it got).

        Raises what the first operation that fails raises. Without a `witness` a change whose answer was lost and whose
        repeat is refused raises `OutcomeUnknown`.
        """
        check_size(operations)

        def witnessed() -> list[str] | None:
            if witness is None:
                raise OutcomeUnknown(
                    "the answer to a change in Keeper was lost",
                    hint="check whether it took effect before you repeat it",
                )
            self.sync(witness.path)
            found = self.find(witness.path)
            return [one.path for one in operations] if found is not None and found.data == witness.data else None

        answers = self._change(
            f"changing {operations[0].path}" if operations else "nothing",
            lambda: self._sent(operations),
            look=witnessed,
        )
        return [str(one).removeprefix(self._settings.root) if isinstance(one, str) else "" for one in answers]

    def _sent(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for one in operations:
            full = self._full(one.path)
            match one:
                case CreateNode():
                    transaction.create(full, one.data, self._acl, one.ephemeral, one.numbered)
                case Set():
                    transaction.set_data(full, one.data, one.version)
                case DeleteNode():
                    transaction.delete(full, one.version)
                case CheckNode():
                    transaction.check(full, one.version)
        return transaction.commit_async()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return self._settings.root + path if path != "/" else self._settings.root

    def _changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._silent_since = None
            self._connected.set()
            return
        self._connected.clear()
        self._silent_since = self._silent_since or time.monotonic()
        if state == KazooState.LOST:
            self._made.clear()
            self._many = BatchedRequests()
            if not self._is_closing:
                logger.warning("a session with %s is over, and another one begins", ", ".join(self._settings.hosts))

    def _ask(self, operation: str, start: Callable[[], Any]) -> Any:
        """Repeat a question until it is answered."""
        return self._repeat(operation, start, None)

    def _change(self, operation: str, start: Callable[[], Any], look: Callable[[], Any] | None = None) -> Any:
        """Repeat a change until its outcome is known. `look` tells, after a lost answer, what an earlier try did; None
        when it did nothing."""
        with op("keeper.change", operation):
            return self._repeat(operation, start, look or (lambda: None))

    def _repeat(self, operation: str, start: Callable[[], Any], look: Callable[[], Any] | None) -> Any:
        longest = longest_seconds(self._settings.request_timeout_seconds, self.silent_seconds)
        patience = Deadlines(time.monotonic() + longest, self._stopped)
        lost, pause = False, _PAUSE_SECONDS
        while True:
            if not patience.until(self._is_connected):
                raise self._silent(operation, longest, lost=lost and look is not None)
            if lost and (outcome := self._looked(operation, look, longest)) is not None:
                return outcome
            try:
                self.requests += 1
                asked = start()
                patience.until(asked.wait)
                return answer_of(asked.get(block=False))
            except self._unanswered as error:
                lost = True
                logger.debug("no answer while %s: %s", operation, type(error).__name__)
                if patience.left_seconds <= 0:
                    raise self._silent(operation, longest, lost=look is not None) from error
            except zk.ZookeeperError as error:
                if lost and (outcome := self._looked(operation, look, longest)) is not None:
                    return outcome
                raise refusal(operation, error) from error
            time.sleep(min(pause, patience.left_seconds))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _is_connected(self, seconds: float) -> bool:
        """Whether the server can be reached within so many seconds."""
        if self._connected.wait(seconds):
            return True
        self._start_anew()
        return False

    def _looked(self, operation: str, look: Callable[[], Any] | None, longest: float) -> Any:
        """What an earlier try did, whose answer was lost; None when it did nothing that is known."""
        try:
            return look() if look is not None else None
        except Transient as error:
            raise self._silent(operation, longest, lost=True) from error

    @property
    def _unanswered(self) -> tuple[type[Exception], ...]:
        timeout: type[Exception] = self._client.handler.timeout_exception
        return (zk.ConnectionLoss, zk.OperationTimeoutError, zk.SessionExpiredError, zk.ConnectionClosedError, timeout)

    def _silent(self, operation: str, seconds: float, *, lost: bool) -> FrostlineError:
        return silence(self._settings, operation, seconds, stopped=self._stopped(), lost=lost)


LOOK_SECONDS = 0.2
"""How often a waiting call checks whether the process stops."""
_STOPPED_SECONDS = 0.5
"""How long a call waits then."""


_AGAIN_SECONDS = 1.0
"""How long a call waits when those before it had no answer. The client tries to connect as often, at least."""


def longest_seconds(timeout_seconds: float, silent_seconds: float) -> float:
    """How long a call waits that may take `timeout_seconds`. Where nobody was heard for as long, those before it have
    waited in vain, and the client goes on trying beside: what needs no Keeper does not wait for a call of each table.
    Pure."""
    return min(timeout_seconds, _AGAIN_SECONDS) if silent_seconds >= timeout_seconds else timeout_seconds


class Deadlines(msgspec.Struct):
    """How long one call waits: until its end, or a moment after the process begins to stop."""

    end: float
    stopped: Callable[[], bool]
    _is_told: bool = False

    @property
    def left_seconds(self) -> float:
        if not self._is_told and self.stopped():
            self.end, self._is_told = min(self.end, time.monotonic() + _STOPPED_SECONDS), True
        return max(self.end - time.monotonic(), 0)

    def until(self, wait: Callable[[float], bool]) -> bool:
        """Whether it came true in time; `wait` waits so many seconds for it."""
        while not wait(min(self.left_seconds, LOOK_SECONDS)):
            if self.left_seconds <= 0:
                return False
        return True


def answer_of(answer: Any) -> Any:
    """The answer; of a multi that was refused, the error that it was refused for."""
    if isinstance(answer, list):
        errors = [one for one in answer if isinstance(one, Exception)]
        for error in errors:
            if not isinstance(error, zk.RolledBackError | zk.RuntimeInconsistency):
                raise error
        if errors:
            raise errors[0]
    return answer


def refusal(operation: str, error: zk.ZookeeperError) -> FrostlineError:
    """What is raised for the server's no."""
    match error:
        case zk.NoNodeError():
            return NotFound(f"{operation}: there is no such node in Keeper", hint="check with 'frostline keeper ls'")
        case zk.NodeExistsError():
            return AlreadyExists(
                f"{operation}: the node is there already", hint="see its content with 'frostline keeper get'"
            )
        case zk.BadVersionError() | zk.NotEmptyError():
            return Conflict(f"{operation}: another client changed the node first", hint="check it again, then retry")
        case zk.NoAuthError() | zk.AuthFailedError():
            return AccessDenied(
                f"{operation}: Keeper refuses this user",
                hint="check keeper.user and keeper.password of the configuration",
            )
        case _:
            return FrostlineError(f"{operation}: Keeper says {type(error).__name__}", hint="see the server's log")


def silence(settings: KeeperConfig, operation: str, seconds: float, *, stopped: bool, lost: bool) -> FrostlineError:
    """What is raised where nobody answers for so long; `lost`: a change was sent."""
    servers = ", ".join(settings.hosts)
    when = "when the process began to stop" if stopped else f"after {seconds:g} s"
    if lost:
        return OutcomeUnknown(
            f"Keeper ({servers}) did not answer, given up {when}: whether {operation} took place is not known",
            hint="check before you run it again: 'frostline keeper check' shows whether the servers answer",
        )
    return Transient(
        f"Keeper ({servers}) cannot be reached: {operation} was given up {when}, and nothing was changed",
        hint="'frostline keeper check' shows which server answers; queries need none",
    )


_said = logging.getLogger(f"{__name__}.said")
_said.setLevel(logging.WARNING)  # below it are requests with what they carry


def _as_detail(record: logging.LogRecord) -> bool:
    """Log messages of kazoo are details: the error of the call says what they mean for the caller."""
    if record.levelno <= logging.WARNING:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(__name__).isEnabledFor(logging.DEBUG)
    return True


_said.addFilter(_as_detail)


def unconnected(settings: KeeperConfig) -> KazooClient:
    """A connection as the configuration says, that knows nothing of the past, not started yet."""
    return KazooClient(
        ",".join(settings.hosts),
        timeout=settings.session_timeout_seconds,
        auth_data=[("digest", f"{settings.user}:{settings.password}")] if settings.user else None,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
        use_ssl=settings.tls,
        ca=settings.ca_bundle,
        certfile=settings.certificate,
        keyfile=settings.certificate_key,
        check_hostname=settings.tls and settings.check_host,
        logger=_said,
    )


class KeeperNode(msgspec.Struct, frozen=True):
    """A node as `keeper ls` shows it."""

    name: str
    bytes: int
    version: int
    children: int
    ephemeral: bool
