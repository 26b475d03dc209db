"""For tests of inputs: the rows of files, as `insert` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO

import pyarrow as pa

from tiering.insert.bad_rows import BadRows
from tiering.insert.inputs.source_files import find_sources
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import Reshaping
from tiering.table.schema import TableDefinition


def open_sources(
    paths: Sequence[str],
    file_format: str | None,
    definition: TableDefinition,
    *,
    stdin: IO[bytes] | None = None,
    reshaping: Reshaping | None = None,
    bad: BadRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of all inputs, one after the other. All paths are looked at before the first is read."""
    sources = find_sources(paths, file_format)
    return chain.from_iterable(read_each(sources, reshaping or Reshaping(definition), stdin, bad))
