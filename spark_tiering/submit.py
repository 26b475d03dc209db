"""For `spark-submit`: runs the frostline command line that follows, on the Spark that it was submitted to.

    spark-submit --master yarn "$(python -m spark_tiering.submit)" merge nyc.flights --spark

Run by itself it prints where it lies. The exit code is the command's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """The command's exit code."""
    if not arguments and "PYSPARK_GATEWAY_PORT" not in os.environ:
        print(Path(__file__).resolve())
        return 0
    # Python puts the script's directory first: modules in there have names of their own, not these short ones.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    from tiering.cli.main import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
