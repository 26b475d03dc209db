"""A write of Spark on the driver's side: its options, and the store that the job of `tiering.engine.write_job` is begun
and committed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oplog.errors import Refused, UsageError
from restore.history import partitions
from spark_tiering.reading.read_options import CATALOGUED
from spark_tiering.writing.gathering import gather
from tiering.config.reading import load
from tiering.config.settings import Config
from tiering.engine import recovery
from tiering.engine.store import Store
from tiering.engine.write_job import WriteOptions, WriteResult, begin, commit, is_nothing
from tiering.insert.uploaded.once import OnceABatch, OnceAJob
from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart
from tiering.table.columns.types import cast_batch
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_ACTOR = "spark"


def write_options(given: Mapping[str, str], *, overwrite: bool = False) -> WriteOptions:
    """The options as Spark hands them over. Raises `UsageError` naming an unknown one, `Refused` to overwrite without
    being told what."""
    options = {name.lower(): value for name, value in given.items()}
    mode = options.pop("partitionoverwritemode", "")
    table = options.pop("path", "")
    if not table:
        raise UsageError(
            "which table?", hint=f"df.write.format('frostline').mode('append').save('db.table'); {CATALOGUED}"
        )
    known = ("config", "job_id")
    for name in options:
        if name not in known:
            nearest = get_close_matches(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the options are: {', '.join(known)}"
            raise UsageError(f"no such option: {name}", hint=hint)
    config = Path(options["config"]).expanduser() if options.get("config") else None
    job_id = options.get("job_id", "")
    return WriteOptions(
        table, config, OnceAJob(job_id) if job_id else None, _replaces(table, mode) if overwrite else "nothing"
    )


def _replaces(table: str, mode: str) -> Literal["partitions", "table"]:
    match mode.lower():
        case "dynamic":
            return "partitions"
        case "static":
            return "table"
        case "":
            raise Refused(
                f"mode 'overwrite' does not say which rows of {table} to remove",
                hint="option('partitionOverwriteMode', 'dynamic') replaces the partitions that the rows are in, "
                "'static' the whole table; of df.write.format('frostline')…save('db.table'), as 'insert overwrite' and "
                "insertInto hand on no options",
            )
    raise UsageError(f"option partitionOverwriteMode: expected dynamic or static, got {mode!r}")


def begin_job(options: WriteOptions) -> tuple[TableDefinition, WriteJob | None]:
    """As `begin`, in the store of the options."""
    with _opened(options, recover=False) as store:
        return begin(store.context, options)


def commit_job(options: WriteOptions, job: WriteJob | None, parts: Sequence[WrittenPart]) -> WriteResult:
    """As `commit`, in the store of the options, which is not opened for nothing; then small parts are gathered."""
    if job is not None and is_nothing(options, parts):
        return WriteResult()
    with _opened(options, recover=True) as store:
        result = commit(store.context, options, job, parts)
        if options.gathers:
            gather(store, options.table, result.parts, options.gathers)
        return result


def _opened(options: WriteOptions, *, recover: bool) -> AbstractContextManager[Store]:
    """The store; that of a stream stays open for its next batch."""
    if isinstance(options.once, OnceABatch):
        return cached_store(options.config, actor=_ACTOR, recover=recover)
    return Store.open(load(options.config), actor=_ACTOR, recover=recover)


def drop_partition(table: str, partition: str, *, config: str | PathLike[str] | None = None) -> dict[str, int]:
    """As `restore.history.partitions.drop`: the revisions that did it, by disk."""
    with Store.open(load(Path(config).expanduser() if config else None), actor=_ACTOR) as store:
        return dict(partitions.drop(store.context, store.definition(table), partition).revisions)


def check_columns(schema: StructType, definition: TableDefinition) -> None:
    """Raise `UsageError` when rows of the schema can never go into the table."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    cast_batch(pa.RecordBatch.from_pylist([], schema=to_arrow_schema(schema, timezone="UTC")), definition)


_kept: list[tuple[Config, Store]] = []
"""At most one."""


@contextmanager
def cached_store(file: Path | None, *, actor: str, recover: bool) -> Iterator[Store]:
    """As `Store.open` of the configuration, which is read each time: the store is as it is now, and with `recover` what
    a crash left is finished. It stays open after the block, unless that ended with an error: Spark plans and commits
    the batches of a stream in one process, and to open a store and close it costs as much as a commit of a small
    batch."""
    config = load(file)
    if _kept and _kept[0][0] == config:
        _, store = _kept.pop()
        try:
            _look_again(store, recover=recover)
        except BaseException:
            store.close()
            raise
    else:
        close_kept()
        store = Store.open(config, actor=actor, recover=recover)
    try:
        yield store
    except BaseException:
        store.close()
        raise
    close_kept()
    _kept.append((config, store))


def close_kept() -> None:
    """Close the store that is kept, if there is one."""
    while _kept:
        _kept.pop()[1].close()


def _look_again(store: Store, *, recover: bool) -> None:
    if not recover:
        store.refresh()
        return
    if store.context.identities is not None:
        store.context.identities.look()
    store.recovered = recovery.recover(store.context)
