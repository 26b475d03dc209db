"""How errors come through Spark to a user: with their hints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from oplog.errors import FrostlineError


@contextmanager
def errors_with_hints(*, planning: bool = True) -> Iterator[None]:
    """Errors with their hints: Spark shows the message, and nothing else of an error but its traceback. Where Spark
    plans, in a process for this one call, the traceback is left out."""
    try:
        yield
    except FrostlineError as error:
        if error.hint and error.hint not in str(error):
            error.args = (f"{error.message} ({error.hint})",)
        if planning:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
