"""Tables in Spark's own catalogue: each is a format of its own there.

Spark's catalogue remembers of a table by which format it is read and written, and hands no other word of it to a source
in Python: neither its options nor its name. So the format says which table it is. What the catalogue keeps are names;
the rows are the store's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from oplog.errors import NotFound, UsageError
from spark_tiering.datasource import is_registered, register, register_table
from spark_tiering.reading.read_options import read_options
from spark_tiering.reading.scan_planning import opened_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def formats(
    session: SparkSession, tables: Sequence[str] | None = None, *, config: str | PathLike[str] | None = None
) -> list[str]:
    """Make each table of the store known to the session as the format `frostline.db.table`; the names of the formats.

    So a table can stand in Spark's catalogue: `create table t using frostline.db.table`. A later session has to be told
    again before it uses it. Raises `NotFound` for a table that the store has not, `UsageError` where two of them differ
    in the case of letters only, which Spark does not tell apart in the name of a format.
    """
    place = str(Path(config).expanduser().absolute()) if config is not None else ""
    with opened_store(read_options({"path": "all.tables", "config": place})) as store:
        there = sorted(definition.full_name for definition in store.definitions())
    wanted = list(tables) if tables is not None else there
    for name in wanted:
        if name not in there:
            raise NotFound(f"no such table: {name}", hint="'frostline table list' lists them")
    alike = Counter(name.lower() for name in wanted)
    twice = [name for name in wanted if alike[name.lower()] > 1]
    if twice:
        raise UsageError(
            f"as formats of Spark these are one: {', '.join(twice)}", hint="formats(spark, ['db.table', …]) without one"
        )
    if not is_registered(session):
        register(session)
    return [register_table(session, name, place) for name in wanted]
