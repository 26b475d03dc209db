"""What a press of the completion key answers in bash, zsh and fish, without a bucket and without slow imports."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.command_line import Frostline
from tiering.cli import entry
from tiering.cli.completion.names import _steps
from tiering.cli.completion.shells import answer

REPOSITORY = Path(__file__).parents[4]

Press = Callable[..., list[str]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    """Two partitions of a table, one in the bucket; a pin; and a bucket that nobody can ask any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    for name in ("FROSTLINE_CONFIG", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    frostline = Frostline(capsys)
    columns = ("--column", "ts:timestamp[us, UTC]", "--column", "user id:int64", "--column", "name:string")
    frostline("table", "create", "db.t", *columns, "--order-by", "ts", "--partition-by", "month(ts)")
    frostline("table", "create", "web.logs", *columns, "--order-by", "ts")
    rows = tmp_path / "rows.csv"
    rows.write_text("ts,user id,name\n2020-01-01T00:00:00Z,1,a\n2020-02-01T00:00:00Z,2,b\n")
    frostline("insert", "db.t", str(rows))
    frostline("move", "db.t", "--partition", "202002", "--to-volume", "cold")
    frostline("pin", "db.t", "--partition", "202001")
    (tmp_path / "home" / "bucket").rename(tmp_path / "gone")
    return frostline


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Press:
    """The words that bash is given, where the last word is that at the cursor."""

    def pressed(*words: str) -> list[str]:
        line = {"COMP_WORDS": "\n".join(("frostline", *words)), "COMP_CWORD": str(len(words))}
        text, code = answer("bash", {**os.environ, **line})
        assert code == 0
        return text.split("\n") if text else []

    return pressed


class TestNames:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["parts", ""], ["db.t", "web.logs"]),
            (["parts", "w"], ["web.logs"]),
            (["table", "create", ""], []),
            (["parts", "db.t", "--partition", ""], ["202001", "202002"]),
            (["move", "db.t", "--partition", "202002"], ["202002"]),
            (["partition", "drop", "db.t", "2020"], ["202001", "202002"]),
            (["explain", "db.t", ""], ["202001_1_1_0", "202002_1_1_0"]),
            (["explain", "db.t", "202002"], ["202002_1_1_0"]),
            (["move", "db.t", "--partition", "202001", "--part", ""], ["202001_1_1_0"]),
            (["explain", "web.logs", ""], []),
            (["explain", "", ""], []),
            (["move", "db.t", "--to-volume", ""], ["cold", "hot"]),
            (["move", "db.t", "--to-disk", "s"], ["s3", "ssd"]),
            (["parts", "--disk=ss"], ["ssd"]),
            (["parts", "--disk", "=", "ss"], ["ssd"]),
            (["fsck", "ssd", ""], ["s3", "ssd"]),
            (["log", ""], ["db.t", "s3", "ssd", "web.logs"]),
            (["table", "alter", "db.t", "--policy", ""], ["hot_cold"]),
            (["unpin", "db.t", "--partition", ""], ["202001"]),
            (["query", "--output-format", ""], ["csv", "json", "parquet", "table"]),
            (["insert", "db.t", "--format", "p"], ["parquet"]),
            (["insert", "--dedup-by=f"], ["file"]),
            (["daemon", "trigger", "f"], ["fsck"]),
            (["daemon", "pause", "gc", "ver"], ["verification"]),
            (["cost", "--what-if", ""], ["hot_cold"]),
            (["unpin", "web.logs", "--partition", ""], []),
            (["table", "alter", "db.t", "--drop-column", ""], ["name", "ts", "user\\ id"]),
            (["table", "alter", "db.t", "--rename-column", "n"], ["name:"]),
            (["table", "alter", "db.t", "--rename-column", "name", ":", ""], []),
            (["insert", "db.t", "--default", "t"], ["ts="]),
            (["insert", "db.t", ""], []),
            (["table", "alter", "db.t", "--drop-column", "'us"], ["user\\ id"]),
        ],
    )
    def test_of_what_the_store_has(self, store: Frostline, press: Press, words: list[str], expected: list[str]) -> None:
        assert press(*words) == expected

    def test_a_press_changes_nothing_but_what_it_keeps(self, store: Frostline, press: Press, tmp_path: Path) -> None:
        def files() -> dict[Path, bytes]:
            own = (tmp_path / "home").rglob("*")
            return {path: path.read_bytes() for path in own if path.is_file() and not path.name.endswith("-shm")}

        before = files()
        assert press("explain", "db.t", "")
        assert files() == before
        assert [path.name for path in (tmp_path / ".cache").rglob("*") if path.is_file()] == ["completion.json"]

    def test_another_configuration_is_seen(self, store: Frostline, press: Press, tmp_path: Path) -> None:
        assert press("fsck", "") == ["s3", "ssd"]
        file = tmp_path / "other.yaml"
        file.write_text(
            "disks: {nvme: {type: local, path: nvme}}\npolicies: {p: {volumes: [{name: v, disks: [nvme]}]}}\n"
        )
        assert press("--config", "other.yaml", "fsck", "") == ["nvme"]
        assert press("fsck", "-c", "other.yaml", "") == ["nvme"]
        file.write_text(file.read_text().replace("nvme", "second"))
        assert press("fsck", "-c", "other.yaml", "") == ["second"]
        assert press("fsck", "") == ["s3", "ssd"]

    def test_the_environment_is_heeded(
        self, store: Frostline, press: Press, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert press("parts", "") == ["db.t", "web.logs"]
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "elsewhere"))
        assert press("parts", "") == []

    def test_secrets_are_not_kept(
        self, store: Frostline, press: Press, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__S3__ACCESS_KEY_ID", "bond")
        monkeypatch.setenv("FROSTLINE_DISKS__S3__SECRET_ACCESS_KEY", "hunter2")
        press("fsck", "")
        kept = (tmp_path / ".cache" / "frostline" / "completion.json").read_text()
        assert "ssd" in kept
        assert "hunter2" not in kept

    def test_a_table_of_100_000_files_is_gone_through_in_steps(self) -> None:
        files = sqlite3.connect(":memory:")
        files.execute("CREATE TABLE files (path TEXT PRIMARY KEY NOT NULL)")
        paths = [
            f"store/abc/abc-1/{month}_{n}_{n}_0/part.json" for month in ("202601", "202602") for n in range(50_000)
        ]
        files.executemany("INSERT INTO files VALUES (?)", [(path,) for path in paths])
        asked: list[str] = []
        files.set_trace_callback(asked.append)
        found = list(_steps(files, "store/abc/abc-1/"))
        assert [path.split("/")[3].split("_")[0] for path in found] == ["202601", "202602"]
        assert len(asked) == 3
        assert len(list(_steps(files, "store/"))) == 1


class TestWords:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["tab"], ["table"]),
            (["table", "s"], ["show"]),
            (["move", "db.t", "--to"], ["--to-volume", "--to-disk"]),
            (["-q", "--json", "replica", "st"], ["status"]),
            (["-j", "4", "plan", "--det"], ["--detailed-exitcode"]),
            (["query", "--output-fo"], ["--output-format"]),
            (["insert", "--", "-"], []),
            (["nonsense", ""], []),
            (["plan", "-o", ""], []),
        ],
    )
    def test_verbs_and_options(self, store: Frostline, press: Press, words: list[str], expected: list[str]) -> None:
        assert press(*words) == expected


class TestShells:
    def test_zsh(self, store: Frostline) -> None:
        text, _ = answer("zsh", {**os.environ, "_TYPER_COMPLETE_ARGS": "frostline table s"})
        assert text.startswith("""_arguments '*: :(("show":"Show a table''s columns, """)
        assert text.endswith("""."))'""")
        text, _ = answer("zsh", {**os.environ, "_TYPER_COMPLETE_ARGS": "frostline parts --disk=ss"})
        assert text == """_arguments '*: :(("--disk=ssd"))'"""
        assert answer("zsh", {**os.environ, "_TYPER_COMPLETE_ARGS": "frostline insert db.t "}) == ("_files", 0)

    def test_fish(self, store: Frostline) -> None:
        def fish(action: str, line: str) -> tuple[str, int]:
            asked = {"_TYPER_COMPLETE_FISH_ACTION": action, "_TYPER_COMPLETE_ARGS": line}
            return answer("fish", {**os.environ, **asked})

        assert fish("is-args", "frostline table s") == ("", 0)
        assert fish("is-args", "frostline insert db.t ") == ("", 1)
        text, code = fish("get-args", "frostline table al")
        assert (text.split("\t")[0], text[-1], code) == ("alter", ".", 0)
        assert fish("get-args", "frostline table alter db.t --drop-column 'us") == ("user id", 0)

    def test_bash_itself(self, store: Frostline, tmp_path: Path) -> None:
        """By the script that --show-completion gives, and the command as it is installed."""
        from typer._completion_shared import get_completion_script

        script = get_completion_script(prog_name="frostline", complete_var="_FROSTLINE_COMPLETE", shell="bash")
        own = tmp_path / "frostline"
        own.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tiering.cli.entry "$@"\n')
        own.chmod(0o755)
        code = f"{script}\nCOMP_WORDS=(frostline explain db.t ''); COMP_CWORD=3; _frostline_completion {own}\n"
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(
            ["bash", "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=True,
        )
        assert (done.stdout.split(), done.stderr) == (["202001_1_1_0", "202002_1_1_0"], "")


class TestEntry:
    def test_a_press_imports_next_to_nothing(self, store: Frostline) -> None:
        code = (
            "import sys; from tiering.cli import entry\n"
            "try:\n    entry.main()\nexcept SystemExit:\n    pass\n"
            "foreign = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
            "print('', *sorted(name for name in foreign if not name.startswith('__')))\n"
        )
        line = {"COMP_WORDS": "frostline\nparts\nw", "COMP_CWORD": "2"}
        answer("bash", {**os.environ, **line})  # reads the configuration
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],  # without what the environment imports by itself
            capture_output=True,
            text=True,
            env={**os.environ, **line, "_FROSTLINE_COMPLETE": "complete_bash", "PYTHONPATH": str(REPOSITORY)},
            check=True,
        )
        assert done.stdout == "web.logs tiering\n"

    def test_an_error_is_no_word(
        self, store: Frostline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = {
            "_FROSTLINE_COMPLETE": "complete_bash",
            "COMP_WORDS": "frostline\n-c\nno.yaml\nparts\n",
            "COMP_CWORD": "4",
        }
        for name, value in line.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            entry.main()
        assert capsys.readouterr() == ("", "")

    def test_anything_else_is_the_command_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[bool] = []
        monkeypatch.delenv("_FROSTLINE_COMPLETE", raising=False)
        monkeypatch.setitem(sys.modules, "tiering.cli.main", SimpleNamespace(main=lambda: ran.append(True)))
        entry.main()
        assert ran == [True]
