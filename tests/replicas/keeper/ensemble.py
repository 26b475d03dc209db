"""Three ZooKeepers, the first of which hears of what the leader says as late as a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.broken_line import Line
from tests.servers import free_port
from tests.soak.keeper_server import KeeperServer


class LaggingLine(Line):
    """A line on which what the server says waits, while `hold` lasts; what it is asked goes through."""

    def __init__(self, endpoint_url: str) -> None:
        self._flows = threading.Event()
        self._flows.set()
        self.asked = threading.Event()
        """Whether the server was asked anything since the line was held."""
        super().__init__(endpoint_url)

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._flows.clear()
        self.asked.clear()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        self._flows.set()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            says = source.getpeername() == self._server
            while data := source.recv(1 << 16):
                if says:
                    self._flows.wait()
                else:
                    self.asked.set()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._open.discard(source)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Three that are one."""

    follower: str
    """Its host and port: the one that may lag behind."""
    leader: str
    line: LaggingLine


@contextmanager
def ensemble(directory: Path) -> Iterator[Ensemble]:
    """The last two begin and so have the last for a leader, of which the first hears by the line."""
    ports = [(free_port(), free_port()) for _ in range(3)]
    with ExitStack() as stack:
        line = LaggingLine(f"http://127.0.0.1:{ports[2][0]}")
        stack.callback(line.cut)
        servers = [KeeperServer(directory / str(number)) for number in (1, 2, 3)]
        for number, server in enumerate(servers, 1):
            members = [
                f"server.{other}=127.0.0.1:{quorum}:{election}" for other, (quorum, election) in enumerate(ports, 1)
            ]
            if number == 1:
                members[2] = f"server.3=127.0.0.1:{line.port}:{ports[2][1]}"
            server.join(number, members)
            stack.callback(server.kill)
        for server in servers[1:]:
            server.begin()
        for server in servers[1:]:
            server.wait()
        servers[0].start()
        yield Ensemble(f"127.0.0.1:{servers[0].port}", f"127.0.0.1:{servers[2].port}", line)
