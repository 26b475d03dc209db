"""What every benchmark shares: timing a child process and its peak memory, and the form of a result.

A result is one JSON object a figure: the value, what it was compared with in the same run, their ratio and the goal.
Nothing here passes or fails: a figure that misses its goal is printed as such.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from disks.workers.python_gc import collect_seldom

collect_seldom()  # as the command line does, whose work is measured


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. `ratio` is value / baseline where there is a baseline."""

    name: str
    value: float
    unit: str
    goal: str
    met: bool
    baseline: float | None = None
    baseline_name: str = ""
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None


def report(figures: Sequence[Figure]) -> None:
    """Print the figures: JSON lines on stdout, a sentence each on stderr."""
    for figure in figures:
        document = asdict(figure) | {"ratio": round(figure.ratio, 3) if figure.ratio is not None else None}
        print(json.dumps(document), flush=True)
        compared = f" = {figure.ratio:.2f} x {figure.baseline_name} ({figure.baseline:.3g})" if figure.ratio else ""
        verdict = "met" if figure.met else "MISSED"
        print(
            f"{figure.name}: {figure.value:.3g} {figure.unit}{compared}; goal {figure.goal}: {verdict} {figure.detail}",
            file=sys.stderr,
        )


def ratio_figure(
    name: str, value: float, baseline: float, *, at_most: float, baseline_name: str, unit: str = "s", detail: str = ""
) -> Figure:
    """A figure whose goal is a bound on its ratio to the baseline."""
    return Figure(
        name, value, unit, f"at most {at_most} x", value <= at_most * baseline, baseline, baseline_name, detail
    )


def bound_figure(name: str, value: float, *, at_most: float, unit: str, detail: str = "") -> Figure:
    """A figure whose goal is an absolute bound."""
    return Figure(name, value, unit, f"at most {at_most} {unit}", value <= at_most, detail=detail)


def paired(ours: Callable[[], float], theirs: Callable[[], float], *, rounds: int = 3) -> tuple[float, float]:
    """Medians of both, run in turn (A B A B …) so that a machine whose speed drifts treats both alike."""
    a: list[float] = []
    b: list[float] = []
    for _ in range(rounds):
        a.append(ours())
        b.append(theirs())
    return statistics.median(a), statistics.median(b)


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Run:
    """A finished child process."""

    seconds: float
    peak_bytes: int
    output: str
    cpu_seconds: float = 0.0
    """Processor time, user and system: what is left of a figure when other programs are busy too."""


_LAUNCHER = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - start
os.write(int(sys.argv[1]), json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss,
                                     usage.ru_utime + usage.ru_stime]).encode())
"""
"""Starts the command from a small process: the kernel counts what a process was before it became another program, so
the memory of this one would be taken for the command's."""


def run(command: Sequence[str], *, environment: dict[str, str] | None = None, cwd: Path | None = None) -> Run:
    """Run a command to its end; its failure is ours. Peak memory as the kernel accounts it."""
    variables = {**os.environ, **(environment or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode: only then is its start fair
    read, write = os.pipe()
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(write), *map(str, command)]
    with open(read, "rb") as answer, tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(launcher, env=variables, cwd=cwd, stdout=output, stderr=errors, pass_fds=[write])
        os.close(write)
        result = answer.read()
        process.wait()
        output.seek(0)
        errors.seek(0)
        text, complaints = output.read(), errors.read()
    code, seconds, peak_kib, cpu_seconds = json.loads(result) if result else (process.returncode, 0.0, 0, 0.0)
    if code:
        raise RuntimeError(f"{' '.join(map(str, command))} exited {code}:\n{complaints[-4000:]}")
    return Run(seconds, peak_kib * 1024, text, cpu_seconds)


@dataclass(frozen=True, slots=True)
class TreeRun:
    """A finished program and all the processes it started."""

    seconds: float
    peak_bytes: int
    """The highest sum of their memory, what they share counted once (PSS)."""
    output: str


def run_tree(command: Sequence[str], *, environment: dict[str, str] | None = None) -> TreeRun:
    """Run a command that starts others, such as Spark; its failure is ours. Memory is looked at four times a second."""
    peak = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=output, stderr=errors)
        while process.poll() is None:
            peak = max(peak, sum(map(_pss_bytes, _tree(process.pid))))
            time.sleep(0.25)
        seconds = time.perf_counter() - began
        output.seek(0)
        errors.seek(0)
        text, complaints = output.read(), errors.read()
    if process.returncode:
        raise RuntimeError(f"{command[:2]} exited {process.returncode}:\n{complaints[-4000:]}")
    return TreeRun(seconds, peak, text)


def _tree(root: int) -> set[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):  # it has ended
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def python(script: str, *arguments: str, environment: dict[str, str] | None = None) -> Run:
    """Run a piece of Python in a process of its own, so that imports, caches and memory are its own."""
    return run([sys.executable, "-c", script, *arguments], environment=environment)


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory, below `$BENCHMARK_DIR` when set."""
    with tempfile.TemporaryDirectory(prefix="frostline-bench-", dir=os.environ.get("BENCHMARK_DIR")) as name:
        yield Path(name)


def peak_bytes() -> int:
    """Peak memory of this process, since `reset_peak` or its begin."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def reset_peak() -> int:
    """Begin to look for the peak anew; what this process takes now, when what it has no use for was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()
