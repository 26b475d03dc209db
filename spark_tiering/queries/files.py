"""Data files as Spark's own reader opens them: whether it can, by which URL, and whether they are what was written.

Files on local disks and in buckets that are directories are `file:`. Objects of S3 are `s3a:`, which Spark knows where
`hadoop-aws` is on its class path; it opens them with keys and endpoint of its own properties (`spark.hadoop.fs.s3a.…`),
so that no secret of the store travels with a plan. A bucket of the same name elsewhere has no object of such a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_tiering.reading.blob_file import DAMAGE_HINT, BlobFile
from spark_tiering.reading.scan_planning import Piece
from tiering.parquet.checked_local import LocalRead, check_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REQUESTS = 32
"""For footers, at a time."""


class Obstacle(Exception):
    """Why Spark's own reader cannot read the files."""


def check_bucket(session: SparkSession, disk: str, url: str) -> None:
    """Raise `Obstacle` where Spark has no file system for the bucket; nothing is asked of it."""
    if url.startswith("file://"):
        return
    if not url.startswith("s3://"):
        raise Obstacle(f"files are on {disk}, which is no directory")
    with _obstacle(f"files are on {disk}, and Spark has no hadoop-aws on its class path"):
        _hadoop(session).FileSystem.getFileSystemClass("s3a", _properties(session))


def check_reach(session: SparkSession, pieces: Sequence[Piece]) -> None:
    """Raise `Obstacle` where Spark, as it is set up, does not find the first file of a bucket in S3, in its size."""
    first = {piece.store: piece for piece in reversed(pieces) if piece.store is not None}
    for piece in first.values():
        url = file_url(piece)
        if url.startswith("s3a:"):
            path = _hadoop(session).Path(url)
            with _obstacle(f"Spark cannot open {url} by its properties spark.hadoop.fs.s3a.*"):
                size_bytes = path.getFileSystem(_properties(session)).getFileStatus(path).getLen()
            if size_bytes != piece.size_bytes:
                raise Obstacle(f"Spark finds another {url}, of {size_bytes} bytes instead of {piece.size_bytes}")


def file_url(piece: Piece) -> str:
    """Of its file, for an executor."""
    if piece.store is None:
        return f"file:{piece.path}"
    url = piece.store.open().url(piece.key)
    return f"file:{url.removeprefix('file://')}" if url.startswith("file://") else url.replace("s3://", "s3a://", 1)


def check_footers(pieces: Sequence[Piece]) -> None:
    """Raise `Damaged` for one that is not what was written."""
    local, objects = [], []
    for piece in pieces:
        assert piece.file is not None
        if (path := _path(piece)) is None:
            objects.append(piece)
        else:
            local.append(LocalRead(path, piece.file, piece.label, DAMAGE_HINT, ()))
    check_local(local)
    if objects:
        with ThreadPoolExecutor(min(len(objects), _REQUESTS), thread_name_prefix="footers") as pool:
            for _ in pool.map(_metadata, objects):
                pass


def schema_of(piece: Piece) -> pa.Schema:
    """The schema that the file was written with."""
    path = _path(piece)
    return pq.read_schema(path) if path is not None else _metadata(piece).schema.to_arrow_schema()


def _path(piece: Piece) -> Path | None:
    """Where a directory has it."""
    url = file_url(piece)
    return Path(url.removeprefix("file:")) if url.startswith("file:") else None


def _metadata(piece: Piece) -> pq.FileMetaData:
    """The footer of an object, compared with what was written."""
    assert piece.store is not None
    assert piece.file is not None
    blob = BlobFile(piece.store.open(), piece.key, piece.file, piece.label)
    known = blob.metadata()
    return known if known is not None else pq.ParquetFile(blob).metadata


# -- Hadoop --------------------------------------------------------------------------------------------------------


def _hadoop(session: SparkSession) -> Any:
    assert session._jvm is not None
    return session._jvm.org.apache.hadoop.fs


def _properties(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().newHadoopConf()


@contextmanager
def _obstacle(saying: str) -> Iterator[None]:
    """Raise `Obstacle` for what Java throws."""
    from py4j.protocol import Py4JJavaError

    from spark_tiering.running.session import java_reason

    try:
        yield
    except Py4JJavaError as error:
        raise Obstacle(f"{saying}: {java_reason(error)}") from None
