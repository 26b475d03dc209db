"""`keeper ls | get | check | run` and `config macros`: what people see of Keeper, and of its configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.servers import free_port
from tiering.cli import main as cli
from tiering.config.settings import KeeperConfig
from zerocopy.keeper import packaged
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import MOST_BYTES

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line of a machine with this Keeper."""
    file = tmp_path / "frostline.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "state_path": str(tmp_path / "state"),
                "keeper": {"hosts": list(settings.hosts), "root": settings.root},
                "macros": {"shard": "01", "replica": "a"},
            }
        )
    )

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert cli.run(["-c", str(file), *arguments]) == code, capsys.readouterr()
        captured = capsys.readouterr()
        return captured.out or captured.err

    return run


def document(run: Run, *arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def test_nodes_are_listed_and_shown(run: Run, keeper: Keeper) -> None:
    keeper.make_path("/tables/d.t")
    keeper.set("/tables/d.t", b"line one\nline \xff two")
    assert document(run, "keeper", "ls", "/tables")["nodes"] == [
        {"name": "d.t", "bytes": 19, "version": 1, "children": 0, "ephemeral": False}
    ]
    assert "d.t" in run("keeper", "ls", "/tables/")
    assert run("keeper", "get", "/tables/d.t") == "line one\nline \\xff two\n"
    assert "no such node" in run("keeper", "get", "/nothing", code=10)
    assert "not a path" in run("keeper", "ls", "tables/../x", code=2)


def test_check_says_how_the_servers_are(run: Run, keeper: Keeper) -> None:
    keeper.create("/large", b"x" * 1000)
    found = document(run, "keeper", "check")
    assert [(server["answers"], server["mode"]) for server in found["servers"]] == [(True, "standalone")]
    assert found["largest"] == "/large"
    assert found["nodes"] == 2
    assert found["problems"] == []
    assert keeper.children("/") == ["large"]


def test_check_warns_of_a_keeper_that_anybody_may_change(
    run: Run, settings: KeeperConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whom the nodes belong to, not only by what is configured."""
    (open_to_all,) = document(run, "keeper", "check")["warnings"]
    assert "Keeper is open" in open_to_all
    assert "note: Keeper is open" in run("keeper", "check"), "it listens on this machine alone"
    monkeypatch.setenv("FROSTLINE_KEEPER__USER", "frostline")
    monkeypatch.setenv("FROSTLINE_KEEPER__PASSWORD", "a password")
    said = document(run, "keeper", "check")["warnings"]
    assert ["Keeper is open" in said[0], "unencrypted" in said[1]] == [True, True], "the root was made before"
    monkeypatch.setenv("FROSTLINE_KEEPER__ROOT", f"{settings.root}-of-a-user")
    (unencrypted,) = document(run, "keeper", "check")["warnings"]
    assert "unencrypted" in unencrypted


def test_a_server_that_does_not_answer_is_a_problem(
    run: Run, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, settings: KeeperConfig
) -> None:
    monkeypatch.setenv("FROSTLINE_KEEPER__HOSTS", f"[{settings.hosts[0]}, '127.0.0.1:{free_port()}']")
    found = document(run, "keeper", "check", code=4)
    assert len(found["problems"]) == 1


@pytest.mark.in_turn
def test_check_says_so_where_no_server_answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what every other error tells people to run then: it must not end as they do."""
    host = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("FROSTLINE_KEEPER__HOSTS", f"['{host}']")
    monkeypatch.setenv("FROSTLINE_KEEPER__REQUEST_TIMEOUT_SECONDS", "1")
    found = document(run, "keeper", "check", code=4)
    assert [server["answers"] for server in found["servers"]] == [False]
    assert found["read_milliseconds"] is None
    assert found["problems"][0] == f"{host} does not answer"
    assert "Keeper cannot be reached" in found["problems"][1]
    assert f"problem: {host} does not answer" in run("keeper", "check", code=4)


def test_a_port_that_is_taken_is_said_before_a_server_is_begun(run: Run, tmp_path: Path, zookeeper: int) -> None:
    said = run("keeper", "run", str(tmp_path / "zk"), "--port", str(zookeeper), code=2)
    assert f"cannot listen on port {zookeeper}" in said
    assert not (tmp_path / "zk").exists()


def test_macros_are_shown(run: Run) -> None:
    assert document(run, "config", "macros") == {
        "macros": {"shard": "01", "replica": "a"},
        "of_a_table": ["uuid", "database", "table"],
    }
    assert "{shard}" in run("config", "macros")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("KEEPER__HOSTS", "[nowhere]", "not a host and port"),
        ("KEEPER__ROOT", "frostline", "not a path"),
        ("KEEPER__USER", "somebody", "belong together"),
        ("KEEPER__CA_BUNDLE", "ca.pem", "without TLS"),
        ("KEEPER__SESSION_TIMEOUT_SECONDS", "0", "session_timeout_seconds"),
        ("MACROS", "{uuid: x}", "each table says itself"),
        ("MACROS", "{shard: a/b}", "not a name in a path"),
        ("REPLICAS", "{merge_workers: [a/b]}", "not the name of a replica"),
        ("REPLICAS", "{merges: false, merge_workers: [a]}", "a is this machine, which makes no merges"),
    ],
)
def test_mistakes_in_the_configuration_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, key: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"FROSTLINE_{key}", value)
    assert said in run("config", "validate", code=2)


def test_the_password_is_covered_and_asks_for_a_private_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROSTLINE_KEEPER__USER", "frostline")
    monkeypatch.setenv("FROSTLINE_KEEPER__PASSWORD", "correct-horse")
    shown = run("config", "show")
    assert "correct-horse" not in shown
    assert "password" in shown
    file = tmp_path / "frostline.yaml"
    file.write_text(yaml.safe_dump({"keeper": {"user": "frostline", "password": "correct-horse"}}))
    file.chmod(0o644)
    assert "others can read it" in run("config", "validate", code=13)


def test_run_becomes_the_server_and_says_that_it_is_one(
    run: Run, tmp_path: Path, zookeeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of all tests here was begun by the same command line."""
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: begun.append(words))
    port = free_port()
    said = run("keeper", "run", str(tmp_path / "zk"), "--port", str(port))
    assert "no ensemble" in said
    assert begun == [packaged.command(tmp_path / "zk", port)]
    assert f"clientPort={port}" in (tmp_path / "zk" / "zoo.cfg").read_text()


def test_what_is_missing_to_run_a_server_is_said(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "zookeeper-*.jar" in run("keeper", "run", str(tmp_path / "zk"), "--jars", str(tmp_path), code=2)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Java" in run("keeper", "run", str(tmp_path / "zk"), code=2)


@pytest.mark.in_turn
def test_the_server_has_room_for_the_transactions_that_it_keeps() -> None:
    """The last 500, each as large as one may be: with too little it ends, and every change after it waits."""
    with servers.zookeeper() as server, Keeper(KeeperConfig(hosts=(server.endpoint_url,))) as keeper:
        keeper.make_path("/full")
        for _ in range(500):
            keeper.set("/full", bytes(MOST_BYTES - 1024))
        assert keeper.get("/full").version == 500
