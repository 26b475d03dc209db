"""One Spark session for all tests here, and a standalone cluster for the few that need processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oplog.errors import UsageError
from spark_tiering.running.session import check_java, spark_session
from tests.crash import mutants
from tests.spark.cluster import Cluster, standalone
from tiering.config.settings import Config, SparkConfig, embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

mutants.apply_from_environment()  # some tests here need no Spark, and are checks of `make mutants`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def java() -> None:
    """Outside of CI a machine without Java skips, and says what to install; in CI it must be there."""
    try:
        check_java()
    except UsageError as error:
        missing = f"{error.message}; run: bash configs/install/java.sh install ({error.hint})"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


def settings(home: Path, **conf: str) -> Config:
    """The embedded store below a directory, with a small Spark of two cores."""
    spark = SparkConfig(master="local[2,2]", conf={"spark.driver.memory": "1g", **conf})
    base = embedded(home)
    return Config(state_path=base.state_path, disks=base.disks, policies=base.policies, spark=spark)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: `local[2,2]`, so a task that fails once is tried once more."""
    home = tmp_path_factory.mktemp("spark")
    session = spark_session(settings(home, **{"spark.sql.warehouse.dir": str(home / "warehouse")}), app="tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(java: None) -> Iterator[Cluster]:
    """A master and two workers with one core each."""
    with standalone() as running:
        yield running
