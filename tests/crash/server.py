"""The process that crash tests fork from: it has imported everything and run nothing, so its children start clean."""

from __future__ import annotations

import gc
import os
import sys

from tests.crash import mutants, site
from tests.crash.harness import serve
from tests.keeping import keep_where_asked


def main() -> None:
    """Serve requests from stdin until it closes. Answers go to the real stdout; prints of the product go to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    mutants.apply_from_environment()
    site.import_everything()
    keep_where_asked()
    gc.freeze()  # a collection in a child would write to, and so copy, every page that it shares with this process
    serve(sys.stdin.fileno(), answers)
    gc.unfreeze()


if __name__ == "__main__":
    main()
