"""Hostile command lines for every verb of the command line's own tree, and what each must keep (I24).

`python -m tests.hostile.verbs --seconds 600 --seed 1` tries them for as long as that, each in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import typer

from tiering.cli import main as cli
from tiering.cli.frame.exit_codes import Finished

EXIT_CODES = {0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 130, 143}
"""Those that the command line documents."""
MOST_SECONDS = 60
_WRONG = re.compile(r"\bunexpected [A-Z]\w*|Traceback \(most recent")
_SERVING = {"daemon run", "top", "dashboard", "demo", "objbench", "inbox run"}
"""They run until somebody ends them, or for minutes when nothing is wrong with what they were given."""
_NOT_GIVEN = {"--spark", "--master", "--install-completion", "--help", "--replicas", "--serve"}
"""Options that start Java, or change the user's own files."""
_DEPTH = 200_000


class TookTooLong(BaseException):
    """A run was not over within its time."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each verb below a command, by its words."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    with typer.Context(command) as context:
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*path, name))


def verbs() -> dict[str, Any]:
    """Every verb of the command line, as typer has it."""
    return {" ".join(path): command for path, command in leaves(typer.main.get_command(cli.build()))}


def hostile_files(root: Path) -> list[str]:
    """Files, and what is none, by name."""
    root.mkdir(exist_ok=True)
    table = pa.table({"k": [1, 2], "s": ["a", "b"]})
    pq.write_table(table, root / "good.parquet")
    orc.write_table(table, root / "good.orc")
    with ipc.new_file(root / "good.arrow", table.schema) as writer:
        writer.write_table(table)
    (root / "good.csv").write_bytes(b"k,s\n1,a\n2,b\n")
    (root / "good.json").write_bytes(b'{"k": 1, "s": "a"}\n')
    for name in ("parquet", "orc", "arrow", "csv", "json"):
        data = (root / f"good.{name}").read_bytes()
        (root / f"cut.{name}").write_bytes(data[: len(data) * 2 // 3])
        (root / f"{name}.{name}.gz").write_bytes(gzip.compress(data)[:-6])
        (root / f"empty.{name}").write_bytes(b"")
        (root / f"noise.{name}").write_bytes(data[:4] + random.Random(1).randbytes(300) + data[-8:])
    (root / "deep.json").write_bytes(b'{"k":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}\n")
    (root / "objects.json").write_bytes(b'{"k":' * _DEPTH + b"1" + b"}" * _DEPTH + b"\n")
    (root / "deep.yaml").write_bytes(b"disks: " + b"[" * _DEPTH)
    (root / "latin.csv").write_bytes(b"k,s\n1,\xff\xfe\n")
    (root / "nul.csv").write_bytes(b"k,s\n1,\0\n")
    (root / "unreadable.csv").write_bytes(b"k,s\n1,a\n")
    (root / "unreadable.csv").chmod(0)
    (root / "directory.csv").mkdir(exist_ok=True)
    (root / os.fsdecode(b"\xff.csv")).write_bytes(b"k,s\n1,a\n")
    if not (root / "fifo.csv").exists():
        (root / "loop.csv").symlink_to("loop.csv")
        os.mkfifo(root / "fifo.csv")
    return [*sorted(str(path) for path in root.iterdir()), "/dev/null", "/dev/full", str(root)]


TEXTS = (
    *("", " ", "-", "--", "-1", "0", "1", "NaN", "inf", "1e400", str(1 << 63), "-" + "9" * 30, "9" * 5000),
    *("1" * 400 + "d", "d.t", "d.none", "d", ".", "..", "../../x", "a.b.c", "ssd", "s3", "all", "latest", "all_1_1_0"),
    *("x:y:z", "k:int64", "\x1b[31m", "\r\n\t", "\x7f\x80", os.fsdecode(b"\xff\xfe"), "ä" * 300, "\u202e", '"'),
    *("'; DROP TABLE x --", "k = 1", "k = ", "(" * 5000, "[" * 5000, "{" * 100, "k=" + "[" * 5000, "select 1"),
    *(
        "select * from d.t",
        "SELECT " + "(" * 9000,
        "30d on ts delete",
        "file:///proc/nowhere/x",
        "file://",
        "1 2",
        "5%",
    ),
    *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "101%", "99999999999999999999d", "-5s", "1GiB", "999999EiB"),
    *("day(k)", "list<" * 500 + "int64" + ">" * 500, "decimal(99, 5)", "Europe/Nowhere"),
)


def command_line(verb: str, command: Any, chance: random.Random, files: Sequence[str]) -> list[str]:
    """One, with hostile values for its arguments and for some of its options."""

    def value() -> str:
        return chance.choice(files) if chance.random() < 0.4 else chance.choice(TEXTS)

    if verb == "demo":  # in a directory that it can use it goes on in another program
        return [
            verb,
            *chance.choice(((), ("--json",), ("--yes",))),
            "--",
            chance.choice([name for name in files if not Path(name).is_dir()]),
        ]
    words, rest = verb.split(), []
    options = [one for one in command.params if one.param_type_name == "option" and not _NOT_GIVEN & set(one.opts)]
    for option in chance.sample(options, min(len(options), chance.choice((0, 0, 1, 1, 2, 4)))):
        words.append(chance.choice(option.opts))
        if not option.is_flag:
            words.extend(value() for _ in range(max(option.nargs, 1)))
    for argument in (one for one in command.params if one.param_type_name == "argument"):
        count = chance.choice((1, 1, 1, 0, 2)) if argument.nargs != 1 else chance.choice((1, 1, 1, 1, 0, 2))
        rest += [chance.choice(("d.t", "ssd", "s3")) if chance.random() < 0.4 else value() for _ in range(count)]
    return [*words, *rest, *chance.choice(((), ("--json",), ("--dry-run",), ("--yes",), ("--yes",)))]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the block after so long."""

    def end(number: int, frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _instead(*program: object) -> NoReturn:
    """Of a verb that goes on as another program."""
    raise Finished(0)


def wrong_with(arguments: Sequence[str], stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> str:
    """What the run did that none may do; empty when nothing."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    before, streams = dict(os.environ), (sys.stdin, sys.argv)
    os.environ.update(environment or {})
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))
    serves = any(" ".join(arguments).startswith(verb) for verb in _SERVING)
    code: int | None = None
    execute, os.execv = os.execv, _instead
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), within(5 if serves else MOST_SECONDS):
            code = cli.run(list(arguments))
    except TookTooLong:
        code = 0 if serves else None
    except BaseException as error:
        return f"{type(error).__name__} left it: {error}"
    finally:
        os.execv = execute
        sys.stdin, sys.argv = streams
        os.environ.clear()
        os.environ.update(before)
    with contextlib.suppress(ValueError):
        out.flush()
        err.flush()
    said = "".join(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
    if code is None:
        return f"it takes more than {MOST_SECONDS} s"
    if match := _WRONG.search(said):
        return said[max(match.start() - 100, 0) : match.end() + 300]
    return "" if code in EXIT_CODES else f"exit code {code}"


def examples(seed: int, files: Sequence[str], names: Sequence[str] = ()) -> Iterator[list[str]]:
    """Round after round over all verbs, without an end."""
    chance = random.Random(seed)
    commands = {name: command for name, command in verbs().items() if not names or name in names}
    for _ in itertools.count():
        for verb, command in commands.items():
            yield command_line(verb, command, chance, files)


def prepare() -> None:
    """A store with a table and a few rows."""
    for words in (
        "table create d.t --column k:int64 --column s:string --order-by k --if-not-exists",
        "insert d.t files/good.csv",
    ):
        assert cli.run([*words.split(), "--quiet"]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verb", action="append", default=[])
    parser.add_argument("--trace", help="a file that gets each command line before it runs: one may end the process")
    given = parser.parse_args()
    faults: dict[str, list[str]] = {}
    tried = 0
    with tempfile.TemporaryDirectory(prefix="frostline-verbs-") as root:
        os.environ |= {"FROSTLINE_HOME": f"{root}/home", "HOME": f"{root}/user"}
        os.chdir(root)
        files = hostile_files(Path("files"))
        prepare()
        end = time.monotonic() + given.seconds
        for arguments in examples(given.seed, files, given.verb):
            if time.monotonic() > end:
                break
            if tried % 500 == 499:
                prepare()
            tried += 1
            if given.trace:
                Path(given.trace).write_text(repr(arguments))
            begun = time.monotonic()
            wrong = wrong_with(arguments)
            if time.monotonic() - begun > 8:
                print(f"slow: {time.monotonic() - begun:.0f} s {arguments!r:.300}", flush=True)
            if wrong:
                print(f"{arguments!r:.400}\n    {wrong!r:.600}", flush=True)
                faults.setdefault(wrong[:200], arguments)
    print(f"{tried} command lines, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
