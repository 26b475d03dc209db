"""A store of an SSD and a bucket in a directory, and the tools to put into the bucket what nobody wrote.

3,000 rows: 2,000 on the SSD in two parts, 1,000 in the bucket in one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from oplog.revision import SCHEMA_VERSION_KEY, blob_key, commit_key, parse_commit_key, parse_snapshot_key
from tests.command_line import Frostline
from tiering.cli import main as cli

TABLE = "demo.events"
ROWS = 3_000
CONFIG = """state_path: {home}/state
disks:
  ssd: {{type: local, path: {home}/ssd}}
  cold: {{type: object_disk, url: "file:{home}/bucket/", retention_seconds: 0}}
policies:
  tiers:
    volumes:
      - {{name: hot, disks: [ssd]}}
      - {{name: cold, disks: [cold]}}
"""

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Forged:
    """The store of one home."""

    home: Path
    frostline: Frostline

    @property
    def bucket(self) -> Path:
        return self.home / "bucket"

    # What somebody does

    def put(self, key: str, data: bytes) -> Path:
        """The object, whatever was there."""
        path = self.bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def blob(self, data: bytes, revision: int = 1) -> tuple[str, str]:
        """A blob of these bytes: its key and its SHA-256."""
        key = blob_key(revision)
        self.put(key, data)
        return key, hashlib.sha256(data).hexdigest()

    def head(self) -> int:
        """The newest revision of the log, of those that follow one another."""
        known = {parse_commit_key(f"operations/{path.name}") for path in (self.bucket / "operations").iterdir()}
        last = 0
        while last + 1 in known:
            last += 1
        return last

    def entry(self, revision: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.bucket / commit_key(revision)).read_bytes())
        return document

    def append(self, *operations: dict[str, Any], at: int | None = None, **fields: Any) -> str:
        """The next entry as anybody could write it who may write to the bucket; its key."""
        head = self.head()
        data = (self.bucket / commit_key(head)).read_bytes()
        document = {
            "format": 2,
            "revision": at or head + 1,
            "previous": hashlib.sha256(data).hexdigest(),
            "writer": "w",
            "time": "2026-01-01T00:00:00Z",
            "kind": "insert",
            "operations": list(operations),
            **fields,
        }
        key = commit_key(at or head + 1)
        self.put(key, json.dumps(document).encode())
        return key

    def create(self, path: str, data: bytes, **fields: Any) -> dict[str, Any]:
        """The operation that creates the file, with its blob."""
        key, sha256 = self.blob(data, self.head() + 1)
        return {"op": "create", "path": path, "size_bytes": len(data), "sha256": sha256, "key": key, **fields}

    def create_part(self, name: str, change: Change = lambda part: None) -> list[dict[str, Any]]:
        """Operations that create a part under the name, with the data and, but for the change, the `part.json` of the
        part that lies in the bucket."""
        part, data = self.cold_part()
        part["name"] = name
        file = part["files"][0]["name"]
        change(part)
        table = f"store/{part['table'][:3]}/{part['table']}"
        return [
            self.create(f"{table}/{name}/{file}", data),
            self.create(f"{table}/{name}/part.json", json.dumps(part).encode()),
        ]

    def cold_part(self) -> tuple[dict[str, Any], bytes]:
        """The `part.json` of the part in the bucket, and its data."""
        for revision in range(1, self.head() + 1):
            for operation in self.entry(revision)["operations"]:
                if operation.get("path", "").endswith("/part.json") and operation.get("inline"):
                    part = json.loads(base64.b64decode(operation["inline"]))
                if operation.get("path", "").endswith(".parquet"):
                    data = (self.bucket / operation["key"]).read_bytes()
        return part, data

    def rewrite_snapshot(self, change: Callable[[list[bytes]], list[bytes]]) -> str:
        """The newest snapshot with other rows, whole and with the right digest of its entry; its key."""
        path = max((self.bucket / "snapshots").iterdir())
        self._rewrite(path, lambda header, rows: (header, change(rows)))
        return f"snapshots/{path.name}"

    def _rewrite(
        self, path: Path, change: Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], list[bytes]]]
    ) -> None:
        plain = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        first, *rows, _ = plain.splitlines(keepends=True)
        header, rows = change(json.loads(first), rows)
        body = json.dumps(header).encode() + b"\n" + b"".join(rows)
        end = json.dumps({"files": len(rows), "sha256": hashlib.sha256(body).hexdigest()}).encode()
        path.write_bytes(zstandard.compress(body + end + b"\n"))

    def without(self, *fields: str, until: int | None = None) -> None:
        """The log as an older version would have written it: entries have none of these fields, or words of details.
        Snapshots are the same, of entries with other digests."""
        head, previous = self.head(), None
        digests: dict[int, str] = {}
        for revision in range(1, head + 1):
            document = self.entry(revision)
            for field in fields if revision <= (until or head) else ():
                document.pop(field, None)
                document.get("details", {}).pop(field, None)
            document["previous"] = previous or document["previous"]
            data = json.dumps(document).encode()
            self.put(commit_key(revision), data)
            previous = digests[revision] = hashlib.sha256(data).hexdigest()
        for path in (self.bucket / "snapshots").iterdir():
            self._rewrite(path, lambda header, rows: ({**header, "digest": digests[header["revision"]]}, rows))
        self.lose_state()

    def snapshots(self) -> list[int]:
        """Revisions of the snapshots, ascending."""
        names = sorted(path.name for path in (self.bucket / "snapshots").iterdir())
        return [revision for name in names if (revision := parse_snapshot_key(f"snapshots/{name}")) is not None]

    def cut(self, before: int) -> None:
        """Take the entries up to the revision away, as a collection does behind a snapshot."""
        for revision in range(1, before):
            (self.bucket / commit_key(revision)).unlink()

    def lose_state(self) -> None:
        """The cached tables go; the journal stays."""
        shutil.rmtree(self.home / "state" / "disks", ignore_errors=True)

    # What is answered

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors; whatever happens, it is no crash."""
        self.frostline._capsys.readouterr()
        code = cli.run(arguments)
        captured = self.frostline._capsys.readouterr()
        assert "unexpected" not in captured.err, captured.err
        return code, captured.out, captured.err

    def count(self) -> int | str:
        """How many rows a query finds, or the error."""
        code, out, err = self.run("query", f"SELECT count(*) AS n FROM {TABLE}", "--json")
        return int(json.loads(out)["rows"][0][0]) if code == 0 else err

    def distinct(self) -> int:
        """How many different rows a query finds."""
        code, out, err = self.run("query", f"SELECT count(DISTINCT id) FROM {TABLE}", "--json")
        assert code == 0, err
        return int(json.loads(out)["rows"][0][0])

    def problems(self) -> list[dict[str, Any]]:
        """What fsck finds."""
        code, out, err = self.run("fsck", "--json")
        assert code in (0, 4), (code, err)
        found: list[dict[str, Any]] = json.loads(out)["problems"]
        assert bool(found) == (code == 4)
        return found


def build(home: Path, frostline: Frostline) -> None:
    """The store, in a home of its own."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "frostline.yaml").write_text(CONFIG.format(home=home))
    frostline("table", "create", TABLE, "--column", "id:int64", "--order-by", "id", "--policy", "tiers")
    for block in range(3):
        source = home / f"{block}.csv"
        source.write_text("id\n" + "\n".join(str(block * 1_000 + number) for number in range(1_000)) + "\n")
        frostline("insert", TABLE, str(source))
        if block == 0:
            frostline("move", TABLE, "--part", "all_1_1_0", "--to-disk", "cold")


__all__ = ["ROWS", "SCHEMA_VERSION_KEY", "TABLE", "Forged", "build"]
