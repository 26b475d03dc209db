"""Starts Spark for Frostline's own jobs, and says what is missing when it cannot.

A session that exists is used as it is; under `spark-submit` what was submitted decides. Otherwise the JVM is started
here, with its output in `<state>/spark/driver.log` so that nothing of it reaches a user's terminal. A property is only
set where neither the configuration nor `spark-defaults.conf` sets it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oplog.errors import FrostlineError, Transient, UsageError
from spark_tiering.package import shares_python, ship_code
from spark_tiering.running.class_archive import java_options
from tiering.config.settings import Config

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

MINIMUM_JAVA = 17
MINIMUM_PYSPARK = (4, 1)
TASK_FAILURES = 4
"""How often a task may fail on local masters before its job does; Spark's own default elsewhere."""
JAVA_HINT = (
    "on Debian or Ubuntu: apt-get install openjdk-17-jre-headless; elsewhere install a JRE 17 or newer and put "
    "'java' on the PATH or set JAVA_HOME"
)
_LOG_BYTES = 10 << 20
_MASTER = re.compile(
    r"local(?:\[\s*(?:\d+|\*)\s*(?:,\s*\d+\s*)?\])?|local-cluster\[.+\]|yarn|k8s://.+"
    r"|spark://[^,\s]+:\d{1,5}(?:,[^,\s]+:\d{1,5})*"
)
_CONNECT_SECONDS = 5.0

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_PROPERTIES = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Our jobs are single stages of few, long tasks: nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
    # The driver only plans and collects: starting fast matters more than peak speed (8 s become 5).
    _DRIVER_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_LOCAL_PROPERTIES = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}


def check_java() -> str:
    """What Java says of its version. Raises `UsageError`, with what to install, where pyspark or Java is missing."""
    _check_pyspark()
    java = _java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"Spark needs Java, and {java} cannot be run: {error}", hint=JAVA_HINT) from error
    said = answer.stderr + answer.stdout
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if answer.returncode or found is None:
        raise UsageError(f"Spark needs Java, and {java} does not work: {said.strip()[:200]}", hint=JAVA_HINT)
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])  # Java 8 calls itself 1.8
    if version < MINIMUM_JAVA:
        raise UsageError(f"Spark needs Java {MINIMUM_JAVA} or newer; {java} is Java {version}", hint=JAVA_HINT)
    return said


def spark_session(settings: Config, *, app: str, master: str | None = None, verbose: bool = False) -> SparkSession:
    """The Spark session to work with: the one that exists, else a new one on `master` (default: the configuration's).

    With `verbose`, Spark's own log goes to stderr. Raises `UsageError` as `check_java` and `check_master`, `Transient`
    as the latter; `FrostlineError` when Spark does not start.
    """
    _check_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None or "SPARK_REMOTE" in os.environ:
        return SparkSession.builder.getOrCreate()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    java = "" if submitted else check_java()
    # Otherwise the workers run whichever python3 is first on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = _submitted_conf(settings, app, master) if submitted else _conf(settings, app, master, java)
    check_master(conf.get("spark.master") or "")
    log = None if submitted or verbose else log_file(settings)
    if log is not None:
        _quiet(log)
    with _reasons(conf, log):
        _beside(lambda: _start(conf, log))
        # In this thread: data frames that it writes look for their data source in its own session. This fails where the
        # context ended at once, refused by its cluster.
        session = SparkSession.builder.getOrCreate()
        if settings.spark.ship_code:
            ship_code(session, settings.state_directory / "spark")
    return session


def java_has_ended(error: Exception) -> bool:
    """Whether this is what Python sees when Spark's Java process is no longer there."""
    from py4j.protocol import Py4JNetworkError

    return isinstance(error, (Py4JNetworkError, ConnectionError))


def stop_session(session: SparkSession) -> None:
    """Stop Spark. One whose Java process has died already needs no stopping."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):
        session.stop()


def _beside(start: Callable[[], None]) -> None:
    """Start Spark in a thread of its own. In the main thread it would take Ctrl-C for itself, and one that came while
    it starts would end in stack traces; so it ends the wait, and the runner cancels its own jobs."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            start()
            ended.set_result(None)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            ended.set_exception(error)

    threading.Thread(target=run, name="spark-start", daemon=True).start()
    ended.result()


def log_file(settings: Config) -> Path:
    """Where Spark's own output goes."""
    return settings.state_directory / "spark" / "driver.log"


def check_master(master: str) -> None:
    """Raises `UsageError` for what Spark would not take for a master, and `Transient` when no standalone master of
    those named accepts a connection, for which Spark itself would wait a minute without a word."""
    if not _MASTER.fullmatch(master):
        raise UsageError(
            f"{master!r} is no master of Spark",
            hint="local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT; for Spark Connect set SPARK_REMOTE",
        )
    if not master.startswith("spark://"):
        return
    said = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or str(error)
    raise Transient(f"no Spark master answers at {master}: {said}", hint="start it, or name another with --master")


def retrying_master(master: str) -> str:
    """The master with retries: plain local masters fail a whole job on the first failure of one task."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    if found := re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master):
        return f"local[{found[1]},{TASK_FAILURES}]"
    return master


def properties(settings: Config, master: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """What to start Spark with; `defaults` are the properties of `spark-defaults.conf`, which win over ours."""
    ours = _PROPERTIES | (_LOCAL_PROPERTIES if shares_python(master) else {})
    return {name: value for name, value in {**ours, **settings.spark.conf}.items() if name not in defaults}


def defaults_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties of `spark-defaults.conf`: `name value` or `name=value` a line, `#` begins a comment."""
    home = environment.get("SPARK_HOME")
    directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = Path(directory) / "spark-defaults.conf" if directory else None
    if file is None or not file.is_file():
        return {}
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    pairs = (re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def _check_pyspark() -> None:
    try:
        import pyspark
    except ImportError as error:
        raise UsageError("Spark is not installed", hint="pip install 'frostline[spark]'") from error
    version = str(pyspark.__version__)
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < MINIMUM_PYSPARK:
        needed = ".".join(map(str, MINIMUM_PYSPARK))
        raise UsageError(f"pyspark {version} is too old: {needed} or newer is needed", hint="pip install -U pyspark")


def _java() -> str:
    """The Java that Spark's scripts start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"{home}/bin/java"
    found = shutil.which("java")
    if found is None:
        raise UsageError("Spark needs Java, and there is no 'java' on the PATH", hint=JAVA_HINT)
    return found


def _submitted_conf(settings: Config, app: str, master: str | None) -> SparkConf:
    """Under spark-submit the JVM is there, with all that was submitted."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf(_jvm=SparkContext._jvm)
    for name, value in settings.spark.conf.items():
        conf.setIfMissing(name, value)
    conf.setIfMissing("spark.app.name", app)
    conf.setIfMissing("spark.master", retrying_master(master or settings.spark.master))
    return conf


def _conf(settings: Config, app: str, master: str | None, java: str) -> SparkConf:
    from pyspark import SparkConf
    from pyspark.find_spark_home import _find_spark_home

    defaults = defaults_of(os.environ)
    chosen = retrying_master(master or defaults.get("spark.master") or settings.spark.master)
    conf = SparkConf(loadDefaults=False).setAppName(app).setMaster(chosen)
    for name, value in properties(settings, chosen, defaults).items():
        conf.set(name, value)
    if conf.get(_DRIVER_OPTIONS) == _PROPERTIES[_DRIVER_OPTIONS]:
        classes = java_options(Path(_find_spark_home()) / "jars", java, os.environ)
        conf.set(_DRIVER_OPTIONS, f"{_PROPERTIES[_DRIVER_OPTIONS]} {classes}".rstrip())
    return conf


def _quiet(log: Path) -> None:
    """Make room for what Spark will say, and keep its Python side from saying it elsewhere."""
    _make_room(log)
    for name in ("py4j", "pyspark"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # each error once more, with Java's stack
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4j)


def _start(conf: SparkConf, log: Path | None) -> None:
    from pyspark import SparkContext

    context = SparkContext(conf=conf, gateway=_gateway(conf, log))
    if log is not None and (server := getattr(context, "_accumulatorServer", None)) is not None:
        # It prints a trace when the Java process dies, which the error of the job tells.
        server.handle_error = lambda request, address: None


@contextmanager
def _reasons(conf: SparkConf, log: Path | None) -> Iterator[None]:
    """Raises `FrostlineError` with Spark's reason when it does not start."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    before = log.stat().st_size if log and log.exists() else 0
    try:
        yield
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        hint = f"all that it said: {log}" if log else ""
        reason = (_last_words(log, before) if log else "") or java_reason(error)
        raise FrostlineError(f"Spark did not start on {conf.get('spark.master')}: {reason}", hint=hint) from error


def _gateway(conf: SparkConf, log: Path | None) -> Any:
    """The JVM, with its output in the file. One that runs already (its session was stopped) is used again."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return None
    with ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return launch_gateway(conf, {"stdout": output, "stderr": output} if output else {})


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """py4j tells the root logger, with a trace, of each call that Ctrl-C ends."""
    return "py4j" not in Path(record.pathname).parts


def _make_room(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > _LOG_BYTES:
        file.replace(file.with_suffix(".log.1"))


def _last_words(log: Path, start: int) -> str:
    """Why a JVM or its context ended at once, from what was written since; empty when it does not say."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    found = re.search(
        r"(?:^Error: |^Exception in thread \S+ |^Caused by: |has been killed\. Reason: )(.+)$", text, re.MULTILINE
    )
    return found[1].strip()[:300] if found else ""


def java_reason(error: Exception) -> str:
    """The line of a Java stack trace that a person can use."""
    if java_has_ended(error):
        return "its Java process ended"
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
