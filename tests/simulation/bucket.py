"""A bucket in memory in which every request is the scheduler's, may fail, and is looked at by who judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, StoreCapabilities
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import AlreadyExists, FrostlineError, NotFound, OutcomeUnknown, Throttled
from tests.simulation.scheduler import Machine, Scheduler
from tests.simulation.simulated import clock

_T = TypeVar("_T")

KINDS = ("throttled", "dropped", "lost", "late")
"""503; the request never arrives; its answer never does; it arrives after others did, and its answer never."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes a machine's first request from the `request`-th on that it can strike, and `times` of them."""

    machine: int
    request: int
    kind: str
    times: int = 1


class SimulatedBucket(WrappedStore):
    """`put_object` and `deleted` are told of every change, with who made it."""

    def __init__(self, name: str, scheduler: Scheduler, faults: Iterable[Fault] = (), *, conditional: bool = True):
        super().__init__(MemoryStore(name))
        self.memory = self.inner
        self._scheduler = scheduler
        self._faults = [[fault, fault.times] for fault in faults]
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._conditional = conditional
        self._count = 0
        self.fired: dict[str, int] = {}
        self.put_object: Callable[[Machine | None, str, bytes, bool], None] = lambda machine, key, data, over: None
        self.deleting: Callable[[Machine | None, str], None] = lambda machine, key: None

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=self._conditional, checks_sha256=True)

    def heal(self) -> None:
        """No faults any more; what is late arrives."""
        self._faults = []
        self._arrive(everything=True)

    def _request(self, verb: str, do: Callable[[], _T]) -> _T:
        machine = self._scheduler.request()
        self._count += 1
        self._arrive()
        kind = self._struck(machine, verb)
        if kind == "throttled":
            raise Throttled("the store asks for fewer requests (503 SlowDown)")
        if kind == "dropped":
            raise OutcomeUnknown("the connection broke") if verb == "put_if_absent" else Throttled("it broke")
        if kind == "late":
            self._late.append((self._count + 6, lambda: self._quietly(do)))
            raise OutcomeUnknown("no answer in time")
        ahead, clock.ahead = clock.ahead, 0.0  # the store has a clock of its own
        try:
            answer = do()
        finally:
            clock.ahead = ahead
        if kind == "lost":
            raise OutcomeUnknown("the answer was lost") if verb == "put_if_absent" else Throttled("its answer was lost")
        return answer

    @staticmethod
    def _quietly(do: Callable[[], object]) -> None:
        ahead, clock.ahead = clock.ahead, 0.0
        try:
            do()
        except FrostlineError:
            pass  # nobody waits for the answer
        finally:
            clock.ahead = ahead

    def _arrive(self, *, everything: bool = False) -> None:
        due = [do for at, do in self._late if everything or at <= self._count]
        self._late = [(at, do) for at, do in self._late if not (everything or at <= self._count)]
        for do in due:
            do()

    def _struck(self, machine: Machine | None, verb: str) -> str:
        if machine is None:
            return ""
        for waiting in self._faults:
            fault, times = waiting
            assert isinstance(fault, Fault)
            assert isinstance(times, int)
            fits = verb == "put_if_absent" or fault.kind in ("throttled", "dropped", "lost")
            if times and fault.machine == machine.number and machine.requests >= fault.request and fits:
                if fault.kind in ("lost", "late") and verb != "put_if_absent":
                    continue
                waiting[1] = times - 1
                self.fired[fault.kind] = self.fired.get(fault.kind, 0) + 1
                return fault.kind
        return ""

    # The verbs

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        data = payload.read_bytes() if hasattr(payload, "read_bytes") else bytes(payload)
        who = self._scheduler.running
        self._request("put", lambda: self._put(who, key, data, sha256, metadata))

    def _put(
        self, who: Machine | None, key: str, data: bytes, sha256: bytes, metadata: Mapping[str, str] | None
    ) -> None:
        over = self._holds(key)
        self.memory.put(key, data, sha256=sha256, metadata=metadata)
        self.put_object(who, key, data, over)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        data, who = bytes(payload), self._scheduler.running  # who sends it: it may arrive late
        if not self._conditional:  # a look and a put, and anything between them
            if self._request("head", lambda: self._holds(key)):
                raise AlreadyExists(f"{self.name}{key} exists already")
            self._request("put_if_absent", lambda: self._put(who, key, data, sha256, metadata))
            return

        def do() -> None:
            self.memory.put_if_absent(key, data, sha256=sha256, metadata=metadata)
            self.put_object(who, key, data, False)

        self._request("put_if_absent", do)

    def _holds(self, key: str) -> bool:
        try:
            self.memory.head(key)
        except NotFound:
            return False
        return True

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return self._request("get", lambda: self.memory.get(key, byte_range))

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._request("get", lambda: self.memory.get_with_info(key))

    def head(self, key: str) -> ObjectInfo:
        return self._request("head", lambda: self.memory.head(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(self._request("list", lambda: [*self.memory.list(prefix, start_after=start_after)]))

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        wanted = list(keys)

        def do() -> dict[str, FrostlineError | None]:
            for key in wanted:
                if self._holds(key):
                    self.deleting(self._scheduler.running, key)
            return self.memory.delete(wanted)

        return self._request("delete", do)

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        self._request("copy", lambda: self.memory.copy(source_key, target_key, source=source))

    def clock_skew(self) -> timedelta | None:
        ahead = clock.ahead
        return self._request("head", lambda: timedelta(seconds=-ahead))

    def close(self) -> None:
        """Others use it."""
