"""`table create | list | show | alter | rename | drop`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import AlreadyExists, FrostlineError, UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiering.catalog.definitions.unreadable import UnreadableTable
    from tiering.insert.reshaping import Reshaping
    from tiering.table.schema import TableDefinition

TableName = Annotated[str, typer.Argument(metavar="DB.TABLE", help="the table")]
_ANNOUNCED_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Create, list, show, alter, rename and drop tables.")
    app.add_typer(group, name="table")
    verb(group, changes=True)(create)
    verb(group, "list")(list_tables)
    verb(group)(show)
    verb(group, changes=True)(alter)
    verb(group, changes=True)(rename)
    verb(group, changes=True)(rewrite)
    verb(group, changes=True)(drop)


def create(
    session: Session,
    table: TableName,
    like: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="take columns from a file, directory or URL"),
    ] = None,
    flatten: Annotated[bool, typer.Option("--flatten", help="turn the sample's struct fields into columns")] = False,
    no_hive: Annotated[
        bool, typer.Option("--no-hive", help="do not read columns from directories such as region=eu")
    ] = False,
    rename_column: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B", help="name the sample's column A B; repeatable"),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="add a column, or override the sample's type")
    ] = None,
    order_by: Annotated[str, typer.Option(metavar="C[,C]", help="sort order")] = "",
    partition_by: Annotated[str, typer.Option(metavar="EXPR", help="such as 'day(ts)' or 'month(ts)'")] = "",
    ttl: Annotated[list[str] | None, typer.Option(metavar="RULE", help="such as '7d on ts to volume cold'")] = None,
    policy: Annotated[str, typer.Option(metavar="P", help="storage policy; default: the only one")] = "",
    merge_mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="ordinary, replacing[:VERSION[,DELETED]], summing:C,C or aggregating:C=FUNCTION,…",
        ),
    ] = "ordinary",
    setting: Annotated[list[str] | None, typer.Option(metavar="K=V", help="a table setting")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="succeed if the table exists")] = False,
    replicated: Annotated[bool, typer.Option("--replicated", help="create or join a replicated table")] = False,
    keeper_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Keeper path; default: /tables/{shard}/{database}.{table}"),
    ] = None,
    replica: Annotated[str | None, typer.Option(metavar="NAME", help="replica name; default: {replica}")] = None,
) -> None:
    """Create a table from columns or a sample file, or join a replicated one.

    A joining replica takes columns and order from the others; given ones must match.
    """
    from tiering.insert.reshaping import Reshaping, parse_renames
    from tiering.table.definitions import define_table

    renames = parse_renames(rename_column or ())
    if renames and like is None:
        raise UsageError("--rename-column is for the columns of a sample", hint="add --like FILE")
    if replicated:
        _create_replica(
            session,
            table,
            {
                "order_by": order_by,
                "columns": column or (),
                "like": _schema_of(session, like, renames, flatten=flatten, hive=not no_hive) if like else None,
                "partition_by": partition_by,
                "ttl": ttl or (),
                "merge_mode": merge_mode,
                "settings": setting or (),
                "policy": policy or _only_policy(session),
            },
            (keeper_path, replica),
            if_not_exists=if_not_exists,
        )
        return
    if keeper_path is not None or replica is not None:
        raise UsageError("--keeper-path and --replica are for replicated tables", hint="add --replicated")
    definition = define_table(
        table,
        order_by=order_by,
        policy=policy or _only_policy(session),
        columns=column or (),
        like=_schema_of(session, like, renames, flatten=flatten, hive=not no_hive) if like else None,
        partition_by=partition_by,
        ttl=ttl or (),
        merge_mode=merge_mode,
        settings=setting or (),
    )
    session.begin()
    store = session.store()
    if session.dry_run:
        from tiering.catalog.tables import check

        check(store.context, definition)
        if not if_not_exists:
            _refuse_existing(session, table)
    else:
        created = store.create_table(definition, if_not_exists=if_not_exists)
        if created.uuid != definition.uuid:
            session.output.note(f"Table {table} exists already and was left unchanged.")
            definition = created
    _answer(session, definition, f"{_would(session, 'Created')} table {definition.full_name} ({definition.uuid}).")
    if like:
        _tell_of_sample(session, like, Reshaping(definition, renames=renames, flatten=flatten, hive=not no_hive))


def _create_replica(
    session: Session,
    table: str,
    texts: dict[str, Any],
    keeper_options: tuple[str | None, str | None],
    *,
    if_not_exists: bool,
) -> None:
    from tiering.engine import replication
    from tiering.table.definitions import define_table

    if session.dry_run:
        raise UsageError("a replica has no dry run", hint="'frostline keeper ls /tables' lists the nodes")
    definition = define_table(table, **texts) if texts["columns"] or texts["like"] is not None else None
    session.begin()
    made = replication.work().create(
        session.store().context, table, definition, texts["policy"], *keeper_options, if_not_exists=if_not_exists
    )
    _tell_daemon(session, made.definition)
    if session.options.json:
        session.output.document(
            {**_document(made.definition), "replica": made.replica, "first": made.first, "dry_run": False}
        )
        return
    done = "Created" if made.first else "Joined"
    session.output.report(
        f"{done} replicated table {made.definition.full_name} ({made.definition.uuid}) as replica {made.replica}."
    )


def _tell_daemon(session: Session, definition: "TableDefinition") -> None:
    """Let a daemon that runs on this store see at once that there is a replica, and wait until others hear of it: until
    then they take it for one that is gone."""
    from tiering.daemon.control import ask
    from tiering.engine import replication

    context = session.store().context
    try:
        ask(context.config.state_directory, "look", [], begin_seconds=_ANNOUNCED_SECONDS)
    except FrostlineError:  # none runs, or it is of an older version, and comes to it with a pass
        return
    if not replication.work().is_announced(context, definition, within_seconds=_ANNOUNCED_SECONDS):
        session.output.note("the daemon here says that it is this replica when its passes run")


def list_tables(session: Session) -> None:
    """List tables with their size on each disk."""
    from tiering.catalog.rows import table_rows

    rows = [*table_rows(session.store(Freshness.CHANGES).context.catalog)]
    if session.options.json:
        session.output.document({"tables": rows})
        return
    session.output.table(
        ["table", "policy", "parts", "rows", "size", "on disks"],
        [
            (
                row.table,
                row.policy,
                row.parts,
                f"{row.rows:,}",
                format_size(row.bytes),
                ", ".join(f"{disk} {format_size(size)}" for disk, size in row.bytes_by_disk.items()),
            )
            for row in rows
        ],
        empty="No tables yet: see 'frostline table create --help', or run 'frostline demo'.",
    )


def show(session: Session, table: TableName) -> None:
    """Show a table's columns, order, partitions, TTL rules and settings."""
    definition = session.store().definition(table)
    if session.options.json:
        session.output.document(_document(definition))
        return
    line = session.output.line
    line(f"table         {definition.full_name}")
    line(f"uuid          {definition.uuid}")
    line(f"version       {definition.version} (columns: {definition.schema_version})")
    line(f"policy        {definition.policy}")
    line(f"partition by  {', '.join(str(field) for field in definition.partition_by) or '-'}")
    line(f"order by      {', '.join(definition.order_by)}")
    line(f"merge mode    {definition.merge_mode}")
    if definition.is_replicated:
        line(f"keeper        {definition.keeper}")
    for rule in _ttl_texts(definition):
        line(f"ttl           {rule}")
    for key, value in _settings(definition).items():
        line(f"setting       {key}={value}")
    line()
    session.output.table(
        ["id", "column", "type", "nullable", "default"],
        [
            (column.id, column.name, column.type, "yes" if column.nullable else "no", _shown(column.default))
            for column in definition.columns
        ],
    )


def alter(
    session: Session,
    table: TableName,
    add_column: Annotated[list[str] | None, typer.Option(metavar="N:T", help="add a column; see --default")] = None,
    default: Annotated[str | None, typer.Option(metavar="V", help="value of an added column in older parts")] = None,
    rename_column: Annotated[list[str] | None, typer.Option(metavar="A:B", help="rename column A to B")] = None,
    drop_column: Annotated[list[str] | None, typer.Option(metavar="N", help="drop a column")] = None,
    widen_column: Annotated[
        list[str] | None, typer.Option(metavar="N:T", help="widen the type; 'N:T null' allows nulls")
    ] = None,
    ttl: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="replace all TTL rules; '' removes them")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="P", help="another storage policy")] = None,
    setting: Annotated[list[str] | None, typer.Option(metavar="K=V", help="a table setting")] = None,
    replicated: Annotated[
        bool | None,
        typer.Option(
            "--replicated/--not-replicated",
            help="convert to or from a replicated table",
        ),
    ] = None,
    keeper_path: Annotated[str | None, typer.Option(metavar="PATH", help="with --replicated: Keeper path")] = None,
    replica: Annotated[
        str | None, typer.Option(metavar="NAME", help="with --replicated: replica name; default: {replica}")
    ] = None,
) -> None:
    """Change a table without rewriting data. Run an interrupted change again to continue it."""
    import msgspec

    from tiering.table import definitions

    changes = (add_column, rename_column, drop_column, widen_column, ttl, policy, setting)
    if replicated is not None:
        if any(one is not None for one in changes):
            raise UsageError("a conversion cannot be combined", hint="alter the table before or afterwards")
        _convert(session, table, keeper_path, replica, to_replicated=replicated)
        return
    if keeper_path is not None or replica is not None:
        raise UsageError("--keeper-path and --replica are for replicated tables", hint="add --replicated")
    store = session.store()
    old = new = store.definition_to_change(table)
    if old.version not in {one.version for one in store.definitions() if one.uuid == old.uuid}:
        session.output.note(f"{old.full_name} continues from its readable definitions")
    for text in add_column or ():
        new = definitions.add_column(new, text, default=default)
    for text in rename_column or ():
        new = definitions.rename_column(new, text)
    for text in drop_column or ():
        session.confirm(f"Drop column {text} of {table}?")
        new = definitions.drop_column(new, text)
    for text in widen_column or ():
        new = definitions.widen_column(new, text)
    if ttl is not None:
        new = definitions.set_ttl(new, [rule for rule in ttl if rule.strip()])
    if policy is not None:
        new = definitions.set_policy(new, policy)
    if setting:
        new = definitions.set_settings(new, setting)
    if new is old:
        raise UsageError("nothing to change was named", hint="use --add-column, --ttl, --policy …; see --help")
    if session.dry_run:
        from tiering.catalog.tables import check_change

        check_change(store.context, old, new)
        new = msgspec.structs.replace(new, version=old.version + 1)
    else:
        new = store.alter_table(old, new, reason=f"alter table {table}")
    _answer(session, new, f"{_would(session, 'Altered')} table {table}; its definition is now version {new.version}.")


def _convert(
    session: Session, table: str, keeper_path: str | None, replica: str | None, *, to_replicated: bool
) -> None:
    from tiering.engine import replication

    context, definition = session.store().context, session.store().definition(table)
    work = replication.work()
    convert = work.to_replicated if to_replicated else work.to_plain
    done = convert(context, definition, keeper_path, replica, dry_run=session.dry_run)
    if to_replicated and not session.dry_run:
        _tell_daemon(session, done.definition)
    if session.options.json:
        document = {"replica": done.replica, "keeper_path": done.keeper_path, "parts": done.parts}
        finished = {"finished": done.finished, "dry_run": session.dry_run}
        session.output.document({**_document(done.definition), **document, **finished})
        return
    line = session.output.line
    kept = f"{counted(done.parts, 'part')} {'keeps its name' if done.parts == 1 else 'keep their names'}"
    if to_replicated:
        line(f"{_would(session, 'Made')} {table} a replicated table, at {done.keeper_path}: {kept}.")
        line(f"  This machine {'would be' if session.dry_run else 'is'} its replica {done.replica}.")
    else:
        line(f"{_would(session, 'Made')} {table} a plain table of this machine: {kept}.")
    if done.finished:
        line("  It was begun before, and is finished now." if not session.dry_run else "  It was begun before.")


def rewrite(session: Session, table: TableName) -> None:
    """Rewrite parts that are older than the table's columns, for other engines that read the files.

    Query results do not change. Parts with the columns of today are unchanged.
    """
    from tiering.cli.commands.merge_here import merge_here
    from tiering.merge.request import MergeRequest
    from tiering.table.definitions import number_fields

    store = session.store()
    old = store.definition(table)
    new = number_fields(old)
    if new is not old:
        session.output.note(f"{_would(session, 'Gave')} ids to the nested fields of {table}")
        if not session.dry_run:
            store.alter_table(old, new, reason=f"ids of nested fields of {table}")
    merge_here(session, table, MergeRequest(rewrite=True))


def rename(
    session: Session, table: TableName, new: Annotated[str, typer.Argument(metavar="DB.NEW", help="the new name")]
) -> None:
    """Rename a table, also into another database. Pins, pauses, moves and backups stay with it."""
    from tiering.table.definitions import rename_table

    store = session.store()
    old = store.definition(table)
    changed = rename_table(old, new)
    if session.dry_run:
        from tiering.catalog.definitions import table_names
        from tiering.catalog.tables import check_change

        check_change(store.context, old, changed)
        table_names.require_free(store.context, changed)
    else:
        changed = store.alter_table(old, changed, reason=f"rename table {old.full_name} to {new}")
    _answer(session, changed, f"{_would(session, 'Renamed')} table {old.full_name} to {new}.")


def drop(session: Session, table: TableName) -> None:
    """Drop a table and all its parts, on every machine.

    Parts in a bucket can be restored during the retention; parts on local disks are gone.
    """
    store = session.store()
    gone = {left.definition.uuid: left.definition for left in store.dropped()}
    undefined = [one for one in store.unreadable() if one.is_called(table) and one.before is None]
    if undefined:
        _drop_undefined(session, undefined[0])
        return
    definition = gone.get(table) or store.definition_to_change(table)
    parts = store.context.catalog.parts(definition)
    size_bytes = sum(stored.facts.size_bytes for stored in parts)
    local = sum(1 for stored in parts if not store.disk(stored.disk).capabilities.remote)
    lost = f" Restore cannot bring back the {local:,} on local disks." if local else ""
    session.confirm(f"Drop table {table} with {counted(len(parts), 'part')} ({format_size(size_bytes)})?{lost}")
    if not session.dry_run:
        store.drop_table(table)
    document = {"table": table, "uuid": definition.uuid, "parts": len(parts), "bytes": size_bytes}
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
        return
    _tell(session)(
        f"{_would(session, 'Dropped')} table {table}: {counted(len(parts), 'part')}, {format_size(size_bytes)}."
    )


def _drop_undefined(session: Session, table: "UnreadableTable") -> None:
    """Of a table whose definition is lost only its files are known."""
    session.confirm(f"Drop table {table.called}, whose definition cannot be read, with all of its parts?")
    if not session.dry_run:
        session.store().drop_table(table.uuid)
    if session.options.json:
        session.output.document({"table": table.called, "uuid": table.uuid, "dry_run": session.dry_run})
        return
    _tell(session)(f"{_would(session, 'Dropped')} table {table.called}.")


def _tell_of_sample(session: Session, like: str, reshaping: "Reshaping") -> None:
    """Which columns it gave, and which partition it speaks for."""
    from tiering.insert.inputs.source_files import label_of
    from tiering.insert.samples import suggest_partition

    definition = reshaping.definition
    chosen = ", ".join(f"{column.name} {column.type}" for column in definition.columns)
    session.output.note(f"Columns by {label_of(like)}: {chosen}.")
    found = None if definition.partition_by else suggest_partition(like, reshaping, buckets=session.bucket_sources())
    if found is not None:
        session.output.note(
            f"Its first {counted(found.rows, 'row')} are of {found.first} to {found.last}: with --partition-by "
            f"'{found.partition_by}' parts move and expire by age."
        )


def _only_policy(session: Session) -> str:
    policies = session.loaded.config.policies
    if len(policies) == 1:
        return next(iter(policies))
    raise UsageError("which storage policy?", hint=f"use --policy with one of: {', '.join(policies)}")


def _schema_of(session: Session, path: str, renames: dict[str, str], *, flatten: bool, hive: bool) -> Any:
    import pyarrow as pa

    from tiering.insert.inputs.source_files import label_of
    from tiering.insert.inputs.sources import source_schema
    from tiering.insert.reshaping import flattened, renamed_schema

    schema = source_schema(path, session.bucket_sources(), hive=hive)
    schema = flattened(pa.RecordBatch.from_pylist([], schema)).schema if flatten else schema
    return renamed_schema(schema, renames, label_of(path))


def _refuse_existing(session: Session, table: str) -> None:
    if any(known.full_name == table for known in session.store().definitions()):
        raise AlreadyExists(f"table {table} exists already", hint="use --if-not-exists to keep it")


def _answer(session: Session, definition: Any, text: str) -> None:
    if session.options.json:
        session.output.document({**_document(definition), "dry_run": session.dry_run})
    else:
        _tell(session)(text)


def _tell(session: Session) -> "Callable[[str], None]":
    """What a dry run would do is its answer; what was done is no data."""
    return session.output.line if session.dry_run else session.output.report


def _would(session: Session, done: str) -> str:
    return f"Dry run: would have {done.lower()}" if session.dry_run else done


def _document(definition: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(definition)
    plain["table"] = definition.full_name
    plain["partition_by"] = [str(field) for field in definition.partition_by]
    plain["ttl"] = _ttl_texts(definition)
    plain["settings"] = msgspec.structs.asdict(definition.settings)
    return plain


def _ttl_texts(definition: Any) -> list[str]:
    from tiering.table.rule_texts import ttl_text

    return [ttl_text(rule) for rule in definition.ttl]


def _settings(definition: Any) -> Mapping[str, object]:
    """Those that differ from the defaults."""
    import msgspec

    plain: Mapping[str, object] = msgspec.to_builtins(definition.settings)
    return plain


def _shown(value: Any) -> str:
    return "" if value is None else repr(value)
