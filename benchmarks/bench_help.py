"""`frostline --help` from a cold interpreter: at most 0.3 s."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.measure import bound_figure, report, run


def main() -> None:
    command = [str(Path(sys.executable).with_name("frostline")), "--help"]
    run(command)
    seconds = statistics.median(run(command).seconds for _ in range(9))
    floor = statistics.median(run([sys.executable, "-c", "pass"]).seconds for _ in range(9))
    report(
        [
            bound_figure(
                "frostline --help", seconds, at_most=0.3, unit="s", detail=f"(a bare interpreter: {floor:.3f} s)"
            )
        ]
    )


if __name__ == "__main__":
    main()
