"""A Spark standalone cluster on loopback: a master and workers of one core each, from the installed pyspark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.servers import REPOSITORY, end_with_parent, free_port

START_SECONDS = 60.0
CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # An executor starts, hands Python its tasks, and ends: compiling well does not pay.
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What a driver on this cluster is configured with."""


@dataclass(slots=True)
class Cluster:
    """A running cluster. Each worker has an address of its own, as machines have: Spark's speculation needs that."""

    url: str
    directory: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and its executors."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()

    def run(self, module: str, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `python -m module URL arguments…` as a driver program of its own."""
        return subprocess.run(
            [sys.executable, "-m", module, self.url, *arguments],
            cwd=REPOSITORY,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def environment() -> dict[str, str]:
    """What the cluster's processes and its drivers see: the code of the tests, and loopback."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}


@contextmanager
def standalone(workers: int = 2, memory: str = "1g", *, pinned: bool = False) -> Iterator[Cluster]:
    """A cluster that is there until the context is left, whatever happens to this process. `pinned`: each worker runs
    on a core of its own, else its one core is only what Spark believes."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="frostline-spark-") as name, ExitStack() as stack:
        cluster = Cluster(f"spark://127.0.0.1:{port}", Path(name))
        master = ["org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"]
        _start(stack, "master", master, cluster, "127.0.0.1")
        for number in range(workers):
            address = f"127.0.0.{number + 2}"
            worker = ["org.apache.spark.deploy.worker.Worker", "-h", address, "-c", "1", "-m", memory]
            worker += ["--webui-port", "0", "-d", str(cluster.directory / f"work{number}"), cluster.url]
            core = number % (os.cpu_count() or 1) if pinned else None
            cluster.workers.append(_start(stack, f"worker{number}", worker, cluster, address, core))
        for number in range(workers):
            _wait_for(cluster, f"worker{number}", "Successfully registered with master")
        yield cluster


def _start(
    stack: ExitStack, name: str, command: Sequence[str], cluster: Cluster, address: str, core: int | None = None
) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    log = stack.enter_context((cluster.directory / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), *command],
        # The workers log what they do at INFO; their registration is waited for there.
        env={
            **environment(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        cwd=cluster.directory,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(_begin, core),
    )
    stack.callback(_end, process)
    if name == "master":
        _wait_for_port(cluster, process)
    return process


def _begin(core: int | None) -> None:
    end_with_parent()
    if core is not None:
        os.sched_setaffinity(0, {core})


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _wait_for_port(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    port = int(cluster.url.rpartition(":")[2])
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the master did not come up:\n{(cluster.directory / 'master.log').read_text()[-2000:]}")


def _wait_for(cluster: Cluster, name: str, sentence: str) -> None:
    log = cluster.directory / f"{name}.log"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if sentence in log.read_text(errors="replace"):
            return
        time.sleep(0.1)
    raise AssertionError(f"{name} did not come up:\n{log.read_text(errors='replace')[-2000:]}")
