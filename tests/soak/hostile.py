"""A running daemon against floods, half requests and poison files (I24): it answers all the while, its log stays small.

`python -m tests.soak.hostile --seconds 600`; prints what was sent, and ends with 1 where the daemon did not hold.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tiering.daemon.control import SOCKET_FILE

MOST_LOG_BYTES = 1 << 20
DESCRIPTORS = 512
"""Of the daemon: fewer than one flood asks for."""
_FLOOD = 600
_BEGIN_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_DEPTH = 200_000
_REQUESTS = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: \xff\xfe\r\n\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 400000\r\n\r\n" + b"[" * 100_000,
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHo",
    b"\x16\x03\x01\x02\x00",
    b"\x00" * 50_000,
)


class Daemon:
    """One daemon, with an inbox, metrics and few descriptors."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "daemon.log"
        self.landing = root / "inbox" / "d.t"
        self.landing.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = ("127.0.0.1", port)
        self.environment = {
            **os.environ,
            "FROSTLINE_HOME": str(root / "home"),
            "FROSTLINE_INBOX__PATH": str(root / "inbox"),
            "FROSTLINE_INBOX__BATCH_SECONDS": "1",
            "FROSTLINE_METRICS__PORT": str(port),
            "FROSTLINE_LIMITS__UNPACKED_BYTES": "64MiB",
            "FROSTLINE_LIMITS__DECODED_BYTES": "64MiB",
        }
        self.frostline("table", "create", "d.t", "--column", "id:int64", "--column", "v:string", "--order-by", "id")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command(), "daemon", "run"],
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
            )
        self._begins()

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tiering.cli.main"]

    def frostline(self, *arguments: str) -> str:
        command = [*self._command(), *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def _begins(self) -> None:
        deadline = time.monotonic() + _BEGIN_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection(self.address, timeout=10).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        self.end()
        raise AssertionError(f"the daemon does not begin: {self.log.read_text(errors='replace')[-2000:]}")

    def answers(self) -> None:
        """Raise where the daemon answers no longer."""
        assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}"
        host, port = self.address
        with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=_ANSWER_SECONDS) as answer:
            assert answer.status == 200
        self.frostline("daemon", "status", "--json")

    def rows(self) -> int:
        count = "select count(*) from d.t where v = 'good'"
        return int(json.loads(self.frostline("query", count, "--json"))["rows"][0][0])

    def refusals(self, ending: str) -> list[str]:
        """What the reports say of the files with this ending that were landed. Raise where one is elsewhere."""
        waiting = [path.name for path in self.landing.iterdir() if path.name.endswith(ending)]
        assert not waiting, f"not taken: {waiting}"
        reports = (self.landing / "failed").glob(f"*{ending}.report.json")
        return [json.loads(report.read_text())["error"] for report in reports]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def flood(daemon: Daemon, chance: random.Random) -> str:
    """More connections than descriptors, which say nothing or half of something."""
    with ExitStack() as stack:
        for _ in range(_FLOOD):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(10)
            connection.connect(daemon.address)
            if chance.random() < 0.5:
                _send(connection, b"GET / HTTP/1.1\r\nHost: a\r\nX")
        daemon.answers()
    return "flood"


def malformed(daemon: Daemon, chance: random.Random) -> str:
    """Many bad requests, each with a connection of its own."""
    for _ in range(300):
        with socket.create_connection(daemon.address, timeout=10) as connection:
            _send(connection, chance.choice(_REQUESTS))
    return "malformed"


def control(daemon: Daemon, chance: random.Random) -> str:
    """Bad requests at the socket of the daemon's user."""
    state = daemon.root / "home" / "state"
    for request in (b"[" * _DEPTH + b"\n", b"\xff\xfe\n", b'{"verb": 5}\n', b'{"verb":"no","jobs":[]}\n', b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(state / SOCKET_FILE))
            _send(connection, request)
            if request and chance.random() < 0.5:
                connection.recv(1 << 16)
    return "control"


def poison(daemon: Daemon, chance: random.Random, number: int) -> str:
    """Bad files, with a good one among them."""
    files = {
        "deep.json": b'{"id":1,"v":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}\n",
        "objects.jsonl": b'{"a":' * _DEPTH + b"1" + b"}" * _DEPTH + b"\n",
        "zeros.parquet.gz": gzip.compress(bytes(200 << 20), 1),
        "zeros.csv.gz": gzip.compress(b"id,v\n" + b"0" * (300 << 20), 1),
        "cut.parquet": b"PAR1" + chance.randbytes(1000) + b"PAR1",
        "cut.arrow": b"ARROW1\0\0" + chance.randbytes(1000),
        "noise.orc": b"ORC" + chance.randbytes(1000),
        "noise.json.gz": b"\x1f\x8b" + chance.randbytes(1000),
        **_large_inside(number),
    }
    for name in chance.sample(sorted(files), 3):
        _land(daemon, f"{number}-{name}", files[name] + f"{number}".encode() * name.endswith(("json", "jsonl")))
    _land(daemon, f"{number}-good.csv", f"id,v\n{number},good\n".encode())
    return "poison"


def _large_inside(number: int) -> dict[str, bytes]:
    """Files of a few KB that unpack to 300 MB: a page, a batch, and a stripe, which goes in."""
    rows = 3000
    data = pa.table({"id": pa.array([number] * rows, pa.int64()), "v": ["x" * 100_000] * rows})
    page, batch, stripe = pa.BufferOutputStream(), pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(data, page, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    with ipc.new_file(batch, data.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(data.combine_chunks().to_batches()[0])
    orc.write_table(data, stripe, compression="zstd")
    packed = {"page.parquet": page, "batch.arrow": batch, "stripe.orc": stripe}
    return {name: bytes(made.getvalue()) for name, made in packed.items()}


def _land(daemon: Daemon, name: str, data: bytes) -> None:
    waiting = daemon.landing / f"{name}.tmp"
    waiting.write_bytes(data)
    waiting.rename(daemon.landing / name)


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:  # it was closed: that is an answer, too
        pass


def drive(seconds: float, seed: int) -> Counter[str]:
    """Attack for so long. Raises `AssertionError` where the daemon does not hold."""
    chance, done, landed = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="frostline-hostile-") as root:
        daemon = Daemon(Path(root))
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                attack = chance.choice((flood, malformed, control, None))
                if attack is None:
                    landed += 1
                    done[poison(daemon, chance, landed)] += 1
                else:
                    done[attack(daemon, chance)] += 1
                daemon.answers()
            deadline = time.monotonic() + 120
            while daemon.rows() < landed and time.monotonic() < deadline:
                time.sleep(1)
            assert daemon.rows() == landed, f"{daemon.rows()} good files of {landed} are in"
            for ending in ("page.parquet", "batch.arrow"):
                for said in daemon.refusals(ending):
                    done[f"refused {ending}"] += 1
                    assert "at once" in said, said
            daemon.answers()
        finally:
            code = daemon.end()
            log = daemon.log.read_text(errors="replace")
        assert code in (0, 143), code
        assert len(log) < MOST_LOG_BYTES, f"the log has {len(log):,} bytes"
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        assert "unexpected" not in log, log[log.index("unexpected") - 200 :][:1000]
        done["bytes of log"] = len(log)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        for what, count in sorted(drive(given.seconds, given.seed).items()):
            print(f"{what:<22}{count:>10,}")
    except AssertionError as error:
        print(f"the daemon did not hold: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
