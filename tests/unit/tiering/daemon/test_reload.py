"""A changed configuration while the daemon works, and what its supervisor hears of it (P15)."""

from __future__ import annotations

import os
import socket
import threading
from configparser import ConfigParser
from pathlib import Path

import msgspec
import pytest

from disks.config import LocalDiskConfig
from oplog.errors import AccessDenied, Locked, Refused, UsageError
from tiering.config.settings import (
    Config,
    DaemonConfig,
    InboxConfig,
    JobConfig,
    LimitsConfig,
    PolicyConfig,
    VolumeConfig,
    embedded,
)
from tiering.daemon.daemon import _Daemon
from tiering.daemon.jobs.timer import NoTimer
from tiering.daemon.reload import FileWatch, take_over
from tiering.daemon.status import read_status
from tiering.daemon.supervisor import Supervisor
from tiering.engine.store import Store

replace = msgspec.structs.replace


@pytest.fixture
def old(tmp_path: Path) -> Config:
    return embedded(tmp_path)


def volumes(*names: str) -> PolicyConfig:
    return PolicyConfig(volumes=tuple(VolumeConfig(name=name, disks=(name,)) for name in names))


class TestTakeOver:
    def test_the_same_changes_nothing(self, old: Config, tmp_path: Path) -> None:
        taken = take_over(old, embedded(tmp_path))
        assert (taken.changed, taken.kept) == ((), ())
        assert taken.config == old

    def test_times_and_prices_are_in_force_at_once(self, old: Config) -> None:
        jobs = {"gc": JobConfig(cron="@daily")}
        new = replace(old, daemon=DaemonConfig(tick_seconds=5, jobs=jobs), prices=replace(old.prices, put_per_1000=1))
        taken = take_over(old, new)
        assert taken.changed == ("daemon.jobs.gc.cron", "daemon.tick_seconds", "prices.put_per_1000")
        assert taken.kept == ()
        assert taken.config == new

    def test_how_a_policy_moves_is_taken_where_its_volumes_are_kept(self, old: Config) -> None:
        """Where its volumes are is kept."""
        moves = replace(old.policies["hot_cold"], move_factor=0.5)
        taken = take_over(old, replace(old, policies={"hot_cold": moves}))
        assert (taken.changed, taken.kept) == (("policies.hot_cold.move_factor",), ())
        assert taken.config.policies["hot_cold"].move_factor == 0.5
        taken = take_over(old, replace(old, policies={"hot_cold": volumes("s3", "ssd")}))
        assert (taken.changed, taken.kept) == ((), ("policies.hot_cold.volumes",))
        assert taken.config == old

    def test_a_policy_is_added_where_its_disks_are_none_is_removed(self, old: Config) -> None:
        new = replace(old, policies={"only": volumes("ssd"), "later": volumes("nvme")})
        taken = take_over(old, new)
        assert set(taken.config.policies) == {"hot_cold", "only"}
        assert taken.changed == ("policies.only.volumes",)
        assert taken.kept == ("policies.hot_cold.volumes", "policies.later.volumes")

    def test_what_an_open_store_depends_on_is_kept_and_named(self, old: Config, tmp_path: Path) -> None:
        """Its values are not named."""
        disks = {**old.disks, "nvme": LocalDiskConfig(path=str(tmp_path / "nvme"))}
        new = replace(
            old,
            state_path="/elsewhere",
            disks=disks,
            limits=LimitsConfig(workers=3),
            inbox=InboxConfig(path="/in"),
            interserver=replace(old.interserver, secret="x" * 16),
        )
        taken = take_over(old, new)
        assert taken.config == old
        kept = "disks.nvme.path disks.nvme.type inbox.path interserver.secret limits.workers state_path"
        assert taken.kept == tuple(kept.split())


class TestFileWatch:
    def test_a_file_is_read_once_it_rests(self, tmp_path: Path) -> None:
        file = tmp_path / "frostline.yaml"
        file.write_text("a")
        watch = FileWatch(file)
        assert [watch.is_changed() for _ in range(3)] == [False] * 3
        file.write_text("ab")
        assert not watch.is_changed(), "it may be written to still"
        file.write_text("abc")
        assert not watch.is_changed()
        assert [watch.is_changed() for _ in range(3)] == [True, False, False]

    def test_a_replaced_file_is_another_and_so_is_one_that_is_gone(self, tmp_path: Path) -> None:
        file, other = tmp_path / "frostline.yaml", tmp_path / "other"
        file.write_text("a")
        watch = FileWatch(file)
        other.write_text("b")
        os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
        other.rename(file)
        assert [watch.is_changed() for _ in range(3)] == [False, True, False]
        file.unlink()
        assert [watch.is_changed() for _ in range(3)] == [False, True, False]

    def test_without_a_file_there_is_nothing_to_see(self) -> None:
        assert not any(FileWatch(None).is_changed() for _ in range(3))


YAML = """
state_path: {home}/state
disks:
  ssd: {{type: local, path: {home}/ssd}}
policies:
  hot: {{volumes: [{{name: hot, disks: [ssd]}}]}}
daemon: {{tick_seconds: {tick}}}
"""


class TestReload:
    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
        file = tmp_path / "frostline.yaml"
        file.write_text(YAML.format(home=tmp_path, tick=30))
        return file

    def test_a_valid_one_is_in_force_and_a_bad_one_keeps_it(self, file: Path, tmp_path: Path) -> None:
        with Store.open(file) as store:
            daemon = _Daemon(store, store.context.config.daemon, threading.Event(), config_file=str(file))
            jobs = daemon.jobs(NoTimer())
            jobs.begin()
            file.write_text(YAML.format(home=tmp_path, tick=5) + "limits: {workers: 3}\n")
            taken = daemon.reload(jobs)
            assert (taken.changed, taken.kept) == (("daemon.tick_seconds",), ("limits.workers",))
            assert jobs.records.of("policy").schedule == "every 5 s"
            known = read_status(tmp_path / "state")
            assert (known.config_problem, known.config_kept) == ("", ("limits.workers",))
            daemon.tick()
            assert store.context.config.daemon.tick_seconds == 5
            assert store.context.config.limits.workers == 8

            file.write_text(YAML.format(home=tmp_path, tick="soon"))
            with pytest.raises(UsageError):
                daemon.reload(jobs)
            problem = read_status(tmp_path / "state").config_problem
            assert "line 7: daemon.tick_seconds" in problem
            assert jobs.records.of("policy").schedule == "every 5 s"

            file.write_text(YAML.format(home=tmp_path, tick=7))
            assert daemon.reload(jobs).kept == ()
            known = read_status(tmp_path / "state")
            assert (known.config_problem, known.config_kept) == ("", ())
            daemon.end()

    def test_a_pass_moves_by_the_policy_that_is_in_force(self, file: Path, tmp_path: Path) -> None:
        with Store.open(file) as store:
            daemon = _Daemon(store, store.context.config.daemon, threading.Event(), config_file=str(file))
            jobs = daemon.jobs(NoTimer())
            jobs.begin()
            file.write_text(file.read_text().replace("ssd]}]}", "ssd]}], move_factor: 0.5}"))
            assert daemon.reload(jobs).changed == ("policies.hot.move_factor",)
            daemon.tick()
            assert store.context.config.policies["hot"].move_factor == 0.5
            assert store.context.catalog.config is store.context.config
            daemon.end()


class TestSupervisor:
    @pytest.fixture
    def heard(self, tmp_path: Path) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        return listening

    def test_it_hears_of_beginning_reading_anew_and_end(self, heard: socket.socket, tmp_path: Path) -> None:
        with heard:
            one = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify")})
            one.ready()
            one.reloading()
            one.alive("3 passes\nWATCHDOG=trigger")
            one.alive("3 passes\nWATCHDOG=trigger")
            one.stopping()
            told = [heard.recv(1000).decode() for _ in range(4)]
        assert told[0] == "READY=1"
        assert told[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert told[2:] == ["STATUS=3 passes WATCHDOG=trigger", "STOPPING=1"]

    def test_a_watchdog_hears_each_look_if_it_is_for_this_process(self, heard: socket.socket, tmp_path: Path) -> None:
        given = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
        with heard:
            one = Supervisor({**given, "WATCHDOG_PID": str(os.getpid())})
            one.alive("")
            one.alive("")
            Supervisor({**given, "WATCHDOG_PID": "1"}).alive("")
            Supervisor(given).stopping()
            assert [heard.recv(1000) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]

    def test_one_that_is_not_there_hinders_nothing(self, tmp_path: Path) -> None:
        for address in ("", str(tmp_path / "none"), "@none-of-this-name"):
            Supervisor({"NOTIFY_SOCKET": address} if address else {}).ready()


def test_the_unit_restarts_no_sure_failure_and_runs_what_exists() -> None:
    """It restarts nothing that would fail again."""
    unit = ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(Path(__file__).parents[4] / "configs/systemd/frostline.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["ExecStart"].split()[1:] == ["--config", "/etc/frostline/frostline.yaml", "daemon", "run"]
    never_again = {error.exit_code for error in (UsageError, Locked, AccessDenied, Refused)}
    assert set(map(int, service["RestartPreventExitStatus"].split())) == never_again
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] in service["ReadWritePaths"]
