"""A table's dataset as what other libraries call a frame. None of them is required: who has one may use it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pyarrow.dataset as pads

from oplog.errors import UsageError

if TYPE_CHECKING:
    import polars


def polars_frame(dataset: pads.Dataset) -> polars.LazyFrame:
    """The dataset as a lazy frame; filters and chosen columns reach the dataset. Raises `UsageError` without Polars."""
    check_installed("polars")
    import polars

    return polars.scan_pyarrow_dataset(dataset)


def check_installed(name: str) -> None:
    """Raise `UsageError` unless the library is there. Imports nothing."""
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"{name} is not installed", hint=f"python -m pip install {name}; scan() gives Arrow without it"
        )
