"""Starting Spark: what is missing is named with its remedy, settings of the operator win, the terminal stays quiet."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oplog.errors import Transient, UsageError
from spark_tiering import register
from spark_tiering.package import archive_bytes, write_archive
from spark_tiering.running.session import (
    check_java,
    check_master,
    defaults_of,
    log_file,
    properties,
    retrying_master,
    spark_session,
)
from tests.servers import REPOSITORY, free_port
from tests.spark.conftest import settings
from tiering.config.settings import SparkConfig, embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that_says(directory: Path, text: str, code: int = 0) -> None:
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)


class TestJava:
    @pytest.mark.parametrize(
        ("said", "version"),
        [
            ('openjdk version "11.0.22" 2024-01-16', "11"),
            ('java version "1.8.0_402"', "8"),
        ],
    )
    def test_one_that_is_too_old_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: str
    ) -> None:
        java_that_says(tmp_path, said)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(UsageError, match=f"is Java {version}") as caught:
            check_java()
        assert "openjdk-17-jre-headless" in caught.value.hint

    @pytest.mark.parametrize("said", ['openjdk version "17" 2021-09-14', 'openjdk version "25-ea" 2025-09-16'])
    def test_newer_ones_will_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
        java_that_says(tmp_path, said)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        check_java()

    def test_one_that_is_missing_or_broken_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UsageError, match="no 'java' on the PATH") as caught:
            check_java()
        assert "JAVA_HOME" in caught.value.hint
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
        with pytest.raises(UsageError, match="cannot be run"):
            check_java()
        java_that_says(tmp_path / "broken", "Unable to locate a Java Runtime", 1)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
        with pytest.raises(UsageError, match="Unable to locate"):
            check_java()

    def test_a_missing_pyspark_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(UsageError, match="not installed") as caught:
            check_java()
        assert "frostline[spark]" in caught.value.hint

    def test_the_installing_script_agrees_on_what_is_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        java_that_says(tmp_path, 'openjdk version "17.0.1" 2021-10-19')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        script = ["bash", "configs/install/java.sh", "install"]
        assert subprocess.run(script, cwd=REPOSITORY, check=False).returncode == 0


class TestProperties:
    def test_local_masters_repeat_a_task(self) -> None:
        assert retrying_master("local") == "local[1,4]"
        assert retrying_master("local[*]") == "local[*,4]"
        assert retrying_master("local[2]") == "local[2,4]"
        assert retrying_master("local[2,7]") == "local[2,7]"
        assert retrying_master("spark://host:7077") == "spark://host:7077"

    def test_what_an_operator_set_wins(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text(
            "# ours\nspark.ui.enabled true\nspark.driver.memory=3g\n\nspark.executor.extraJavaOptions\t-Da=b -Dc=d\n"
        )
        defaults = defaults_of({"SPARK_CONF_DIR": str(tmp_path)})
        assert defaults == {
            "spark.ui.enabled": "true",
            "spark.driver.memory": "3g",
            "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        }
        config = settings(tmp_path, **{"spark.sql.adaptive.enabled": "true"})
        chosen = properties(config, "local[2]", defaults)
        assert "spark.ui.enabled" not in chosen
        assert "spark.driver.memory" not in chosen
        assert chosen["spark.sql.adaptive.enabled"] == "true"
        assert chosen["spark.driver.bindAddress"] == "127.0.0.1"
        assert "spark.driver.bindAddress" not in properties(config, "yarn", {})

    def test_without_settings_every_core_is_used(self, tmp_path: Path) -> None:
        assert embedded(tmp_path).spark == SparkConfig(master="local[*]", conf={}, ship_code=True)


class TestMaster:
    @pytest.mark.parametrize(
        "master",
        [
            "local",
            "local[4]",
            "local[*]",
            "local[2,7]",
            "local-cluster[2,1,512]",
            "yarn",
            "k8s://https://10.0.0.1:6443",
        ],
    )
    def test_those_that_spark_knows_pass(self, master: str) -> None:
        check_master(master)

    @pytest.mark.parametrize(
        "master", ["", "nonsense", "nonsense://host", "local[x]", "local 2", "spark://host", "spark://host:x", "yarn "]
    )
    def test_others_are_refused_before_java_starts(self, master: str) -> None:
        with pytest.raises(UsageError, match="no master of Spark") as caught:
            check_master(master)
        assert "spark://HOST:PORT" in caught.value.hint

    def test_one_of_several_that_answers_will_do(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as master:
            check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{master.getsockname()[1]}")

    def test_none_that_answers_is_told_at_once(self) -> None:
        place = f"spark://127.0.0.1:{free_port()}"
        with pytest.raises(Transient, match=f"no Spark master answers at {place}"):
            check_master(place)

    def test_nor_is_a_port_that_there_cannot_be(self) -> None:
        with pytest.raises(Transient, match="no Spark master answers"):
            check_master("spark://127.0.0.1:99999")


class TestSession:
    def test_one_that_exists_is_used_as_it_is(self, spark: SparkSession, tmp_path: Path) -> None:
        again = spark_session(settings(tmp_path, **{"spark.sql.shuffle.partitions": "77"}), app="other")
        assert again.sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "8"
        assert not log_file(settings(tmp_path)).exists()

    def test_ctrl_c_is_still_ours(self, spark: SparkSession) -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @pytest.mark.in_turn
    def test_nothing_reaches_the_terminal(self, java: None, tmp_path: Path) -> None:
        done = _program(
            tmp_path,
            "session = spark_session(settings(Path(sys.argv[1])), app='quiet')\n"
            "SparkRunner(session).run(nap, [0.0, 0.0], title='naps', on_done=lambda *answer: None)\n"
            "session.stop()\n",
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert "WARN" in (tmp_path / "state" / "spark" / "driver.log").read_text()

    def test_one_that_does_not_start_says_why(
        self, java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        done = _program(tmp_path, "spark_session(settings(Path(sys.argv[1])), app='no', master='yarn')")
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert "Spark did not start on yarn: " in last
        assert "HADOOP_CONF_DIR" in last

    @pytest.mark.in_turn
    def test_ctrl_c_ends_the_job_and_nothing_else_is_said(self, java: None, tmp_path: Path) -> None:
        done = _program(
            tmp_path,
            "session = spark_session(settings(Path(sys.argv[1])), app='long')\n"
            "threading.Timer(4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "try:\n"
            "    SparkRunner(session).run(nap, [90.0, 90.0], title='naps', on_done=print)\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
            "session.stop()\n",
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")

    @pytest.mark.in_turn
    def test_a_driver_whose_java_is_killed_is_told(self, java: None, tmp_path: Path) -> None:
        done = _program(
            tmp_path,
            "session = spark_session(settings(Path(sys.argv[1])), app='killed')\n"
            "threading.Timer(4, session.sparkContext._gateway.proc.kill).start()\n"
            "try:\n"
            "    SparkRunner(session).run(nap, [90.0, 90.0], title='naps', on_done=print)\n"
            "except FrostlineError as error:\n"
            "    print(error.message)\n"
            "stop_session(session)\n",
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("naps: the Java process"), done.stdout


def _program(home: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own that starts Spark; much shorter than the naps of its tasks."""
    imports = (
        "import os, signal, sys, threading\nfrom pathlib import Path\nfrom oplog.errors import FrostlineError\n"
        "from spark_tiering.running.session import spark_session, stop_session\n"
        "from spark_tiering.running.spark_runner import SparkRunner\nfrom tests.spark.conftest import settings\n"
        "from tests.spark.pieces import nap\n"
    )
    command = [sys.executable, "-c", imports + code, str(home)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=80, check=False)


class _Session:
    """As much of a session as registering asks for."""

    def __init__(self, **conf: str) -> None:
        self._sc = SimpleNamespace(master="local[2]", defaultParallelism=2, pythonExec="python3")
        self.conf = conf
        self.dataSource = SimpleNamespace(register=lambda source: None)


class TestPython:
    def test_tasks_run_in_the_program_s_python_unless_one_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def chosen(**conf: str) -> str:
            session: Any = _Session(**conf)
            register(session)
            return str(session._sc.pythonExec)

        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        assert chosen() == sys.executable
        assert chosen(**{"spark.pyspark.python": "/opt/python"}) == "python3"
        monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
        assert chosen() == "python3"


class TestPackage:
    @pytest.mark.in_turn
    def test_the_same_code_is_the_same_archive(self, tmp_path: Path) -> None:
        first = write_archive(tmp_path / "one")
        assert first.name == write_archive(tmp_path / "two").name
        assert first.read_bytes() == archive_bytes()
        assert write_archive(tmp_path / "one") == first

    def test_it_holds_our_packages_and_no_caches(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(write_archive(tmp_path)) as archive:
            names = archive.namelist()
        assert {
            "tiering/engine/store.py",
            "disks/base.py",
            "oplog/log.py",
            "spark_tiering/running/spark_runner.py",
        } <= set(names)
        assert not [name for name in names if "__pycache__" in name]
        assert names == sorted(names)

    @pytest.mark.in_turn
    def test_code_runs_from_it(self, tmp_path: Path) -> None:
        archive = write_archive(tmp_path)
        code = "import sys; sys.path.insert(0, sys.argv[1]); import tiering.merge.merger as m; print(m.__file__)"
        command = [sys.executable, "-c", code, str(archive)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert str(archive) in done.stdout, done.stderr
