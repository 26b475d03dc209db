"""Our own HTTP/1.1 client against urllib3 under the same signed requests: is it worth its 400 lines?

2,000 puts and gets of 4 KB by one thread, in turns of 200, and a move of 2,000 parts of 4 KB by the command line.
It compares processor time of the client, which other work on the machine changes little. A missed goal says
that urllib3 would do as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3

from benchmarks.bench_move import TABLE, Bench, make_parts
from benchmarks.measure import ratio_figure, report, scratch
from disks.config import ObjectDiskConfig
from disks.stores.s3 import requests
from disks.stores.s3.http import Connections, NotConnected
from disks.stores.s3.http_answers import HttpAnswer
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.metered import Meter
from tests.servers import Server, ministack

_COUNT = 2_000
_TURN = 200
_BYTES = 4_096
_CLIENTS = ("own", "urllib3")


class Urllib3Connections:
    """The least of urllib3 that does what `Connections` does for a server without a proxy."""

    def __init__(self, url: str, *, ca_bundle: str | None = None, proxy_url: str | None = None) -> None:
        server = urlsplit(url)
        self._pool = urllib3.HTTPConnectionPool(server.hostname or "", server.port, maxsize=64)

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview | None = None,
        *,
        connect_seconds: float,
        silence_seconds: float,
    ) -> HttpAnswer:
        """As `Connections.exchange`."""
        try:
            answer = self._pool.urlopen(
                method,
                target,
                body=body,
                headers=dict(headers),
                retries=False,
                redirect=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=connect_seconds, read=silence_seconds),
            )
        except urllib3.exceptions.NewConnectionError as error:
            raise NotConnected(str(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise OSError(str(error)) from error
        return HttpAnswer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)

    def close(self) -> None:
        """Close what is idle."""
        self._pool.close()


def use(client: str) -> None:
    """Stores that are opened from now on send their requests by this client."""
    requests.Connections = Connections if client == "own" else Urllib3Connections  # type: ignore[misc,assignment]


def small_requests(server: Server) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of processor a request, turn by turn, of each client and verb."""
    found: dict[tuple[str, str], list[float]] = {}
    bucket, data = server.new_bucket(), bytes(_BYTES)
    digest = hashlib.sha256(data).digest()
    stores = {}
    for client in _CLIENTS:
        use(client)
        config = ObjectDiskConfig(url=f"s3://{bucket}/{client}/", endpoint_url=server.endpoint_url)
        stores[client] = S3Store.from_config(config, bucket, f"{client}/", Meter())
        stores[client].put("warm", data, sha256=digest)
    for turn in range(_COUNT // _TURN):
        for client in _CLIENTS if turn % 2 else reversed(_CLIENTS):
            store = stores[client]
            keys = [f"{turn:03d}-{number:03d}" for number in range(_TURN)]
            before = time.process_time()
            for key in keys:
                store.put(key, data, sha256=digest)
            middle = time.process_time()
            for key in keys:
                store.get(key)
            after = time.process_time()
            found.setdefault((client, "put"), []).append((middle - before) / _TURN * 1e3)
            found.setdefault((client, "get"), []).append((after - middle) / _TURN * 1e3)
    for store in stores.values():
        store.close()
    return found


def move_seconds(bench: Bench, client: str) -> tuple[float, float]:
    """Seconds of a move of all parts, and of processor."""
    home = bench.directory / f"home-{client}"
    shutil.copytree(bench.parts, home / "ssd")
    volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
    config = {
        "state_path": str(home / "state"),
        "disks": {
            "ssd": {"type": "local", "path": str(home / "ssd")},
            "s3": {"type": "object_disk", "url": bench.fresh_url()},
        },
        "policies": {"hot_cold": {"volumes": volumes}},
    }
    (home / "frostline.yaml").write_text(json.dumps(config))
    base = [sys.executable, "-m", "benchmarks.bench_http", "--as", client, "-c", str(home / "frostline.yaml"), "-y"]
    subprocess.run([*base, "parts"], env=bench.environment, check=True, capture_output=True)
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [*base, "move", TABLE.full_name, "--partition", "all", "--to-disk", "s3"],
        env=bench.environment,
        check=True,
        capture_output=True,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(home)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    if sys.argv[1:2] == ["--as"]:
        from tiering.cli.main import run

        use(sys.argv[2])
        sys.exit(run(sys.argv[3:]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    moves: dict[str, list[tuple[float, float]]] = {client: [] for client in _CLIENTS}
    with scratch() as directory, ministack() as server:
        os.environ.update(server.environment())
        milliseconds = {of: statistics.median(values) for of, values in small_requests(server).items()}
        make_parts(directory / "parts", _COUNT, _BYTES)
        bench = Bench(server, directory, _COUNT)
        for turn in range(options.rounds):
            for client in _CLIENTS if turn % 2 else reversed(_CLIENTS):
                moves[client].append(move_seconds(bench, client))
    wall = {client: statistics.median(one for one, _ in values) for client, values in moves.items()}
    processor = {client: statistics.median(one for _, one in values) for client, values in moves.items()}
    figures = [
        ratio_figure(
            f"processor time of a {verb} of 4 KB",
            milliseconds["own", verb],
            milliseconds["urllib3", verb],
            at_most=0.9,
            baseline_name="urllib3",
            unit="ms",
        )
        for verb in ("put", "get")
    ]
    figures.append(
        ratio_figure(
            "processor time of a move of 2,000 small parts",
            processor["own"],
            processor["urllib3"],
            at_most=0.9,
            baseline_name="urllib3",
            detail=f"wall: {wall['own']:.1f} s, urllib3 {wall['urllib3']:.1f} s",
        )
    )
    report(figures)


if __name__ == "__main__":
    main()
