"""The story that `frostline demo --replicas 3` tells: a table on several machines, its cold parts in one bucket, one of
the machines lost and back. Every step is a command of the command line; the machines are homes of their own, whose
parts this process gives to the others, as a daemon on each does.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from oplog.errors import Damaged
from tiering.cli.demo.directory import begin, write_configuration
from tiering.cli.demo.guided_demo import Story, near
from tiering.config.units import counted
from tiering.engine.store import Store
from zerocopy.execution import following
from zerocopy.keeper import packaged

TABLE = "web.hits"
ROWS = 1000
"""That each machine inserts."""
COUNT = f"SELECT count(*) AS hits, count(DISTINCT url) AS urls FROM {TABLE}"


def run_guided_demo(directory: Path, replicas: int, confirm: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo in the directory; returns what all replicas have at its end. `confirm` is asked before anything but
    an earlier demo is deleted there. Raises when a replica has anything else, and `UsageError` saying what to install
    where there is no ZooKeeper."""
    started = time.monotonic()
    packaged.find_jars()
    packaged.find_java()
    begin(directory, confirm)
    with ExitStack() as stack:
        port = stack.enter_context(_zookeeper(directory / "zookeeper"))
        story = _Replicas(directory, [chr(ord("a") + number) for number in range(replicas)], port)
        stack.callback(story.close)
        _create(story)
        _insert(story)
        _merge(story)
        _move(story)
        _lose(story)
        facts = story.agree("at the end")
        seconds = round(time.monotonic() - started, 1)
        story.say(f"\nAll of it worked, in {seconds:.0f} s; the ZooKeeper ends with this command.")
        return {"directory": str(directory), "seconds": seconds, "replicas": story.names, **facts}


class _Replicas(Story):
    """The machines."""

    def __init__(self, directory: Path, names: list[str], port: int) -> None:
        super().__init__(directory)
        self.names = names
        self._serving: dict[str, Store] = {}
        for name in names:
            self._configure(name, port)

    def home(self, name: str) -> Path:
        return self.directory / name

    def on(self, name: str, *arguments: str, code: int = 0) -> str:
        """Show and run a command on the machine."""
        return self.run("-c", near(self.home(name) / "frostline.yaml"), *arguments, code=code)

    def ask_on(self, name: str, *arguments: str) -> Any:
        return self.ask("-c", str(self.home(name) / "frostline.yaml"), *arguments)

    def serve(self, name: str) -> None:
        """Give the machine's parts to the others from now on."""
        store = self._serving[name] = Store.open(self.home(name) / "frostline.yaml")
        following.serve(store.context)

    def stop(self, name: str) -> None:
        if (store := self._serving.pop(name, None)) is not None:
            store.close()

    def close(self) -> None:
        for name in list(self._serving):
            self.stop(name)

    def sync_all(self, *, but: str = "") -> None:
        for name in self.names:
            if name != but:
                self.on(name, "replica", "sync", TABLE)

    def agree(self, when: str) -> dict[str, Any]:
        """What the table answers, the same on all."""
        answers = {name: self.ask_on(name, "query", COUNT)["rows"] for name in self.names}
        parts = {name: self.ask_on(name, "parts", TABLE)["parts"] for name in self.names}
        known = {name: sorted((part["part"], part["rows"]) for part in parts[name]) for name in self.names}
        first = self.names[0]
        for name in self.names:
            if (answers[name], known[name]) != (answers[first], known[first]):
                raise Damaged(
                    f"the demo found a difference {when}: {first} has {answers[first]} in {known[first]}, "
                    f"{name} has {answers[name]} in {known[name]}"
                )
        hits, urls = answers[first][0]
        self.say(f"   Checked: {counted(hits, 'row')}, each once, in the same parts on {', '.join(self.names)}.")
        return {"rows": hits, "urls": urls, "parts": [part for part, _ in known[first]]}

    def _configure(self, name: str, port: int) -> None:
        home = self.home(name)
        home.mkdir(parents=True)
        plain = {
            "state_path": str(home / "state"),
            "disks": {
                "ssd": {"type": "local", "path": str(home / "ssd")},
                "s3": {"type": "object_disk", "url": f"{(self.directory / 'bucket').as_uri()}/"},
            },
            "policies": {
                "hot_cold": {"volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]}
            },
            "keeper": {"hosts": [f"127.0.0.1:{port}"], "session_timeout_seconds": 4},
            "interserver": {"secret": "the-secret-of-a-demo", "port": 0},
            "macros": {"shard": "01", "replica": name},
        }
        write_configuration(self.directory, home / "frostline.yaml", yaml.safe_dump(plain, sort_keys=False))
        (home / "frostline.yaml").chmod(0o600)


def _create(story: _Replicas) -> None:
    story.chapter(
        "One table on several machines",
        f"Machines {', '.join(story.names)}: each has an SSD of its own, all have the same bucket. The first one",
        "creates the table, the others join it; what they agree upon is in a ZooKeeper.",
    )
    first, *others = story.names
    columns = ("--column", "ts:timestamp", "--column", "url:string", "--order-by", "url,ts")
    story.on(first, "table", "create", TABLE, "--replicated", *columns)
    for name in others:
        story.on(name, "table", "create", TABLE, "--replicated")
    for name in story.names:
        story.serve(name)


def _insert(story: _Replicas) -> None:
    story.chapter("Insert anywhere", "Each machine inserts rows of its own. The same rows again, elsewhere, are one.")
    for number, name in enumerate(story.names):
        _write_rows(story.home(name) / "rows.csv", number)
        story.on(name, "insert", TABLE, near(story.home(name) / "rows.csv"))
    first, second = story.names[:2]
    again = story.ask_on(second, "insert", TABLE, str(story.home(first) / "rows.csv"))
    if again["rows"]:
        raise Damaged(f"inserting the same rows on {second} added {again['rows']}")
    story.say(f"   The rows of {first} again, on {second}: none went in, they are known.")
    story.sync_all()
    story.agree("after the inserts")


def _merge(story: _Replicas) -> None:
    story.chapter("Merges that all make alike", "One machine proposes, each makes the same bytes by itself.")
    story.on(story.names[0], "merge", TABLE, "--final")
    story.sync_all(but=story.names[0])
    story.agree("after the merge")
    files = {name: _files(story.home(name) / "ssd") for name in story.names}
    if any(files[name] != files[story.names[0]] for name in story.names):
        raise Damaged("the demo found that the replicas made different files of one merge")
    story.say("   Every file of it is the same on all of them, byte for byte.")


def _move(story: _Replicas) -> None:
    story.chapter(
        "Cold once for all", "One machine moves the part to the bucket; the others take theirs off their SSDs."
    )
    first, second = story.names[:2]
    (part,) = (part["part"] for part in story.ask_on(second, "parts", TABLE)["parts"])
    story.on(second, "move", TABLE, "--part", part, "--to-disk", "s3")
    story.sync_all(but=second)
    for name in story.names:
        if left := _files(story.home(name) / "ssd"):
            raise Damaged(f"the demo found {counted(len(left), 'file')} of parts on the SSD of {name} after the move")
    story.on(first, "parts", TABLE)
    story.agree("after the move")


def _lose(story: _Replicas) -> None:
    first, lost = story.names[0], story.names[-1]
    story.chapter("A machine is lost", f"{lost} is lost, with its SSD and all its state.")
    story.stop(lost)
    for name in ("ssd", "state"):
        story.say(f"\n   $ rm -r {near(story.home(lost) / name)}")
        shutil.rmtree(story.home(lost) / name)
    _write_rows(story.home(first) / "more.csv", len(story.names))
    story.on(first, "insert", TABLE, near(story.home(first) / "more.csv"))
    for name in story.names[1:-1]:
        story.on(name, "replica", "sync", TABLE)
    story.on(first, "replica", "status", TABLE, code=4)
    story.chapter(
        "And another one joins", "Its name is released first; the data in the bucket is available immediately."
    )
    story.on(first, "replica", "drop", TABLE, lost, "--yes")
    story.on(lost, "table", "create", TABLE, "--replicated")
    story.on(lost, "replica", "sync", TABLE)
    story.serve(lost)
    story.on(first, "replica", "sync", TABLE)
    story.on(first, "replica", "status", TABLE)


def _write_rows(path: Path, number: int) -> None:
    lines = ["ts,url", *(f"2026-01-{1 + row % 28:02}T00:00:{number:02},/{number}/{row}" for row in range(ROWS))]
    path.write_text("\n".join(lines))


def _files(disk: Path) -> dict[str, bytes]:
    """The files of the parts on a local disk."""
    places = [place.parent for place in disk.glob("store/*/*/*/part.json")]
    return {f"{place.name}/{file.name}": file.read_bytes() for place in places for file in place.iterdir()}


@contextmanager
def _zookeeper(directory: Path) -> Iterator[int]:
    """A server for as long as the context lasts; gives its port."""
    port = _free_port()
    command = packaged.command(directory, port, tick_milliseconds=200)
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=directory
        )
    try:
        packaged.wait_until_ready(port, lambda: process.poll() is not None, seconds=60)
        yield port
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
