"""A Parquet file being written, which is closed whatever happens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class ParquetFileWriter(pq.ParquetWriter):  # type: ignore[misc]  # pyarrow has no types
    """pyarrow's writer, but for one thing: after a write that failed it closes its file all the same.

    pyarrow's keeps the file open until the last reference to the writer is gone, and the error holds one. On a full
    disk that is space which nobody gets back by removing the file.
    """

    def __init__(self, path: Path, schema: pa.Schema, **options: Any) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))  # Arrow leaves the mode to a umask, careless or not
        self._sink = pa.OSFile(str(path), "wb")
        try:
            super().__init__(self._sink, schema, **options)
        except BaseException:
            self._sink.close()
            raise

    def close(self) -> None:
        """Write the footer and close the file; again, nothing. Raises what the writing raises, the file closed."""
        try:
            super().close()
        finally:
            self.is_open = False
            self._sink.close()
