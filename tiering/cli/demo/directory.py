"""The directory of a demo: made empty, and replaced only where it holds nothing but what a demo made."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from disks.config import ObjectDiskConfig
from disks.object_disk.history import past_at
from disks.object_disk.references import inventory
from disks.object_disk.sharing.prefix import log_in
from disks.stores.open import open_store
from oplog.errors import FrostlineError, Refused
from oplog.revision import OPERATIONS_PREFIX, SCHEMA_VERSION_KEY, SNAPSHOTS_PREFIX
from tiering.table import schema

MARKER = ".frostline-demo"
_OWN_TABLES = ("nyc.flights", "nyc.weather", "web.hits")
_OWN_BACKUPS = ("first", "second")
_MACHINES = ("new-machine", *"abcdefghi")
_HOME = ("ssd", "bucket", "state", "backups", "data", "zookeeper", "plan.json", "rows.csv", "more.csv", MARKER)
_INSIDE = {"data": ("flights.csv.zip", "weather.csv", "everything.csv"), "ssd": ("store", ".frostline")}
_SHOWN = 5


def begin(directory: Path, confirm: Callable[[str], None]) -> None:
    """Make the directory, empty but for its marker. What a demo left there is removed; `confirm` is asked where there
    is anything else with it. Raises `Refused` for a directory that no demo made."""
    if directory.is_dir() and any(directory.iterdir()):
        if not (directory / MARKER).is_file():
            raise Refused(
                f"{directory} is not empty and no earlier demo", hint="name another directory: frostline demo DIR"
            )
        if strangers := sorted(set(_strangers(directory))):
            more = f" and {len(strangers) - _SHOWN} more" if len(strangers) > _SHOWN else ""
            confirm(
                f"{directory} holds more than a demo made: {', '.join(strangers[:_SHOWN])}{more}. Delete all of it?"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).write_text("Made by 'frostline demo', which replaces this directory when it runs again.\n")


def write_configuration(directory: Path, path: Path, text: str) -> None:
    """Write a configuration of the demo, and note in the marker what it is: one that somebody changes is theirs."""
    with (directory / MARKER).open("a") as marker:
        marker.write(f"{hashlib.sha256(text.encode()).hexdigest()}  {path.relative_to(directory)}\n")
    path.write_text(text)
    path.chmod(0o644)  # whatever the umask: a configuration that others may write is not trusted


def _strangers(directory: Path) -> Iterator[str]:
    """Tables, backups and files that no demo made."""
    homes = [directory, *(directory / name for name in _MACHINES if (directory / name).is_dir())]
    written = (directory / MARKER).read_text(errors="replace").split("\n")
    for home in homes:
        for path in home.iterdir():
            name = str(path.relative_to(directory))
            if path.name == "frostline.yaml":
                if f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}" not in written:
                    yield f"the configuration {name}"
            elif path.name not in _HOME and not (home == directory and path.name in _MACHINES):
                yield name
        for inside, own in _INSIDE.items():
            there = home / inside
            names = {path.name for path in there.iterdir()} if there.is_dir() else set()
            yield from (str((there / name).relative_to(directory)) for name in names.difference(own))
        backups = home / "backups" / "backups"
        names = {path.name for path in backups.iterdir()} if backups.is_dir() else set()
        yield from (f"backup {name}" for name in names.difference(_OWN_BACKUPS))
        for local in (home / "ssd").glob("store/*/*/table.json"):
            yield from _foreign_table(local.read_bytes(), str(local.relative_to(directory)))
        for marker in (home / "bucket").rglob(SCHEMA_VERSION_KEY):
            yield from _in_bucket(marker.parent, directory)


def _in_bucket(prefix: Path, directory: Path) -> Iterator[str]:
    """Tables that the log of a bucket names: the SSD with their definitions may be gone."""
    place = str(prefix.relative_to(directory))
    try:
        with closing(open_store(ObjectDiskConfig(url=f"{prefix.as_uri()}/", read_only=True))) as store:
            found = inventory([*store.list(OPERATIONS_PREFIX), *store.list(SNAPSHOTS_PREFIX)])
            with closing(past_at(log_in(store), found, found.head)) as past:
                rows = [row for row in past.rows() if row.path.rpartition("/")[2] == schema.TABLE_FILE]
                for row in rows:
                    yield from _foreign_table(row.inline or b"", f"{place}/{row.path}")
    except FrostlineError:
        yield f"{place}, which cannot be read"


def _foreign_table(data: bytes, path: str) -> Iterator[str]:
    try:
        name = schema.decode(data, path=path).full_name
    except FrostlineError:
        yield f"{path}, which cannot be read"
        return
    if name not in _OWN_TABLES:
        yield f"table {name}"
