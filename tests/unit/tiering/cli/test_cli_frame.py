"""The frame of the command line: options before and after the verb, errors, exit codes, output, start-up time."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from disks.workers.progress import Silent
from oplog import errors
from oplog.errors import AccessDenied, Damaged, FrostlineError, PartlyDone, Refused
from tiering.cli import main as cli
from tiering.cli.frame.exit_codes import Terminated
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.output import Output, aligned, encode
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.cli.frame.terminal_progress import Bars, Documents, Lines, choose
from tiering.cli.frame.verb_table import build, verbs

REPOSITORY = Path(__file__).parents[4]
CONTRACT_VERBS = {
    "insert", "query", "parts", "disks", "policies", "move", "plan", "apply", "explain", "tick", "pause", "resume",
    "pin", "unpin", "merge", "log", "restore", "snapshot", "fsck", "gc", "du", "status", "demo", "table", "moves",
    "config", "daemon", "cost", "doctor", "objbench", "backup", "partition",
}  # fmt: skip

ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, FrostlineError) and error is not PartlyDone
]
"""That one of several items may fail with."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiering.cli.main", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        timeout=60,
        check=False,
    )


def options_help(command: Any) -> Iterator[str]:
    yield from (option.help or "" for option in command.params if option.name != "show_completion")  # Typer's own
    if isinstance(command, TyperGroup):
        for name in command.list_commands(typer.Context(command)):
            yield from options_help(command.commands[name])


class TestOptions:
    @pytest.mark.parametrize(
        "arguments", [["--json", "policies"], ["policies", "--json"], ["-q", "policies", "--json", "-v"]]
    )
    def test_global_options_work_before_and_after_the_verb(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(arguments) == 0
        assert [policy["name"] for policy in json.loads(capsys.readouterr().out)["policies"]] == ["hot_cold"]

    def test_later_options_win_and_counts_add_up(self) -> None:
        before = GlobalOptions(workers=2, verbose=1, json=True, bwlimit="1M")
        merged = before.merged({"workers": 4, "verbose": 1, "json": False, "bwlimit": None, "yes": True})
        assert merged == GlobalOptions(workers=4, verbose=2, json=True, bwlimit="1M", yes=True)

    def test_the_config_option_after_the_verb(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "c.yaml").write_text("policies: {only: {volumes: [{name: v, disks: [ssd]}]}}\n")
        assert cli.run(["policies", "--json", "-c", "c.yaml"]) == 0
        assert json.loads(capsys.readouterr().out)["policies"][0]["name"] == "only"


class TestHelp:
    def test_every_verb_has_help_and_none_is_a_stub(self, capsys: pytest.CaptureFixture[str]) -> None:
        from tests.tools.reference import command_line

        text = command_line()
        for verb in CONTRACT_VERBS:
            assert f"## frostline {verb}\n" in text
        assert cli.run(["--help"]) == 0
        assert "Commands:" in capsys.readouterr().out

    def test_the_help_of_every_option_is_a_phrase(self) -> None:
        helps = list(options_help(typer.main.get_command(cli.build())))
        assert len(helps) > 200
        assert [text for text in helps if len(text.split()) > 12] == []

    def test_shared_options_are_listed_once(self) -> None:
        from tests.tools.reference import command_line

        assert command_line().count("  --json ") == 1

    def test_the_table_of_verbs_names_what_each_module_has(self) -> None:
        for module, names in verbs.modules.items():
            assert tuple(build(module)) == names

    def test_one_verb_is_built_without_the_others(self) -> None:
        code = (
            "import sys; from tiering.cli.main import run; run(['du', '--help']);"
            "print([name for name in ('moves', 'merging') if f'tiering.cli.{name}' in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
        assert done.stderr.strip() == "[]"

    def test_help_imports_nothing_heavy(self) -> None:
        code = (
            "import sys; from tiering.cli.main import run; run(['--help']);"
            "heavy = ('pyarrow', 'duckdb', 'boto3', 'rich', 'yaml', 'sqlite3', 'msgspec');"
            "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
        assert done.stderr.strip() == "[]"

    def test_version_names_tool_log_format_and_minimum_reader(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["--version"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["log format 2", "minimum reader 0.2.0"]
        assert cli.run(["--version", "--json"]) == 0
        assert set(json.loads(capsys.readouterr().out)) == {"version", "log_format", "minimum_reader"}

    @pytest.mark.in_turn
    def test_generated_files_are_up_to_date(self) -> None:
        """P52."""
        from tests.tools.reference import documents

        for name, text in documents(REPOSITORY).items():
            assert (REPOSITORY / name).read_text() == text, f"{name}: run make generate"


class TestErrors:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["nonsense"],
            ["parts", "--nonsense"],
            ["move", "a.b"],
            ["insert"],
            ["query"],
            ["config", "nonsense"],
            ["-j", "x", "parts"],
            ["-j", "0", "parts"],
            ["parts", "--bwlimit", "soon"],
        ],
    )
    def test_wrong_arguments_exit_2(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(arguments) == 2
        assert "frostline: " in capsys.readouterr().err
        assert cli.run([*arguments, "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        error = json.loads(captured.err)["error"]
        assert set(error) == {"kind", "message", "hint", "exit_code"}
        assert error["kind"] == "usage"
        assert error["exit_code"] == 2

    @pytest.mark.parametrize("arguments", [[], ["table"]])
    def test_no_verb_shows_the_help_and_is_wrong(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Commands:" in captured.err
        assert cli.run([*arguments, "--json"]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["kind"] == "usage"

    @pytest.mark.parametrize("error", [Refused("no", hint="because"), Damaged("bad"), AccessDenied("keys")])
    def test_each_error_of_the_tree_has_its_exit_code(
        self, error: FrostlineError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Session, "loaded", property(lambda self: (_ for _ in ()).throw(error)))
        assert cli.run(["policies", "--json"]) == error.exit_code
        shown = json.loads(capsys.readouterr().err)["error"]
        assert shown == {
            "kind": error.kind,
            "message": error.message,
            "hint": error.advice,
            "exit_code": error.exit_code,
        }

    def test_a_bug_is_one_line_and_the_traceback_on_request(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Session, "loaded", property(lambda self: 1 // 0))
        assert cli.run(["policies"]) == 1
        text = capsys.readouterr().err
        assert "unexpected ZeroDivisionError" in text
        assert "-vv" in text
        assert "Traceback" not in text
        assert cli.run(["policies", "-vv"]) == 1
        assert "Traceback" in capsys.readouterr().err

    @pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
    def test_interruptions(self, raised: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(session: Session) -> None:
            raise raised

        monkeypatch.setattr(Session, "loaded", property(interrupt))
        assert cli.run(["policies"]) == code

    def test_sigterm_ends_a_real_process_with_143(self) -> None:
        code = "import sys, time; from tiering.cli import main\nfrom tiering.cli.commands import data\n"
        code += "from tiering.cli.frame.session import Session\n"
        code += "def slow(self):\n print('ready', flush=True); time.sleep(60)\n"
        code += "Session.loaded = property(slow)\nmain.main(['policies'])"
        running = subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 143
        running.communicate()

    def test_a_reader_that_goes_away_is_no_error(self) -> None:
        command = f"'{sys.executable}' -m tiering.cli.main config schema | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=REPOSITORY, check=False)
        assert done.returncode == 0
        assert done.stderr == ""

    def test_configuration_errors_are_exit_2_and_name_the_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "frostline.yaml").write_text("dsks: {}\n")
        assert cli.run(["parts", "--json"]) == 2
        error = json.loads(capsys.readouterr().err)["error"]
        assert "frostline.yaml, line 1: dsks: no such key" in error["message"]
        assert "'disks'" in error["hint"]

    def test_partly_done_is_3_all_failed_is_1(self) -> None:
        fail_if_partly(0, 5, "moves")
        with pytest.raises(FrostlineError) as caught:
            fail_if_partly(1, 4, "moves")
        assert caught.value.exit_code == 3
        with pytest.raises(FrostlineError) as caught:
            fail_if_partly(2, 0, "moves")
        assert caught.value.exit_code == 1
        for what, said in (("moves", "the move failed"), ("entries", "the entry failed")):
            with pytest.raises(FrostlineError, match=said):
                fail_if_partly(1, 0, what)

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
    def test_all_failed_alike_is_the_code_of_that(self, error: type[FrostlineError]) -> None:
        with pytest.raises(FrostlineError, match="all 2 moves failed") as caught:
            fail_if_partly(2, 0, "moves", [error.kind, error.kind])
        assert caught.value.exit_code == error.exit_code
        assert caught.value.next_step
        with pytest.raises(FrostlineError) as caught:
            fail_if_partly(2, 0, "moves", [error.kind, FrostlineError.kind])
        assert caught.value.exit_code == 1


class TestConfirmation:
    def test_without_a_terminal_and_without_yes_it_refuses_at_once(self) -> None:
        done = process("table", "drop", "a.b", "--json")
        assert done.returncode in (10, 13)  # there is no such table; the point is that it does not hang
        with pytest.raises(Refused, match="Drop it"):
            Session(GlobalOptions(json=True)).confirm("Drop it?")

    def test_yes_and_dry_run_ask_nothing(self) -> None:
        Session(GlobalOptions(yes=True)).confirm("Drop it?")
        Session(GlobalOptions(dry_run=True)).confirm("Drop it?")


class TestOutput:
    def test_plain_tables_are_aligned_and_numbers_stand_right(self) -> None:
        lines = aligned(["name", "rows"], [["a", "1,000"], ["long name", "5"]], [False, True])
        assert lines == ["name        rows", "a          1,000", "long name      5"]

    def test_dates_and_part_names_are_no_numbers(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output().table(["part", "from"], [["202601_1_1_0", "2026-01-01"], ["all", ""]])
        assert capsys.readouterr().out.splitlines()[2] == "all"

    def test_json_knows_times_and_not_a_number(self) -> None:
        from datetime import UTC, datetime

        data = {"time": datetime(2026, 1, 2, tzinfo=UTC), "nan": float("nan")}
        assert json.loads(encode(data)) == {"time": "2026-01-02T00:00:00Z", "nan": None}

    def test_quiet_keeps_remarks_away(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output(quiet=True).note("remark")
        assert capsys.readouterr().err == ""

    def test_what_config_prints_is_a_configuration(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`config default` and `config show`, saved to a file, are what was in force, line by line."""
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
        for verb in ("default", "show"):
            printed = tmp_path / f"{verb}.yaml"
            assert cli.run(["config", verb]) == 0
            printed.write_text(capsys.readouterr().out)
            assert cli.run(["-c", str(printed), "config", "validate"]) == 0, capsys.readouterr().err
            capsys.readouterr()
            assert cli.run(["config", "default", "--json"]) == 0
            said = {key: value for key, value in json.loads(capsys.readouterr().out).items() if value}
            assert yaml.safe_load(printed.read_text()).items() >= said.items()

    def test_config_show_covers_secrets(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        environment = {
            "FROSTLINE_DISKS__S3__ACCESS_KEY_ID": "AKIA",
            "FROSTLINE_DISKS__S3__SECRET_ACCESS_KEY": "hunter2",
        }
        for arguments in (("config", "show"), ("config", "show", "--json"), ("policies", "-vv")):
            done = process(*arguments, **environment)
            assert done.returncode == 0, done.stderr
            assert "hunter2" not in done.stdout + done.stderr

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("arguments", "shown"), [(("fsck",), "WARNING"), (("backup", "list", "-vv"), "Traceback")], ids=["log", "trace"]
    )
    def test_what_is_logged_and_traced_covers_passwords(
        self, tmp_path: Path, arguments: tuple[str, ...], shown: str
    ) -> None:
        """The repository does not answer; of its backups `fsck` wants the pins. It is asked as often as the disk in its
        bucket is."""
        done = process(
            *arguments,
            FROSTLINE_HOME=str(tmp_path),
            FROSTLINE_BACKUP__REPOSITORY="s3://joe:hunter2@b/p",
            AWS_ENDPOINT_URL="http://127.0.0.1:1",
            AWS_ACCESS_KEY_ID="a",
            AWS_SECRET_ACCESS_KEY="b",
            FROSTLINE_DISKS__S3__URL="s3://b/disk/",
            FROSTLINE_DISKS__S3__RETRIES="1",
        )
        assert shown in done.stderr
        assert "joe:********@" in done.stderr
        assert "hunter2" not in done.stdout + done.stderr


class TestProgress:
    def test_a_line_every_ten_seconds_when_not_on_a_terminal(self) -> None:
        now, lines = [0.0], list[str]()
        with Lines(lines.append, clock=lambda: now[0]).task("moving", items=4, size_bytes=4096) as task:
            for _ in range(4):
                now[0] += 7
                task.advance(items=1, size_bytes=1024)
        assert lines == ["moving: 2 of 4, 2.0 KiB of 4.0 KiB", "moving: 4 of 4, 4.0 KiB of 4.0 KiB"]

    def test_bars_leave_nothing_behind(self, capsys: pytest.CaptureFixture[str]) -> None:
        bars = Bars()
        with bars.task("moving", items=2, size_bytes=4096) as outer, bars.task("reading") as inner:
            outer.advance(items=1, size_bytes=2048)
            outer.note("part 1")
            inner.advance(items=1)
        with bars.task("again", items=1) as task:
            task.advance(items=1)
        assert capsys.readouterr().out == ""

    def test_a_document_a_second_and_at_both_ends(self) -> None:
        now, lines = [0.0], list[str]()
        progress = Documents(lines.append, clock=lambda: now[0])
        with progress.task("sending", items=4, size_bytes=4096) as task:
            for _ in range(4):
                now[0] += 0.6
                task.advance(items=1, size_bytes=1024)
        with pytest.raises(ValueError, match="no"), progress.task("reading"):
            raise ValueError("no")
        found = [json.loads(line)["progress"] for line in lines]
        assert [(one["task"], one["state"], one["items_done"], one["bytes_done"]) for one in found] == [
            ("sending", "begun", 0, 0),
            ("sending", "running", 2, 2048),
            ("sending", "running", 4, 4096),
            ("sending", "done", 4, 4096),
            ("reading", "begun", 0, 0),
            ("reading", "failed", 0, 0),
        ]
        assert (found[0]["items"], found[0]["bytes"], found[-1]["bytes"], found[3]["seconds"]) == (4, 4096, None, 2.4)
        assert isinstance(choose(quiet=True, no_progress=True, as_json=True), Documents)

    def test_quiet_and_no_progress_show_nothing(self) -> None:
        assert isinstance(choose(quiet=True, no_progress=False), Silent)
        assert isinstance(choose(quiet=False, no_progress=True), Silent)


@pytest.mark.in_turn
def test_help_needs_little_processor_time() -> None:
    """Of processor time, the best of five: the wall clock of a busy machine says nothing about the program."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert process("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best <= 0.6  # half of it where nothing else runs


@pytest.mark.in_turn
def test_plain_values_need_no_converter() -> None:
    """Importing the one that typer brings takes as long as most verbs; what is wrong is still said by it."""
    script = (
        "import sys\nfrom tiering.cli import main\n"
        "code = main.run(['-c', 'none.yaml', '-j', '3', '--tpslimit', '7', 'moves', 'list', '--limit', '5'])\n"
        "assert 'pydantic' not in sys.modules, 'imported'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "imported" not in done.stderr
    words = script.replace("'moves', 'list', '--limit', '5'", "'backup', 'create', '--cold', 'pin'")
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert "imported" not in done.stderr
    assert cli.run(["backup", "create", "--cold", "melt"]) == 2
    assert "none.yaml" in done.stderr
    for wrong in ("0", "x", "-1"):
        assert cli.run(["-j", wrong, "parts"]) == 2


PACKAGES = ("oplog", "disks", "tiering", "restore", "backup", "spark_tiering")


def test_commands_that_messages_and_pages_name_exist() -> None:
    """Each `'frostline …'` in quotes, in the code and in the documents: its verb, and its options."""
    known = {name: command for module in verbs.modules for name, command in build(module).items()}
    files = [file for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py")]
    files += [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    named = [(file, text) for file in files for text in re.findall(r"['`]frostline ([^'`\n]+)['`]", file.read_text())]
    assert len(named) > 50
    for file, text in named:
        verb, *rest = text.split()
        if verb == "VERB" or verb.startswith(("-", "{")):
            continue
        assert verb in known, f"{file.name}: frostline {text}"
        command = known[verb]
        if hasattr(command, "commands"):
            if not rest:
                continue
            assert rest[0] in command.commands, f"{file.name}: frostline {text}"
            command = command.commands[rest[0]]
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        used = {re.split(r"[=,;]", word)[0] for word in rest if word.startswith("--")}
        assert used <= options, f"{file.name}: frostline {text}"


@pytest.mark.in_turn
def test_a_package_not_installed_is_named_with_how_to_get_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['kazoo'] = None; from tiering.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "demo", "--replicas", "3", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == ["frostline: kazoo is not installed", "  pip install 'frostline[replicas]'"]


def test_help_lists_a_dry_run_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that refuses --dry-run does not list it; the refusal comes before anything else."""
    for words in (["daemon", "run"], ["inbox", "run"], ["replica", "sync"], ["replica", "restore", "d.t"]):
        assert cli.run([*words, "--help"]) == 0
        assert "--dry-run" not in capsys.readouterr().out
        assert cli.run([*words, "-n"]) == 2
        assert "has no dry run" in capsys.readouterr().err
    cli.run(["replica", "drop", "--help"])
    assert "--dry-run" in capsys.readouterr().out
