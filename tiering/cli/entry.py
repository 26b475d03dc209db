"""`frostline` as it is installed: answers a press of the completion key from what is kept, or runs the command line."""

import os
import sys
from typing import NoReturn

_ASKED = "_FROSTLINE_COMPLETE"
_ASKS = "complete_"


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
    from disks.workers.python_gc import collect_seldom
    from tiering.cli.frame import process

    process.set_up()
    collect_seldom()  # before much is imported
    from tiering.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
