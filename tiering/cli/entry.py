"""`frostline` as it is installed: answers a press of the completion key from what is kept, shows the list of verbs and
the version that `make generate` wrote, or runs the command line."""

import os
import sys
from typing import NoReturn

_ASKED = "_FROSTLINE_COMPLETE"
_ASKS = "complete_"
_HELP_FILE = "help.txt"
_VERSION_FILE = "version.txt"
_HELP_COLUMNS = 80
"""Its lines are those of every terminal that has so many."""


def main() -> NoReturn:
    """Exits with the documented code; a press of the completion key always with 0, and without words after an error."""
    shell = os.environ.get(_ASKED, "")
    if shell.removeprefix(_ASKS) in ("bash", "zsh", "fish"):
        from tiering.cli.completion.shells import answer

        try:
            text, code = answer(shell.removeprefix(_ASKS), os.environ)
        except Exception:  # noqa: BLE001  an error in the middle of a line that somebody types helps nobody
            text, code = "", 1
        sys.stdout.write(text)
        sys.exit(code)
    if sys.argv[1:] in (["--help"], ["-h"]) and _columns() >= _HELP_COLUMNS:
        _show(_HELP_FILE)
    if sys.argv[1:] == ["--version"]:
        _show(_VERSION_FILE)
    from disks.workers.python_gc import collect_after_start

    collect_after_start()  # before much is imported
    from tiering.cli.frame import process

    process.set_up()
    from tiering.cli.main import main as run

    run()


def _show(name: str) -> NoReturn:
    """Write the file beside this one, and end."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    sys.exit(0)


def _columns() -> int:
    """How wide the terminal is; where there is none, as typer takes it to be."""
    try:
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    except (ValueError, OSError, AttributeError):
        return _HELP_COLUMNS


if __name__ == "__main__":
    main()
