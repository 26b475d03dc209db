"""A bit of what an S3 server answers is altered while Spark reads a table: the right rows, or an error naming the part.

Guards I15: no read answers with a flipped bit. A bit altered once is read again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.meddling import Exchange, meddling
from tests.servers import Server
from tests.spark.stores import insert, opened, read, rows_of, table, write_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400


class Altering:
    """Alters a bit in the middle of the data that is asked for, so many times, of a store that keeps no checksums."""

    def __init__(self) -> None:
        self.times = 0
        self.altered = 0

    def __call__(self, found: Exchange) -> None:
        found.headers.pop("x-amz-checksum-sha256", None)
        if self.times > self.altered and found.method == "GET" and "-file-" in found.path and len(found.body) > 8:
            body = bytearray(found.body)
            body[len(body) // 2] ^= 4
            found.body, self.altered = bytes(body), self.altered + 1


@pytest.mark.in_turn
def test_rows_are_right_or_the_part_is_named(spark: SparkSession, tmp_path: Path, ministack: Server) -> None:
    altering = Altering()
    with meddling(ministack, answer=altering) as server:
        config = write_config(tmp_path, server, hot=False, retry_seconds=1)
        definition = table("db.t", {"k": "int64", "s": "string"}, ["k"])
        with opened(config) as store:
            store.create_table(definition)
            insert(store, definition, {"k": range(ROWS), "s": [f"value {number * 7919}" for number in range(ROWS)]})
            (part,) = store.parts("db.t")
        right = rows_of(read(spark, config, "db.t"))
        assert len(right) == ROWS
        altering.times = 1
        assert rows_of(read(spark, config, "db.t")) == right
        assert altering.altered == 1
        altering.times = 1000
        with pytest.raises(Exception, match=rf"(?s){re.escape(part.part.name)}.*is not what was written"):
            rows_of(read(spark, config, "db.t"))
        assert altering.altered > 1
        altering.times = 0
        assert rows_of(read(spark, config, "db.t")) == right
