"""What the benchmark of backups runs on: a store with parts that nothing makes smaller, and who else copies them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Run, run
from disks.local.disk import LocalDisk
from oplog.kinds import Inserted, TableCreated
from tests.servers import Server
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import ColumnRange, DataFile, Part

TABLE = schema.TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000014",
    database="bench",
    name="backed_up",
    columns=(schema.Column(1, "k", "int64", nullable=False), schema.Column(2, "v", "int64", nullable=False)),
    order_by=("k",),
    policy="hot_cold",
    last_column_id=2,
)
_BATCH_PARTS = 100


@dataclass
class Home:
    """A machine of ours below `root`: an SSD, a bucket (a directory unless told), and what the verbs say there."""

    root: Path
    bucket_url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    workers: int = 8

    @property
    def ssd(self) -> Path:
        return self.root / "ssd"

    @property
    def config(self) -> Path:
        path = self.root / "frostline.yaml"
        if not path.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            disks = {
                "ssd": {"type": "local", "path": str(self.ssd)},
                "s3": {"type": "object_disk", "url": self.bucket_url or f"file://{self.root}/bucket/"},
            }
            volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
            policies = {"hot_cold": {"volumes": volumes}}
            path.write_text(json.dumps({"state_path": str(self.root / "state"), "disks": disks, "policies": policies}))
        return path

    def command(self, *words: str) -> list[str]:
        """A verb with what stands before it."""
        program = str(Path(sys.executable).with_name("frostline"))
        return [program, "-c", str(self.config), "--json", "-j", str(self.workers), "-y", *words]

    def frostline(self, *words: str) -> Run:
        """A verb as its own process."""
        return run(self.command(*words), environment=self.environment)

    def backup(self, *words: str) -> Run:
        """A verb of `backup` as its own process."""
        return self.frostline("backup", *words)

    def told(self, *words: str) -> dict[str, Any]:
        """What a verb answered."""
        answer: dict[str, Any] = json.loads(self.frostline(*words).output)
        return answer


def make_parts(home: Home, count: int, part_bytes: int, *, first: int = 1) -> None:
    """Put so many parts of about so many bytes on the SSD; those that begin at 1 get their table."""
    disk = LocalDisk("ssd", home.ssd)
    random = numpy.random.default_rng(first)
    if first == 1:
        with disk.transaction(TableCreated()) as transaction:
            transaction.create(f"{TABLE.directory}/{schema.TABLE_FILE}", schema.encode(TABLE))
            transaction.commit()
    for start in range(first, first + count, _BATCH_PARTS):
        with disk.transaction(Inserted()) as transaction:
            for number in range(start, min(start + _BATCH_PARTS, first + count)):
                values = random.integers(-(2**63), 2**63 - 1, part_bytes // 8)
                file = transaction.scratch() / f"{number}.parquet"
                rows = pa.table({"k": numpy.full(len(values), number), "v": values})
                pq.write_table(rows, file, compression="zstd", use_dictionary=["k"])
                part = _part(number, len(values), file)
                directory = TABLE.part_directory(part.name)
                transaction.create(f"{directory}/data-0000.parquet", file, sha256=part.files[0].sha256)
                transaction.create(f"{directory}/part.json", part_format.encode(part))
            transaction.commit()
    disk.close()


def _part(number: int, rows: int, file: Path) -> Part:
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return Part(
        table=TABLE.uuid,
        name=f"all_{number}_{number}_0",
        rows=rows,
        size_bytes=len(data),
        created=datetime.now(UTC),
        files=(DataFile("data-0000.parquet", rows, len(data), digest),),
        columns={"1": ColumnRange(number, number)},
    )


@dataclass(frozen=True, slots=True)
class Restic:
    """A repository of restic, in a directory or on the server."""

    directory: Path
    """For its cache, and for the repository unless that is on a server."""
    server: Server | None = None
    bucket: str = ""

    def __call__(self, *words: str) -> Run:
        where = f"s3:{self.server.endpoint_url}/{self.bucket}/restic" if self.server else str(self.directory / "restic")
        own = {"RESTIC_PASSWORD": "benchmark", "RESTIC_CACHE_DIR": str(self.directory / "restic-cache")}
        environment = {**own, "RESTIC_REPOSITORY": where, **(self.server.environment() if self.server else {})}
        return run(["restic", "--quiet", *words], environment=environment)

    def forget_everything(self) -> None:
        """Repository and cache of a directory."""
        for name in ("restic", "restic-cache"):
            shutil.rmtree(self.directory / name, ignore_errors=True)


def s5cmd(server: Server, source: Path, bucket: str, workers: int) -> Run:
    """Copy all data files to a bucket."""
    options = ["--endpoint-url", server.endpoint_url, "--numworkers", str(workers), "--log", "error"]
    command = [_beside("s5cmd"), *options, "cp", "--include", "*.parquet", f"{source}/*", f"s3://{bucket}/s5cmd/"]
    return run(command, environment=server.environment())


def rclone(server: Server, source: Path, bucket: str, workers: int) -> Run:
    """Copy all data files to a bucket."""
    options = ["--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", server.endpoint_url]
    fast = ["--transfers", str(workers), "--checkers", str(workers), "--no-check-dest", "--s3-no-check-bucket"]
    plain = ["--s3-force-path-style", "--include", "*.parquet", "-q"]
    command = [_beside("rclone"), "copy", *options, *fast, *plain, str(source), f":s3:{bucket}/rclone"]
    return run(command, environment=server.environment())


def rclone_and_sync(source: Path, target: Path, workers: int) -> Run:
    """Copy a directory's files, then make them durable, as ours are."""
    copy = f'"{_beside("rclone")}" copy --transfers {workers} -q "$1" "$2"'
    script = f'{copy} && find "$2" -type f -print0 | xargs -0 sync && find "$2" -type d -print0 | xargs -0 sync'
    return run(["sh", "-c", script, "sh", str(source), str(target)])


def _beside(program: str) -> str:
    return str(Path(sys.executable).with_name(program))


def versions() -> str:
    """What is compared with."""
    return "; ".join(
        _said(command)
        for command in (
            ["restic", "version"],
            [_beside("rclone"), "version"],
            [_beside("s5cmd"), "version"],
            ["radosgw", "--version"],
        )
    )


def _said(command: Sequence[str]) -> str:
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return lines[0] if command[0].endswith(("restic", "rclone", "radosgw")) else f"{Path(command[0]).name} {lines[0]}"
