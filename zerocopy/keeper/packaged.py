"""The ZooKeeper that comes packaged: one server out of the jars of a pyspark wheel, for one machine and for tests.

It needs Java 17 and nothing else. One server is no ensemble: when its disk is lost, so is what it knew.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from disks.effects import make_directory, replace_file
from oplog.errors import FrostlineError, UsageError
from zerocopy.keeper.health import four_letters

MINIMUM_JAVA = 17
_JARS = (
    *("zookeeper-[0-9]*.jar", "zookeeper-jute-*.jar", "slf4j-api-*.jar", "metrics-core-*.jar"),
    *("snappy-java-*.jar", "netty-*.jar", "audience-annotations*.jar"),
    *("log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j*-impl-*.jar", "log4j-1.2-api-*.jar"),
)
_JVM = (  # the heap is that of ZooKeeper's own script: it keeps its last 500 transactions, each up to a megabyte, twice
    *("-Xmx1000m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"),
    *("-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=1024"),
)
_LOGGING = """status = error
rootLogger.level = warn
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d{ISO8601} %p %c{1} - %m%n
rootLogger.appenderRef.c.ref = c
"""
_JAVA_HINT = (
    "install a Java runtime, such as Debian's openjdk-17-jre-headless; it is 'java' on the PATH or in $JAVA_HOME"
)


def find_jars(directory: Path | None = None) -> list[Path]:
    """ZooKeeper's jars: in the directory, else in the pyspark package. Raises `UsageError` when they are not there."""
    if directory is None:
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise UsageError(
                "no ZooKeeper is packaged here: pyspark has its jars", hint="pip install pyspark, or use --jars"
            )
        directory = Path(found.origin).parent / "jars"
    jars = [jar for pattern in _JARS for jar in sorted(directory.glob(pattern))]
    if not any(jar.name.startswith("zookeeper-") and "jute" not in jar.name for jar in jars):
        raise UsageError(
            f"there is no zookeeper-*.jar in {directory}", hint="use --jars with the directory that has it"
        )
    return jars


def find_java() -> str:
    """The Java to run it with. Raises `UsageError` with what to install when there is none, or an old one."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        raise UsageError("ZooKeeper needs Java, and there is no 'java' on the PATH", hint=_JAVA_HINT)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"ZooKeeper needs Java, and {java} cannot be run: {error}", hint=_JAVA_HINT) from error
    version = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < MINIMUM_JAVA:
        raise UsageError(f"ZooKeeper needs Java {MINIMUM_JAVA} or newer, which {java} is not", hint=_JAVA_HINT)
    return java


def check_port(port: int) -> None:
    """Raise `UsageError` where something listens on it already."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"ZooKeeper cannot listen on port {port} of 127.0.0.1: {error.strerror}",
                hint="does one run there already? else give it another one: --port N",
            ) from error


def command(directory: Path, port: int, *, jars: Path | None = None, tick_milliseconds: int = 2000) -> list[str]:
    """Write the server's configuration below the directory; the command line that runs it, on 127.0.0.1.

    Raises `UsageError` when Java or the jars are missing.
    """
    java, classpath = find_java(), ":".join(map(str, find_jars(jars)))
    make_directory(directory / "data")
    lines = [
        f"tickTime={tick_milliseconds}",
        f"dataDir={directory / 'data'}",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr,mntr",
        "maxClientCnxns=0",
        f"minSessionTimeout={2 * tick_milliseconds}",
        "maxSessionTimeout=60000",
        "autopurge.purgeInterval=1",
        "autopurge.snapRetainCount=3",
    ]
    replace_file(directory / "zoo.cfg", "\n".join([*lines, ""]).encode())
    replace_file(directory / "log4j2.properties", _LOGGING.encode())
    options = [*_JVM, f"-Dlog4j2.configurationFile=file:{directory / 'log4j2.properties'}"]
    server = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [java, *options, "-cp", classpath, server, str(directory / "zoo.cfg")]


def wait_until_ready(port: int, ended: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Return when the server answers. Raises `FrostlineError` when it ended, or does not for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not ended():
        if four_letters("127.0.0.1", port, "srvr", timeout_seconds=1.0).startswith("Zookeeper version"):
            return
        time.sleep(0.02)
    raise FrostlineError(f"ZooKeeper did not start on port {port}", hint="its output says why; is the port free?")
