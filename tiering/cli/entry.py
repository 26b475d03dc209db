"""`frostline` as it is installed: answers a press of the completion key from what is kept, or runs the command line."""

import os
import sys
from typing import NoReturn

_ASKED = "_FROSTLINE_COMPLETE"
_ASKS = "complete_"


def main() -> NoReturn:
    """Exits with the documented code; a press of the completion key with 0, and no word, whatever is wrong."""
    shell = os.environ.get(_ASKED, "")
    if shell.removeprefix(_ASKS) in ("bash", "zsh", "fish"):
        from tiering.cli.completion.shells import answer

        try:
            text, code = answer(shell.removeprefix(_ASKS), os.environ)
        except Exception:  # noqa: BLE001  an error in the middle of a line that somebody types helps nobody
            text, code = "", 1
        sys.stdout.write(text)
        sys.exit(code)
    sys.meta_path.insert(0, _WithoutPandas())
    from disks.workers.python_gc import collect_seldom

    collect_seldom()  # before much is imported
    from tiering.cli.main import main as run

    run()


class _WithoutPandas:
    """Has pyarrow work as where pandas is not installed: it would import it for its first array or scalar, to know
    values of it, of which a command line has none. That takes a quarter of a second and 40 MB. Spark needs it to call
    Python with Arrow's batches, and finds it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuses `pandas`, and leaves the others to those who find them."""
        if name == "pandas" and "pyspark" not in sys.modules:
            raise ModuleNotFoundError("pandas is not used here", name=name)


if __name__ == "__main__":
    main()
