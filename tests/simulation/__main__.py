"""Simulate three machines: `python -m tests.simulation 4711` replays a seed, `make simulate` looks for one.

A seed that fails is told with the smallest plan that fails as well. Exit 0: no seed fails; 1: one does, or with
`--mistakes` a seeded mistake was not found.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.crash import mutants
from tests.simulation.mistakes import MISTAKES
from tests.simulation.plan import planned
from tests.simulation.search import homes, plan_of, smallest, tried
from tests.simulation.simulated import simulated


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int, nargs="?", help="replay this one")
    parser.add_argument("--seeds", default="0:1000", help="from:to, or how many; default: %(default)s")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--world", default="", choices=("", "log", "lease", "tables"), help="only seeds of this one")
    parser.add_argument("--mistakes", action="store_true", help="how many seeds find each seeded mistake")
    parser.add_argument("--only", default="", help="of the mistakes those whose name holds this")
    parser.add_argument("--no-shrinking", action="store_true", help="tell the seed as it is")
    options = parser.parse_args(arguments)
    if options.mistakes:
        return _mistakes(options.seeds, options.only)
    mutants.apply_from_environment()
    logging.disable(logging.CRITICAL)
    first, _, last = options.seeds.rpartition(":")
    seeds = range(int(first or 0), int(last)) if options.seed is None else range(options.seed, options.seed + 1)
    happened, count = Counter[str](), 0
    with homes() as home, simulated():
        for seed in seeds:
            if options.seconds is not None and time.perf_counter() - _BEGAN > options.seconds:
                break
            plan = planned(seed) if options.seed is not None else plan_of(seed, options.world)
            if plan is None:
                continue
            count += 1
            if (found := tried(seed, plan, home, happened)) is not None:
                print(found if options.no_shrinking else smallest(found, home))
                print(f"found after {count} seeds; again: python -m tests.simulation {seed}")
                return 1
    seconds = time.perf_counter() - _BEGAN
    print(f"{count} seeds in {seconds:.1f} s: nothing found")
    print(", ".join(f"{what} {number}" for what, number in sorted(happened.items())))
    return 0


def _mistakes(seeds: str, only: str) -> int:
    """Each in a process of its own."""
    missed = 0
    for mistake in MISTAKES:
        if only not in mistake.name:
            continue
        command = [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--world", mistake.world]
        done = subprocess.run(
            [*command, "--no-shrinking"],
            env=os.environ | {mutants.ENVIRONMENT: mistake.name},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        needed = next((line for line in said.splitlines() if line.startswith("found after ")), "")
        missed += not needed
        what = said.splitlines()[0] if needed and said else said[-300:]
        print(f"point {mistake.point}: {mistake.name}: {needed or 'NOT FOUND'}: {what}", flush=True)
    return 1 if missed else 0


_BEGAN = time.perf_counter()

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # else the order of sets is another one in each process
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})
    sys.exit(main())
