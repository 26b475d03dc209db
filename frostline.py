"""Frostline for programs: the one public module. All that it does not name is private and free to move.

    import frostline

    with frostline.open() as store:
        flights = store.table("nyc.flights")
        flights.scan(columns=["carrier"], filter=[("month", "=", 2)]).read_all()   # Arrow
        flights.to_polars(), flights.to_pandas(), flights.to_duckdb(connection)    # and others
        store.query("SELECT count(*) FROM nyc.flights").read_all()                 # SQL over all tiers

        with frostline.Repository.open("s3://backups/frostline", config=store.config) as repository:
            repository.create(store, frostline.CreateRequest())

    frostline.spark.sql(session, "SELECT count(*) FROM nyc.flights")               # tables in Spark: docs/spark.md

`python -m frostline` is the command line, where the script of that name is not on the PATH.

What goes wrong on purpose is a `FrostlineError`; the tree of errors is drawn in `oplog.errors`, and each has the exit
code that the command line gives it. Names are loaded when they are first used, so that importing this costs little.
docs/python.md is the guide.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    CredentialsExpired,
    Damaged,
    DiskUnreachable,
    FrostlineError,
    LeaseExpired,
    LimitReached,
    Locked,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    PartlyDone,
    QuotaReached,
    ReadOnly,
    Refused,
    Retained,
    Throttled,
    Transient,
    UsageError,
)

if TYPE_CHECKING:
    import spark_tiering as spark
    from backup.create.request import CreateRequest
    from backup.recover.request import Renaming, RestoreRequest
    from backup.repository import Repository
    from backup.scope import Scope
    from backup.verify.verify import VerifyRequest
    from tiering.engine import Store, Table
    from tiering.merge.request import MergeRequest
    from tiering.table.definitions import define_table
    from tiering.table.schema import TableDefinition

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Conflict",
    "CreateRequest",
    "CredentialsExpired",
    "Damaged",
    "DiskUnreachable",
    "FrostlineError",
    "LeaseExpired",
    "LimitReached",
    "Locked",
    "MergeRequest",
    "NoSpace",
    "NotFound",
    "OutcomeUnknown",
    "PartlyDone",
    "QuotaReached",
    "ReadOnly",
    "Refused",
    "Renaming",
    "Repository",
    "RestoreRequest",
    "Retained",
    "Scope",
    "Store",
    "Table",
    "TableDefinition",
    "Throttled",
    "Transient",
    "UsageError",
    "VerifyRequest",
    "define_table",
    "open",
    "spark",
]

_HOMES = {
    "CreateRequest": "backup.create.request",
    "MergeRequest": "tiering.merge.request",
    "Renaming": "backup.recover.request",
    "Repository": "backup.repository",
    "RestoreRequest": "backup.recover.request",
    "Scope": "backup.scope",
    "Store": "tiering.engine",
    "Table": "tiering.engine",
    "TableDefinition": "tiering.table.schema",
    "VerifyRequest": "backup.verify.verify",
    "define_table": "tiering.table.definitions",
}


def open(  # noqa: A001 - as `sqlite3.connect` and `zarr.open`: the module's name says what
    config: str | os.PathLike[str] | None = None,
    *,
    actor: str = "library",
    workers: int | None = None,
    recover: bool = True,
) -> Store:
    """Open the store of a configuration file (default: as the command line finds it) and recover from a crash. The URL
    of a bucket (`s3://bucket/prefix`) opens what is there to be read, without a configuration.

    `actor` is who the log names for what is done; `recover=False` opens without finishing what a crash left undone.
    Raises `UsageError` for a bad configuration. Leaving the store, or its `close`, releases files and connections.
    """
    from tiering.engine import Store
    from tiering.engine.by_url import config_of, is_url, open_by_url

    if isinstance(config, str) and is_url(config):
        return open_by_url(config_of(config, os.environ), actor=actor, workers=workers)
    return Store.open(None if config is None else Path(config), actor=actor, workers=workers, recover=recover)


def __getattr__(name: str) -> object:
    """A name from where it lives, loaded when it is first used.

    Python asks by name, so the import is by name; all of these modules stand below this one.
    """
    home = _HOMES.get(name)
    if name == "spark":
        value = importlib.import_module("spark_tiering")
    elif home is None:
        raise AttributeError(f"module 'frostline' has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if __name__ == "__main__":
    from tiering.cli.entry import main

    main()
