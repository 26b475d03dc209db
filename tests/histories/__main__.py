"""Try random histories: `python -m tests.histories --seconds 3600`, or `make histories SECONDS=3600`.

Exit 0: nothing was found. 1: a finding, with the steps that led to it; `--seed N` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.histories.history import Finding, begin, go_on

STEPS = 30
_MOST_FINDINGS = 8
_MEMORY = Path("/dev/shm")


def tried(seed: int, steps: int, without: frozenset[str], counts: collections.Counter[str]) -> str | None:
    """What one history found, with its steps; None where all was right."""
    root = Path(tempfile.mkdtemp(prefix="frostline-history-", dir=_MEMORY if _MEMORY.is_dir() else None))
    history = None
    try:
        history = begin(root, seed)
        go_on(history, steps, without)
    except Finding as finding:
        told = "\n    ".join(history.done) if history else ""
        mode = history.truth.mode if history else ""
        return f"seed {seed} ({mode}): {finding}\n    {told}"
    finally:
        shutil.rmtree(root)
        if history:
            counts.update(line.split(": ", 1)[1].split(" ")[0] for line in history.done)
            counts["refused"] += history.refused
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="default: an hour")
    parser.add_argument("--from-seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--without", default="", help="steps that are not taken, such as set_back,lose")
    options = parser.parse_args()
    without = frozenset(options.without.split(",")) - {""}
    ends, number = time.monotonic() + options.seconds, 0
    findings: list[str] = []
    counts: collections.Counter[str] = collections.Counter()
    while time.monotonic() < ends and len(findings) < _MOST_FINDINGS:
        seed = options.seed if options.seed is not None else options.from_seed + number
        number += 1
        if finding := tried(seed, options.steps, without, counts):
            print(finding, flush=True)
            findings.append(finding)
        if options.seed is not None:
            break
    print(f"{number} histories, {sum(counts.values())} steps, {len(findings)} findings: {dict(counts.most_common())}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
