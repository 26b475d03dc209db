"""What the command line asks of Spark: a runner for the verbs that take `--spark`."""

from collections.abc import Iterator
from contextlib import contextmanager

from spark_tiering.running.session import log_file, spark_session, stop_session
from spark_tiering.running.spark_runner import SparkRunner
from tiering.config.settings import Config


@contextmanager
def runner(config: Config, *, app: str, master: str | None, verbose: bool) -> Iterator[SparkRunner]:
    """What runs work as Spark jobs, on `master` or where the configuration says. Spark is stopped at the end.

    Raises `UsageError` with what to install when pyspark or Java is missing.
    """
    session = spark_session(config, app=app, master=master, verbose=verbose)
    try:
        yield SparkRunner(session, log=str(log_file(config)))
    finally:
        stop_session(session)
