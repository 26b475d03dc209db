"""Makes the store that a release keeps as a sample of its formats, and writes what it answered.

    python -m tests.compat.make_store DIRECTORY

The store: an SSD, a bucket in a directory, the state and a backup repository, as one machine leaves them. A sample of a
release that is out is never made again: later versions must read it (`test_kept_store.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.compat.kept_log import captured
from tiering.cli import main as cli

CONFIG = """
disks:
  ssd: {{type: local, path: {home}/ssd}}
  s3: {{type: object_disk, url: "file://{home}/bucket/"}}
policies:
  hot_cold: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
  cold: {{volumes: [{{name: cold, disks: [s3]}}]}}
backup: {{repository: "file://{home}/backups/"}}
state_path: {home}/state
"""
KEPT = ("ssd", "bucket", "backups", "state")
TABLES = ("demo.events", "demo.keys", "demo.sums", "demo.nested", "demo.archive")
QUERIES = tuple(f"SELECT * FROM {table} ORDER BY ALL" for table in TABLES)


class Answer(NamedTuple):
    """What a command line answered."""

    code: int
    document: Any


class Home:
    """A machine whose store lies below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "frostline.yaml"
        directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(CONFIG.format(home=directory))
        self.config.chmod(0o600)

    def ask(self, *words: str) -> Answer:
        """Run a command line with `--json`."""
        code, text = captured(cli.run, ["--json", "--config", str(self.config), *words])
        return Answer(code, json.loads(text) if text.strip() else None)

    def run(self, *words: str) -> Any:
        """Run a command line that succeeds; what it answers."""
        answer = self.ask(*words)
        if answer.code:
            raise AssertionError(f"{' '.join(words)}: exit {answer.code}: {answer.document}")
        return answer.document

    def facts(self) -> dict[str, Any]:
        """What must be the same for ever: rows, parts with their rows, and commits with their kinds."""
        parts = self.run("parts", "--all")["parts"]
        return {
            "rows": {query: self.run("query", query)["rows"] for query in QUERIES},
            "parts": sorted([part["table"], part["disk"], part["part"], part["rows"], part["state"]] for part in parts),
            "commits": [[entry["revision"], entry["kind"]] for entry in self.run("log", "s3")["entries"]],
        }


def fill(home: Home) -> None:
    """Write with every kind of commit, part, partition, merge mode and definition."""
    files = home.directory / "files"
    files.mkdir()

    def file(name: str, text: str) -> str:
        (files / name).write_text(text)
        return str(files / name)

    events = file("events.csv", "time,host,value\n" + "".join(_events()))
    create, hot = ("table", "create"), ("--policy", "hot_cold")
    columns = ("--column", "time:timestamp[s]", "--column", "host:string", "--column", "value:float64")
    by = ("--order-by", "host,time", "--partition-by", "month(time)")
    home.run(*create, "demo.events", *columns, *by, *hot, "--ttl", "400d on time to volume cold")
    home.run(*create, "demo.archive", *columns, *by, "--policy", "cold")
    home.run("insert", "demo.events", events)
    home.run("insert", "demo.events", events)  # known by its digests: nothing comes in
    home.run(
        "insert",
        "demo.events",
        file("late.csv", "time,host,value\n2025-01-31T23:59:59,a,\n2025-03-01T00:00:00,z,-0.0\n"),
    )
    home.run("merge", "demo.events", "--final", "--partition", "202501")
    home.run("move", "demo.events", "--partition", "202501", "--to-volume", "cold")
    home.run("move", "demo.events", "--partition", "202502", "--to-volume", "cold", "--keep-source")
    home.run("table", "alter", "demo.events", "--add-column", "tag:string", "--rename-column", "value:reading")
    home.run("insert", "demo.events", file("new.csv", "time,host,reading,tag\n2025-03-02T00:00:00,b,2.5,x\n"))

    home.run("insert", "demo.archive", events)
    home.run("insert", "demo.archive", file("more.csv", "time,host,value\n2025-01-05T00:00:00,m,9\n"))
    home.run("merge", "demo.archive", "--cold", "--final", "--partition", "202501")
    home.run("partition", "drop", "demo.archive", "202502", "--yes")
    head = home.run("log", "s3")["entries"]
    drop = max(entry["revision"] for entry in head)
    home.run("undo", "s3", str(drop), "--yes")
    home.run("partition", "detach", "demo.archive", "202502", "--yes")
    home.run("partition", "attach", "demo.archive", "202502")
    home.run(
        "insert",
        "demo.archive",
        file("again.csv", "time,host,value\n2025-02-01T00:00:00,q,1\n"),
        "--replace-partitions",
    )

    key = ("--column", "k:int64", "--column", "v:int64", "--column", "gone:bool", "--order-by", "k")
    home.run(*create, "demo.keys", *key, "--merge-mode", "replacing:v,gone", "--partition-by", "truncate(10, k)", *hot)
    home.run("insert", "demo.keys", file("k1.csv", "k,v,gone\n-9223372036854775808,1,false\n1,1,false\n2,1,false\n"))
    home.run("insert", "demo.keys", file("k2.csv", "k,v,gone\n1,2,true\n2,2,false\n9223372036854775807,1,false\n"))
    home.run("merge", "demo.keys", "--final")
    number = ("--column", "k:string", "--column", "n:decimal(20,2)", "--order-by", "k")
    home.run(*create, "demo.sums", *number, "--merge-mode", "summing:n", *hot)
    home.run("insert", "demo.sums", file("s1.csv", "k,n\na,1.25\nb,2\n"))
    home.run("insert", "demo.sums", file("s2.csv", "k,n\na,0.75\nc,3\n"))
    home.run("merge", "demo.sums", "--final")
    nested = file(
        "nested.json",
        '{"id":1,"user":{"name":"ä","tags":["x","y"]},"at":"2025-01-01T00:00:00.123456"}\n{"id":2,"user":null,"at":null}\n',
    )
    home.run(*create, "demo.nested", "--like", nested, "--order-by", "id", *hot)
    home.run("insert", "demo.nested", nested)
    home.run(*create, "demo.gone", *number, *hot)
    home.run("insert", "demo.gone", file("g.csv", "k,n\na,1\n"))
    home.run("table", "drop", "demo.gone", "--yes")
    home.run("snapshot", "s3")
    home.run("backup", "init")
    home.run("backup", "create", "first")
    home.run("insert", "demo.events", file("last.csv", "time,host,reading,tag\n2025-03-03T00:00:00,c,3.5,y\n"))
    home.run("backup", "create", "second")
    shutil.rmtree(files)


def _events() -> Iterator[str]:
    for day in range(1, 60, 3):
        yield f"2025-{1 + day // 31:02}-{1 + day % 28:02}T{day % 24:02}:00:00,{'abc'[day % 3]},{day / 4}\n"


def main(target: Path) -> None:
    """Make the store in `target`, which must not exist."""
    home = Home(target)
    with mock.patch.dict(os.environ, {"LOGNAME": "alice"}), mock.patch("socket.gethostname", return_value="machine-a"):
        fill(home)
        facts = home.facts()
    (target / "answers.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    home.config.unlink()
    for path in (*target.rglob("reserve"), *target.rglob("*.lock")):  # made again when they are missing
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
