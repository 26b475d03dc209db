"""Has mypy compare each module of the table of plugs with its Protocol: `python -m tests.plugs`, part of `make static`.

The table names both, so that the code has no line in which one meets the other: here are such lines.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tiering.plugins import PLUGINS, Plugin


def assignments(table: Mapping[str, Plugin]) -> str:
    """Python that mypy refuses where a module has not what its Protocol asks for."""
    rows = [(plugin.protocol, module) for plugin in table.values() for module in plugin.modules]
    names = {name for protocol, module in rows for name in (protocol.rpartition(".")[0], module)}
    imports = [f"import {name}" for name in sorted(names)]
    return "\n".join([*imports, *(f"_{at}: {asked} = {module}" for at, (asked, module) in enumerate(rows))])


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "plugs.py")
        program.write_text(assignments(PLUGINS))
        return subprocess.run([sys.executable, "-m", "mypy", str(program)]).returncode


if __name__ == "__main__":
    sys.exit(main())
