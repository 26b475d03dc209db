"""Messages to the supervisor that started the daemon (systemd's `Type=notify`): datagrams to `$NOTIFY_SOCKET`."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("frostline.daemon")


class Supervisor:
    """Tells one, where there is one; that it does not hear hinders nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._is_watched = watched and environment.get("WATCHDOG_USEC", "").isdigit()
        self._said = ""

    def ready(self) -> None:
        """The daemon works, also after a new look at its configuration."""
        self._tell("READY=1")

    def reloading(self) -> None:
        """It reads its configuration again; `ready` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """It ends what it is at."""
        self._tell("STOPPING=1")

    def alive(self, status: str) -> None:
        """It lives; `status` is a line for people, told when it is another one."""
        lines = ["WATCHDOG=1"] if self._is_watched else []
        if status != self._said:
            self._said = status
            lines.append(f"STATUS={' '.join(status.split())}")
        if lines:
            self._tell(*lines)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.settimeout(1)
                to.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.debug("the supervisor does not hear: %s", error)
