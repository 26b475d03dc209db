"""The proof that the checks find each seeded mistake: `python -m tests.crash.proof [--kept FILE] [NAME ...]`.

Every check must fail with its mutant and pass without one. Both are run in processes of their own, as many at once as
there are processors: with a mutant only the one test that guards it, without one the checks of a file together. With
--kept what was proved is noted in the file as it comes, and a run that is begun again with it takes up there: what was
killed or passed is not run again, what survived or failed is. Delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from tests import turns
from tests.crash.mutants import ENVIRONMENT, MUTANTS, Mutant

CHECK_SECONDS = 900
_REPOSITORY = Path(__file__).parents[2]
_GOOD = frozenset({"killed", "passed", "skipped"})


class Proved(msgspec.Struct, frozen=True, kw_only=True):
    """How a mutant, or the checks of a file without one, came out."""

    name: str
    """Of the mutant; without one the file."""
    checks: tuple[str, ...]
    word: str
    """killed, SURVIVED, passed, FAILED, skipped (the check cannot run here) or BROKEN (there is no such check)."""
    seconds: float
    found: str = ""
    """The first line of what was complained about."""


Run = Callable[[str, tuple[str, ...], bool], Proved]


def run(name: str, checks: tuple[str, ...], mutated: bool) -> Proved:
    """Run tests in a process of its own, with or without a mutant."""
    # Each mistake is looked for at every point: whose turn it is does not count.
    environment = {one: value for one, value in os.environ.items() if one not in (ENVIRONMENT, turns.ENVIRONMENT)}
    if mutated:
        environment[ENVIRONMENT] = name
    failed, passed = ("killed", "SURVIVED") if mutated else ("FAILED", "passed")
    started = time.monotonic()

    def proved(word: str, found: str = "") -> Proved:
        return Proved(name=name, checks=checks, word=word, seconds=time.monotonic() - started, found=found)

    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *checks],
            cwd=_REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS * len(checks),
            check=False,
        )
    except subprocess.TimeoutExpired:  # proves nothing: a mutant survived by it, a check without one failed
        return proved("SURVIVED" if mutated else "FAILED", f"no end after {CHECK_SECONDS * len(checks)} s")
    if done.returncode not in (0, 1):
        return proved("BROKEN", (done.stdout + done.stderr).strip().rpartition("\n")[2])
    if done.returncode:
        return proved(failed, _complaint(done.stdout))
    return proved(passed if " passed" in done.stdout else "skipped")


def _complaint(output: str) -> str:
    found = re.search(r"^E .*?\b(I\d+ .+)", output, re.MULTILINE) or re.search(r"^E +(.+)", output, re.MULTILINE)
    return found[1].partition("\\n")[0][:110] if found else ""


def read_kept(file: Path | None) -> list[Proved]:
    """What earlier runs noted, the newest of each, as far as it is good. A line that was cut off does not count."""
    newest: dict[tuple[str, tuple[str, ...]], Proved] = {}
    for line in file.read_bytes().splitlines() if file is not None and file.exists() else ():
        try:
            one = msgspec.json.decode(line, type=Proved)
        except msgspec.DecodeError:
            continue
        newest[one.name, one.checks] = one
    return [one for one in newest.values() if one.word in _GOOD]


def prove(mutants: Sequence[Mutant], workers: int, file: Path | None = None, run: Run = run) -> Iterator[Proved]:
    """Each check without a mutant, then each mutant, as they come out; those first that were kept."""
    asked = [(name, checks, False) for name, checks in _by_file(mutants)]
    asked += [(mutant.name, (mutant.place,), True) for mutant in mutants]
    kept = {(one.name, one.checks): one for one in read_kept(file)}
    yield from (kept[name, checks] for name, checks, _ in asked if (name, checks) in kept)
    with ThreadPoolExecutor(workers) as pool:
        left = [one for one in asked if one[:2] not in kept]
        for future in as_completed([pool.submit(run, *one) for one in left]):
            proved = future.result()
            if file is not None:
                with file.open("ab") as notes:
                    notes.write(b"\n" + msgspec.json.encode(proved) + b"\n")  # the last line may have been cut off
            yield proved


def _by_file(mutants: Iterable[Mutant]) -> Iterator[tuple[str, tuple[str, ...]]]:
    files: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        files.setdefault(mutant.place.partition("::")[0], {})[mutant.place] = None
    for file, checks in files.items():
        yield file, tuple(checks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what comes out; 1 when a mutant survives or a check fails without any."""
    parser = argparse.ArgumentParser(description="show that the checks find each seeded mistake")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; default: all")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="note what was proved, and go on from there")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, metavar="N")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in MUTANTS]:
        parser.error(f"there is no mutant {', '.join(map(repr, unknown))}")
    chosen = [MUTANTS[name] for name in given.names] or list(MUTANTS.values())
    bad, killed = [], 0
    for one in prove(chosen, given.workers, given.kept):
        what = MUTANTS[one.name].what if one.name in MUTANTS else f"without a mutant, {len(one.checks)} checks"
        print(f"{one.word:8} {one.seconds:6.1f} s  {one.name:32} {what}", flush=True)
        if one.name in MUTANTS or one.found:
            print(f"{'':19}by {' '.join(one.checks)}: {one.found}", flush=True)
        killed += one.word == "killed"
        if one.word not in _GOOD:
            bad.append(f"{one.word} {one.name}")
    print(f"{killed} of {len(chosen)} killed" + (f"; {'; '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
