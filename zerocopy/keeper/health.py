"""How Keeper is: what each server says of itself, how fast it answers, what its clock says. For `keeper check`."""

from __future__ import annotations

import socket
import time
import uuid

import msgspec

from oplog.errors import OutcomeUnknown, Transient
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper

_LOOKS = 10
_MOST_NODES = 100_000


class ServerHealth(msgspec.Struct, frozen=True):
    """One server of the ensemble, by its own word."""

    host: str
    answers: bool
    mode: str = ""
    """`leader`, `follower` or `standalone`; empty where the server answers no questions about itself."""
    version: str = ""
    nodes: int | None = None


class KeeperHealth(msgspec.Struct, frozen=True):
    """The ensemble as this machine sees it. Where it cannot be reached, nothing is measured: all but the servers is
    None."""

    servers: tuple[ServerHealth, ...]
    read_milliseconds: float | None = None
    """The median of ten reads."""
    write_milliseconds: float | None = None
    """Of one node that was made, and taken away again."""
    clock_ahead_seconds: float | None = None
    """How far the server's clock is before this machine's."""
    nodes: int | None = None
    """Below the root; counted up to a hundred thousand."""
    data_bytes: int | None = None
    largest: str | None = None
    """The node that holds most."""
    largest_bytes: int | None = None


def four_letters(host: str, port: int, word: str, *, timeout_seconds: float = 5.0) -> str:
    """What the server answers to a four-letter word; empty when it does not."""
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            connection.sendall(word.encode())
            answer = b""
            while len(answer) < 1 << 20 and (data := connection.recv(1 << 16)):
                answer += data
            return answer.decode(errors="replace")
    except OSError:
        return ""


def server_health(host: str) -> ServerHealth:
    """What the server of a `host:port` says of itself."""
    name, _, port = host.rpartition(":")
    answer = four_letters(name.strip("[]"), int(port), "srvr")
    said = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    count = said.get("Node count", "")
    return ServerHealth(
        host,
        bool(answer),
        mode=said.get("Mode", ""),
        version=said.get("Zookeeper version", "").partition("-")[0],
        nodes=int(count) if count.isdigit() else None,
    )


def check(keeper: Keeper, settings: KeeperConfig) -> KeeperHealth:
    """Ask every server, and read, write and count through one. Puts one node, which is gone afterwards."""
    servers = tuple(server_health(host) for host in settings.hosts)
    try:
        keeper.make_path("/")
    except (Transient, OutcomeUnknown):
        return KeeperHealth(servers)
    reads = sorted(_milliseconds(lambda: keeper.exists("/")) for _ in range(_LOOKS))
    probe = f"/check-{uuid.uuid4().hex}"
    write = _milliseconds(lambda: keeper.create(probe, ephemeral=True))
    here = time.time()
    made = keeper.get(probe).created_milliseconds / 1000
    keeper.delete(probe)
    nodes, data_bytes, largest, largest_bytes = _count(keeper)
    return KeeperHealth(
        servers,
        read_milliseconds=round(reads[len(reads) // 2], 3),
        write_milliseconds=round(write, 3),
        clock_ahead_seconds=round(made - here, 3),
        nodes=nodes,
        data_bytes=data_bytes,
        largest=largest,
        largest_bytes=largest_bytes,
    )


def _count(keeper: Keeper) -> tuple[int, int, str, int]:
    waiting, nodes, size, largest = ["/"], 0, 0, ("", 0)
    while waiting and nodes < _MOST_NODES:
        path = waiting.pop()
        node = keeper.find(path)
        if node is None:
            continue
        nodes, size = nodes + 1, size + len(node.data)
        largest = max(largest, (path, len(node.data)), key=lambda node: node[1])
        if node.children:
            waiting += [f"{path.rstrip('/')}/{name}" for name in keeper.children(path)]
    return nodes, size, *largest


def _milliseconds(call: object) -> float:
    start = time.monotonic()
    assert callable(call)
    call()
    return (time.monotonic() - start) * 1000
