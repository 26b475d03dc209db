"""A real ZooKeeper that is killed and started again on the data that it had."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests import servers
from zerocopy.keeper import packaged
from zerocopy.keeper.health import four_letters

_TICK_MILLISECONDS = 200


class KeeperServer:
    """One server below a directory, on a port of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = servers.free_port()
        self.expiries = 0
        """Sessions that ended because nothing was heard of their clients, as far as `count` asked."""
        self._counted = 0
        self._directory = directory
        self._command = packaged.command(directory, self.port, tick_milliseconds=_TICK_MILLISECONDS)
        self._process: subprocess.Popen[bytes] | None = None

    def join(self, number: int, members: Sequence[str]) -> None:
        """Be this one of several, which are told as it is to reach them: before it is begun."""
        (self._directory / "data" / "myid").write_text(str(number))
        with (self._directory / "zoo.cfg").open("a") as configuration:
            configuration.write("\n".join(["initLimit=300", "syncLimit=300", *members, ""]))

    def start(self) -> None:
        """Return when it answers."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it."""
        with (self._directory / "output").open("ab") as output:
            process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=servers.end_with_parent,
            )
        self._process, self._counted = process, 0

    def wait(self) -> None:
        """Return when it answers."""
        process = self._process
        assert process is not None
        packaged.wait_until_ready(self.port, lambda: process.poll() is not None, seconds=120)

    def count(self) -> None:
        """Ask how many sessions have expired since the start."""
        said = four_letters("127.0.0.1", self.port, "mntr", timeout_seconds=5)
        found = re.search(r"^zk_stale_sessions_expired\s+(\d+)", said, re.MULTILINE)
        now = int(found[1]) if found else self._counted
        self.expiries += now - self._counted
        self._counted = now

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """It is killed, and comes again without anything that it knew."""
        self.kill()
        shutil.rmtree(self._directory / "data")
        self._directory.joinpath("data").mkdir()
        self.start()

    def __enter__(self) -> KeeperServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
