"""One run of the command line: the options, the output, and the store once a verb asks for it."""

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from disks.workers.python_gc import end_start
from oplog.errors import NotFound, PartlyDone, Refused, error_of_kinds
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.exit_codes import FOUND_SOMETHING, NOTHING_TO_DO, Finished
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.output import Output, counted
from tiering.config.escaping import visible
from tiering.config.secrets import without_passwords
from tiering.config.units import parse_size
from tiering.daemon.log_lines import TextLines
from tiering.plugins import Plug

if TYPE_CHECKING:  # heavy: most of a `--help` would be these imports
    from collections.abc import Sequence

    from disks.base import Disk
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.stores.wrappers.limit import Limiter
    from disks.workers.progress import Progress
    from disks.workers.runner import ClusterRunner
    from tiering.catalog.catalog import DroppedTable
    from tiering.catalog.copies.set_aside import SetAsidePart
    from tiering.catalog.identities.faults import Fault
    from tiering.catalog.identities.identity import Identities
    from tiering.config.reading import LoadedConfig
    from tiering.config.settings import Config
    from tiering.engine.store import Store
    from tiering.insert.inputs.bucket_sources import BucketSources

BEGIN_OR_FIND = "create one with 'frostline table create', or point to one with --config or FROSTLINE_HOME"
OWN_LOGGERS = ("frostline", "tiering", "disks", "oplog", "restore", "backup", "zerocopy", "tui", "spark_tiering")
"""Only these speak below WARNING: at DEBUG the S3 clients write session tokens and keys."""


class SparkRunners(Protocol):
    """Runs the work of verbs that take `--spark`."""

    def runner(
        self, config: "Config", *, app: str, master: str | None, verbose: bool
    ) -> "AbstractContextManager[ClusterRunner]":
        """What runs work as Spark jobs, on `master` or where the configuration says. Spark is stopped at the end.

        Raises `UsageError` with what to install when pyspark or Java is missing.
        """


_spark = Plug[SparkRunners]("spark")


class Session:
    """Options, output and the lazily opened store. A context manager: leaving it closes the store."""

    def __init__(self, options: GlobalOptions) -> None:
        self.options = options
        self.output = Output(json=options.json, quiet=options.quiet, color=not options.no_color)
        self._stack = ExitStack()
        self._store_stack = self._stack.enter_context(ExitStack())
        self._store: Store | None = None
        self._looked: Store | None = None
        self._loaded: LoadedConfig | None = None
        self._limiter: Limiter | None = None
        self._opened: Config | None = None
        self._begins = self._may_begin = False

    def __enter__(self) -> Self:
        _set_up_logging(self.options.verbose)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def dry_run(self) -> bool:
        return self.options.dry_run

    @property
    def loaded(self) -> "LoadedConfig":
        """The configuration and where it came from."""
        if self._loaded is None and self.options.store is not None:
            self._loaded = self._of_url(self.options.store)
        if self._loaded is None:
            from tiering.config.reading import load_from

            self._loaded = load_from(self.options.config)
        return self._loaded

    def _of_url(self, url: str) -> "LoadedConfig":
        from oplog.errors import UsageError
        from tiering.config.reading import LoadedConfig, checked
        from tiering.engine.by_url import config_of

        if self.options.config is not None:
            raise UsageError("--store and --config name two stores", hint="give one of them")
        return LoadedConfig(checked(config_of(url, os.environ)), None)

    def begin(self) -> None:
        """The verb may make the store when there is none: call this before anything is opened."""
        self.require_configured()
        self._begins, self._may_begin = not self.dry_run, True

    @property
    def config(self) -> "Config":
        """The configuration to open a store by. Where there is none, its state lies in a directory that goes with this
        run: a verb that only reads makes no store, and the configured directory may be a mistake."""
        if self._opened is None:
            self._opened = config = self.loaded.config
            if not self._begins and not config.state_directory.exists():
                from tempfile import TemporaryDirectory

                from msgspec.structs import replace

                scratch = self._stack.enter_context(TemporaryDirectory(prefix="frostline-"))
                self._opened = replace(config, state_path=scratch)
                if self.identities(list(config.disks)).is_begun:
                    self._opened = config
        return self._opened

    def require_configured(self) -> None:
        """Raise `Refused` for a store that is opened by a URL: it is only read."""
        if self.options.store is not None:
            raise Refused(
                f"--store only reads, and {self.options.store} would be written to",
                hint="configure the bucket as a disk to write to it",
            )

    def no_store(self) -> str:
        """What to say where there is no store."""
        from tiering.config.disk_locations import place_of
        from tiering.config.finding import default_home

        places = [f"{name} ({place_of(disk, os.environ).text})" for name, disk in self.loaded.config.disks.items()]
        file = self.loaded.file
        by = f"by {file}" if file is not None else f"by default below {default_home(os.environ)}"
        return f"there is no store: nothing was written to {' or '.join(places)} yet, where it would be {by}"

    def store(self, freshness: Freshness = Freshness.EVERY_FILE) -> "Store":
        """The open store. Recovery after a crash runs first, unless this is a dry run. Less `freshness` is for verbs
        that delete nothing, or look again before they do."""
        if self._store is None:
            self._store = self._store_stack.enter_context(self._opened_store(freshness))
            if not self._may_begin and not self._store.is_begun:
                self._tell_no_store()
            self._tell_faults(self._store.faults())
            self._tell_unreachable(self._store)
            for sentence in self._store.recovered:
                self.output.note(f"recovered: {sentence}")
            for gone in self._store.dropped():
                self.output.note(_left_over(gone))
            self._tell_broken(self._store)
            end_start()
            catalog = self._store.context.catalog
            for sentence in (*catalog.unproved, *catalog.unexplained):
                self.output.note(sentence)
        return self._store

    def _opened_store(self, freshness: Freshness) -> "Store":
        from tiering.engine.store import Store

        options: dict[str, Any] = {
            "actor": actor(),
            "workers": self.options.workers,
            "limiter": self.limiter(),
            "progress": self.progress(),
            "partial": self.options.partial,
            "freshness": freshness,
        }
        if self.options.store is not None:
            from tiering.engine.by_url import open_by_url

            return open_by_url(self.loaded.config, **options)
        return Store.open(self.config, recover=not self.dry_run, **options)

    def end_store(self) -> None:
        """Close the open store: the next one counts what this one wrote to disks."""
        self._store_stack.close()
        self._store = None

    def publish(self) -> None:
        """Let publications follow what the verb changed. What fails is said, and tried again by the next verb."""
        if self._store is not None and not self.dry_run:
            from tiering.iceberg.follow import publish_due

            for problem in publish_due(self._store):
                self.output.note(problem)

    def unrecovered(self) -> "Store":
        """The store as it lies there, for a look: nothing is recovered, and nothing said. The open one where there is
        one."""
        from tiering.engine.store import Store

        if self._store is None and self._looked is None:
            self._looked = self._stack.enter_context(Store.open(self.config, actor=actor(), recover=False))
        store = self._store or self._looked
        assert store is not None
        return store

    def _tell_broken(self, store: "Store") -> None:
        tables = store.unreadable()
        if tables:
            self.output.beside["unreadable_tables"] = [table.document for table in tables]
        for table in tables:
            self.output.note(f"{table.text}; 'frostline doctor' shows what to do")
        for broken in store.context.catalog.broken:
            if not any(broken in table.broken for table in tables):
                self.output.note(f"broken: {broken.text}")

    def _tell_no_store(self) -> None:
        self.output.beside["no_store"] = self.no_store()
        if not self.options.json:  # with it stderr is for the one document of an error
            self.output.note(f"{self.no_store()}; {BEGIN_OR_FIND}")

    def _tell_faults(self, faults: "tuple[Fault, ...]") -> None:
        if faults:
            self.output.beside["broken_disks"] = [
                {"disk": fault.disk, "kind": fault.kind, "what": without_passwords(fault.error.message)}
                for fault in faults
            ]
        for fault in faults:
            self.output.note(f"broken: {fault.error.message}; {fault.error.hint}")

    def _tell_unreachable(self, store: "Store") -> None:
        names = store.unreachable()
        if not names:
            return
        self.output.beside["unreachable"] = names
        for name in names:
            disk = store.disk(name)
            self.output.note(f"{disk.unreachable}; what it holds is shown as of revision {disk.revision}")

    def tell_set_aside(self, gaps: "Sequence[SetAsidePart]") -> None:
        """Say beside the answer that it lacks the rows of parts that a repair set aside."""
        if not gaps:
            return
        self.output.beside["parts_set_aside"] = [
            {"table": gap.table, "disk": gap.disk, "part": gap.part, "reason": gap.reason, "rows": gap.rows}
            for gap in gaps
        ]
        for table, disk in sorted({(gap.table, gap.disk) for gap in gaps}):
            rows = [gap.rows for gap in gaps if (gap.table, gap.disk) == (table, disk)]
            known = counted(sum(count or 0 for count in rows), "row") + ("" if None not in rows else " or more")
            self.output.note(
                f"set aside: {counted(len(rows), 'part')} of {table} on disk {disk} with {known}, in no answer;"
                " 'frostline fsck' names them"
            )

    def disk(self, name: str) -> "Disk":
        """One disk by itself, its state as it is: nothing is refreshed, recovered or rebuilt. Raises `Refused` or
        `DiskUnreachable` for one that is not the disk that its name stands for."""
        disk = self.identities([name]).disks[name]
        if (error := disk.broken) is not None:
            raise error
        return disk

    def identities(self, names: "list[str]") -> "Identities":
        """The same for several, with what is wrong with which disk. Raises `NotFound`."""
        from disks.registry import open_disk
        from tiering.catalog.identities.identity import Identities
        from tiering.config.disk_locations import place_of
        from tiering.engine import replication
        from tiering.journal.journal import Journal

        config = self.config
        if unknown := [name for name in names if name not in config.disks]:
            raise NotFound(f"No such disk: {unknown[0]}", hint=f"the disks are: {', '.join(sorted(config.disks))}")
        disks: dict[str, Disk] = {}
        for name in names:
            disks[name] = open_disk(name, config.disks[name], config.state_directory, limiter=self.limiter())
            self._stack.callback(disks[name].close)
        journal = Journal(config.state_directory)
        self._stack.callback(journal.close)
        places = {name: place_of(disk, os.environ).text for name, disk in config.disks.items()}
        identities = Identities(disks, places, journal)
        identities.look()
        self._stack.callback(replication.put_marks(disks.values(), config))
        return identities

    def object_disk(self, name: str) -> "LoggedDisk":
        """The same for a disk that must have an operations log."""
        from disks.kinds import with_commits

        return with_commits(self.disk(name))

    def parts_under_way(self) -> list[tuple[str, str]]:
        """(table uuid, part) of the moves that the journal calls unfinished, or that were to keep their source."""
        from tiering.journal.journal import Journal

        journal = Journal(self.config.state_directory)
        try:
            kept = [
                record for record in journal.work.moves(limit=10_000) if record.keep_source and record.state == "done"
            ]
            return [(record.table_uuid, record.part) for record in (*journal.work.moves(active=True), *kept)]
        finally:
            journal.close()

    def bucket_sources(self) -> "BucketSources":
        """What finds the objects that s3:// URLs name."""
        from tiering.insert.inputs.bucket_sources import BucketSources

        return BucketSources(self.loaded.config, self.limiter())

    def limiter(self) -> "Limiter":
        """What all stores of this run share; flags override the configuration."""
        if self._limiter is None:
            self._limiter = self.new_limiter()
        return self._limiter

    def new_limiter(self) -> "Limiter":
        """Another with the same limits, for what must not wait for the rest of the run."""
        from disks.stores.wrappers.limit import Limiter

        limits = self.loaded.config.limits
        given = self.options.bwlimit
        return Limiter(
            bytes_per_second=parse_size(given) if given else limits.bytes_per_second,
            requests_per_second=self.options.tpslimit or limits.requests_per_second,
            max_concurrency=max(self.options.workers or limits.workers, 16),
        )

    def spark_runner(self, app: str, master: str | None = None) -> "ClusterRunner":
        """What runs work as Spark jobs, on `master` or where the configuration says. Spark is stopped at the end.

        Raises `UsageError` with what to install when pyspark or Java is missing.
        """
        config, verbose = self.loaded.config, self.options.verbose > 0
        return self._stack.enter_context(_spark().runner(config, app=app, master=master, verbose=verbose))

    def progress(self) -> "Progress":
        """Where long work shows how far it is."""
        from tiering.cli.frame.terminal_progress import choose

        options = self.options
        return choose(quiet=options.quiet, no_progress=options.no_progress, as_json=options.json_progress)

    # -- answers and endings -----------------------------------------------------------------------------------------

    def confirm(self, question: str, *, look: str = "--dry-run shows what would happen") -> None:
        """Return when the user agrees. Without --yes and without a terminal: `Refused`, never a wait for nobody; then
        `look` says how to look before."""
        if self.options.yes or self.dry_run:
            return
        if self.options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Refused(
                f"{question} Needs confirmation.",
                hint=f"run it on a terminal, or add --yes; {look}",
            )
        print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Refused("Nothing was changed: not confirmed.", hint="answer y, or add --yes")

    def nothing_to_do(self, why: str) -> None:
        """Say so; with --error-on-nothing the exit code is 9."""
        self.output.note(why)
        if self.options.error_on_nothing:
            raise Finished(NOTHING_TO_DO)

    def found_something(self) -> None:
        """The verb did its work and found what it was looking for: exit 4."""
        raise Finished(FOUND_SOMETHING)


def actor() -> str:
    """Who commits, for the log: user@host."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def fail_if_partly(failed: int, succeeded: int, noun: str, kinds: Iterable[str] = ()) -> None:
    """Exit 3 when some items failed and some are done; when all failed, the exit code that the `kinds` of their errors
    share, else 1."""
    if not failed:
        return
    if succeeded:
        raise PartlyDone(
            f"{failed} of {failed + succeeded} {noun} failed", hint="the others are done; run it again to retry"
        )
    single = f"{noun.removesuffix('ies')}y" if noun.endswith("ies") else noun.removesuffix("s")
    message = f"all {failed} {noun} failed" if failed > 1 else f"the {single} failed"
    raise error_of_kinds(message, kinds, hint="the reasons are above; nothing was lost")


def _left_over(gone: "DroppedTable") -> str:
    name, disks = gone.definition.full_name, ", ".join(gone.disks)
    how = f"by a {gone.tombstone.by} of {gone.tombstone.actor}" if gone.tombstone is not None else "by an unknown user"
    return (
        f"table {name} was removed {how}; its parts on {disks} are hidden until that is undone: "
        f"'frostline table drop {gone.definition.uuid}' deletes it"
    )


def _set_up_logging(verbose: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    level = logging.WARNING if verbose == 0 else logging.INFO if verbose == 1 else logging.DEBUG
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level)
