"""The whole configuration as one frozen, closed, typed model; `tiering.config.reading` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from disks.config import (
    CENTURY_SECONDS,
    MOST_BYTES,
    Duration,
    Interval,
    LocalDiskConfig,
    ObjectDiskConfig,
    Size,
    Timeout,
)
from oplog.errors import NotFound, UsageError

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Price = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class VolumeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An ordered list of disks that share a role."""

    name: str
    """How TTL rules and verbs call it."""
    disks: tuple[str, ...]
    max_data_part_size_bytes: Size | None = None
    """Larger parts do not come here: they go to the next volume."""
    max_data_part_size_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """The same as a share of the average disk of the volume; not together with the size."""
    prefer_not_to_merge: bool = False
    """Parts here are neither merged nor recompressed, also not by `merge --final`."""
    perform_ttl_move_on_insert: bool = True
    """Rows that are due for this volume when they are inserted are written here at once."""
    load_balancing: Literal["round_robin", "least_used"] = "round_robin"
    """Which disk of the volume takes the next part."""
    volume_priority: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    """1 is the hottest. Default: the order of the list. All volumes or none; 1 to N without gaps."""


class PacingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When moves that rules ask for may begin, and how much they may take. Pins and manual moves are not held."""

    window: str | None = None
    """TTL moves begin only then, such as `22:00-06:00`; a full disk is made room on at any time."""
    timezone: str = "UTC"
    """Of the window."""
    spread_seconds: Duration = 0.0
    """What became due at once is moved in the course of this time, evenly, each part at its own moment."""
    merge_first_parts: Count = 0
    """TTL moves wait for merges while the partition has more parts than this on the disk. 0: they do not."""
    merge_first_seconds: Duration = 86400.0
    """They wait no longer than this after they were due."""
    late_seconds: Duration = 0.0
    """Small parts of rows that are due when they are inserted wait this long on the hottest volume, are then merged
    into one, and that moves: so rows that come late do not leave a part each time. 0: they go there at once."""
    late_bytes: Size = 16 * 1024 * 1024
    """Parts up to this size are small ones."""
    cool_down_seconds: Duration = 0.0
    """A part that was moved stays this long where it came to."""
    every_seconds: Annotated[float, msgspec.Meta(ge=1, le=CENTURY_SECONDS)] = 3600.0
    """The interval of the budgets below, counted from midnight UTC on 1970-01-01: `1d` begins at midnight."""
    bytes: Size | None = None
    """No move begins after moves of so many bytes in an interval, failed tries included. Default: no limit."""
    requests: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    """The same of the requests that they take."""
    money: Annotated[float, msgspec.Meta(gt=0, le=1e12)] | None = None
    """The same of what they cost by the section `prices`."""


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An ordered list of volumes, hottest first, and when to move between them."""

    volumes: tuple[VolumeConfig, ...]
    """Hottest first."""
    move_factor: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Moves start when a disk has less than this share free. Default 0.1 with several volumes, else 0."""
    move_until: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """They go on until this share is free; more than `move_factor` makes them seldom. Default: `move_factor`."""
    pacing: PacingConfig = PacingConfig()
    """When moves may begin, and how much they may take."""


class JobConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When the daemon runs one of its jobs."""

    enabled: bool | None = None
    """Default: on where it has a time, its own or one that is given here."""
    every_seconds: Interval | None = None
    """The time between the beginnings of two runs; not together with `cron`."""
    cron: str | None = None
    """Minute, hour, day, month and weekday, such as `30 3 * * *`; `@hourly`, `@daily`, `@weekly`, `@monthly`."""
    window: str | None = None
    """Runs begin only then, such as `22:00-06:00`; what is due outside waits for it."""
    timezone: str = "UTC"
    """Of `cron` and `window`."""
    jitter_seconds: Duration = 0.0
    """Each run begins up to this much later, by chance: machines that share a bucket then do not all begin at once."""
    options: tuple[str, ...] = ()
    """More options of the job's verb, such as `--tag=nightly` for a backup."""


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files that the daemon's job `ingest` takes into a table, each once."""

    table: str
    """Such as `nyc.flights`."""
    files: tuple[str, ...]
    """Paths, globs and URLs, as `frostline ingest` takes them; each run looks for the files again."""
    options: tuple[str, ...] = ()
    """More of that verb's options, such as `--batch-bytes=10GiB`."""


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How often the daemon does what."""

    tick_seconds: Interval = 30.0
    """The time between two passes: merges, TTL deletes, moves, snapshots."""
    large_bytes: Size = 32 * 1024 * 1024
    """Merges and moves of more bytes are made beside the passes: what is small and due does not wait for them."""
    gc_seconds: Interval = 3600.0
    """The time between two garbage collections."""
    gc_delete: bool = False
    """Whether the daemon's gc deletes; by default it only reports."""
    gc_guard_seconds: Annotated[float, msgspec.Meta(ge=3600, le=CENTURY_SECONDS)] = 86400.0
    """Objects that are younger stay, whatever names them: no work under way may have begun earlier."""
    cold_merge_seconds: Interval | None = None
    """The time between two runs of `merge --cold` for every table that has such merges due. Default: an hour, for
    tables of which a partition has more than `cold_merge_parts` parts."""
    cold_merge_parts: Count = 100
    """Of a partition in a bucket: rows that come late leave a part each time. 0: nothing is merged there unless
    `cold_merge_seconds` says so, and nobody is warned."""
    cold_merge_spark: bool = False
    """Those runs are `merge --spark`, on the master of the section `spark`."""
    cold_merge_options: tuple[str, ...] = ()
    """More of that verb's options, such as `--target-size=1GiB`."""
    ingests: tuple[IngestConfig, ...] = ()
    """What the job `ingest` takes, by `ingest --spark` on the master of the section `spark`; each hour unless `jobs`
    says otherwise."""
    low_space_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    """Hooks get an event when a disk has less than this share free."""
    log_format: Literal["text", "json"] = "text"
    """How each line of its log is written; `daemon run --log-format` overrides it."""
    jobs: dict[str, JobConfig] = {}
    """By name: `policy`, `merges`, `cold_merges`, `snapshots`, `gc`, `fsck`, `backup`, `verification`, `drill`,
    `prune`, `ingest`."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits shared by all workers of the process; the flags --bwlimit, --tpslimit and -j override them."""

    bytes_per_second: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] | None = None
    """To and from all object stores and replicas together. Default: no limit."""
    requests_per_second: Annotated[float, msgspec.Meta(ge=0.01, le=1e9)] | None = None
    """To all object stores together. Default: no limit."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """Parts and files that are worked on side by side."""
    clock_trust_seconds: Duration = 3600.0
    """How long after the time that was last confirmed a fresh process believes the clock where it can ask no other: an
    object store on S3, or the kernel's word that a time server keeps it. Later it deletes nothing by a TTL."""
    unpacked_bytes: Size = 16 * 1024 * 1024 * 1024
    """Of one compressed file of Parquet, ORC or Arrow (`.parquet.gz`), which is unpacked into the temporary directory
    to be read. A larger one is refused."""
    decoded_bytes: Size = 2 * 1024 * 1024 * 1024
    """What the reader of a file of Parquet or Arrow may have in memory at once: the largest pages of a row group, or a
    batch. A file that needs more is refused."""
    state_reserve_bytes: Size = 4 * 1024 * 1024
    """Kept in a file below `state_path` that is given up when its disk is full, for moves and drops: they make room."""


class ReadCacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What queries read of buckets, kept on a local disk: the next one finds it there."""

    max_bytes: Size = 0
    """So many bytes of it at most; what was not read for longest goes. 0: nothing is kept."""
    path: str = ""
    """Its directory, on a disk as fast as those of the hot volume. Default: `read-cache` below `state_path`."""


class SparkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How verbs with `--spark` start Spark. What `spark-submit` or `spark-defaults.conf` sets wins over all of it."""

    master: str = "local[*]"
    """Where the tasks run: `local[N]`, `spark://host:7077`, `yarn`, `k8s://…`."""
    conf: dict[str, str] = {}
    """Spark's own properties, passed on unchanged: `spark.executor.memory: 1g`. No credentials: Spark shows them."""
    ship_code: bool = True
    """Sends Frostline's own code to the executors of a cluster. Its dependencies must be installed there."""


class PricesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What storage and its requests cost, for estimates. The defaults are list prices of AWS in us-east-1, in dollars:
    of S3 Standard (https://aws.amazon.com/s3/pricing/), and for disks of this machine of EBS gp3 without more than the
    throughput that it comes with (https://aws.amazon.com/ebs/pricing/)."""

    storage_gb_month: Price = 0.023
    """Each 10^9 bytes in a bucket, each month."""
    local_gb_month: Price = 0.08
    """Each 10^9 bytes on a disk of this machine, each month."""
    disks: dict[str, Price] = {}
    """Disk -> what each 10^9 bytes on it cost a month, where it is another price than these: a slower class of storage,
    a hard disk."""
    put_per_1000: Price = 0.005
    """Writes and listings."""
    get_per_1000: Price = 0.0004
    """Reads."""
    down_per_gb: Price = 0.0
    """Each 10^9 bytes read; 0 within a region."""
    currency: str = "USD"
    """For display."""


class DashboardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How `frostline top` looks, and its keys."""

    theme: str = ""
    """Such as `textual-light` or `nord`; the command palette shows them all. Default: a dark one."""
    keys: dict[str, str] = {}
    """What is to be done -> its keys, with commas between them, such as `parts.move: "f6,M"`. The help of each screen
    has the names."""


class BackupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where backups go. `--to` and `$FROSTLINE_BACKUP` come before `repository`."""

    repository: str | None = None
    """`s3://bucket/prefix` or `file:///path`, apart from every disk."""
    endpoint_url: str | None = None
    """On S3: the server, where it is not that of the disks. The keys then come from the AWS credential chain."""
    region: str | None = None
    """On S3, with an endpoint of its own: the region."""


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ZooKeeper that replicated tables are coordinated by. Without `hosts` there is none."""

    hosts: tuple[str, ...] = ()
    """`host:port` of each server of the ensemble."""
    root: str = "/frostline"
    """The node below which everything lies; made when it is missing."""
    session_timeout_seconds: Timeout = 10.0
    """Who is silent for so long has left: others take over what it was at."""
    request_timeout_seconds: Timeout = 10.0
    """How long one call waits for an answer, repeats and a new connection included."""
    user: str = ""
    """For digest authentication: nodes then belong to this user alone. Default: they are open to all."""
    password: str = ""
    """Of the user."""
    tls: bool = False
    """Whether the connection is encrypted."""
    ca_bundle: str | None = None
    """With TLS: a file of certificates to trust, instead of the system's."""
    certificate: str | None = None
    """With TLS: the file of this machine's own certificate."""
    certificate_key: str | None = None
    """With TLS: the file of its key."""
    check_host: bool = True
    """With TLS: whether the server's certificate must name its host."""


class InterserverConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the daemon gives parts of replicated tables to the other replicas, by HTTP."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 9109
    """0: any that is free."""
    advertise: str = ""
    """The name or address by which other machines reach this one. Default: `host`."""
    secret: str = ""
    """What all replicas know and nobody else does: it signs each request. At least 16 characters."""
    certificate: str | None = None
    """With it replicas speak TLS, each shows its certificate, and who has none is refused: the file of this machine's
    own."""
    certificate_key: str | None = None
    """The file of its key."""
    ca_bundle: str | None = None
    """The file of the authority whose certificates all replicas have."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    """So many at most at once. Those that wait for a request make room for new ones; more are refused."""


class ReplicasConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What this machine does for its replicated tables."""

    merges: bool = True
    """Whether it merges: one that does not fetches what the other replicas made, and agrees upon no merges by itself.
    Alone in a table it merges all the same."""
    merge_once_bytes: Size = 10 * 1024 * 1024 * 1024
    """Merges of more bytes are made by one replica, and the others fetch; of fewer, by each for itself."""
    merge_workers: tuple[str, ...] = ()
    """The replicas, by name, that make those large merges: while the daemon of one of them runs the others leave them
    to these, and fetch. When none runs, the first replica to come makes them. Default: the first one to come. With
    `merge_once_bytes: 0` they make all merges."""
    entries_at_once: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Entries of a table's queue that are done side by side, where their blocks do not meet; no more than
    `limits.workers`."""
    keep_dropped_seconds: Duration = 480.0
    """Parts that an entry of a table's queue drops stay in `detached/` of this machine's local disks for so long:
    `partition attach` takes them back. A disk that needs the room gives them up before. 0: they go at once."""


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the daemon tells how the store is. Needs the extra `metrics`; `frostline metrics` prints the same once."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    """`/metrics`, `/health` and `/ready` on 127.0.0.1. 0: any that is free. Default: it serves none."""


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the daemon sends spans of its passes, jobs, moves and merges. Needs the extra `tracing`."""

    endpoint: str | None = None
    """A collector of OpenTelemetry that takes OTLP by HTTP, such as `http://127.0.0.1:4318`. Default: none. Keys that
    it asks for come by the environment, in `OTEL_EXPORTER_OTLP_HEADERS`."""
    service_name: str = "frostline"
    """What the collector knows this daemon as."""


class InboxConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A directory whose files become rows: those in `<path>/<db.table>/` go into that table."""

    path: str | None = None
    """Default: there is none."""
    batch_bytes: Size = 64 * 1024 * 1024
    """So many bytes of files go in together, at once when they are there."""
    batch_files: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 10_000
    """So many files at most go in together."""
    batch_seconds: Duration = 10.0
    """No file waits longer than this for others."""
    stable_seconds: Duration = 2.0
    """A file is whole when it has not changed for so long."""
    poll_seconds: Interval = 1.0
    """The time between two looks."""


HookEvent = Literal["failure", "recovery", "backup", "verification_failed", "low_space", "budget_spent"]


class HookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A receiver of events: a command, or a webhook. Each gets the event as a JSON document."""

    events: tuple[HookEvent, ...] = ()
    """`failure`, `recovery`, `backup`, `verification_failed`, `low_space`, `budget_spent`. Default: all."""
    command: tuple[str, ...] = ()
    """The program and its arguments. It reads the event from standard input; not together with `url`."""
    url: str = ""
    """`https://…`: the event is sent there by POST."""
    secret: str = ""
    """With `url`: signs the body, for the header `Frostline-Signature`."""
    timeout_seconds: Timeout = 10.0
    """One try takes no longer."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    """After so many the event is given up. The first wait is a second, each other one twice as long."""
    allow_private: bool = False
    """With `url`: whether it may be an address of this machine or its own network."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything a store needs to open."""

    state_path: str
    """Journal, locks and file tables. All of it can be rebuilt."""
    disks: dict[str, LocalDiskConfig | ObjectDiskConfig]
    """By name: letters, digits and `_`."""
    policies: dict[str, PolicyConfig]
    """By name."""
    daemon: DaemonConfig = DaemonConfig()
    limits: LimitsConfig = LimitsConfig()
    read_cache: ReadCacheConfig = ReadCacheConfig()
    spark: SparkConfig = SparkConfig()
    prices: PricesConfig = PricesConfig()
    backup: BackupConfig = BackupConfig()
    dashboard: DashboardConfig = DashboardConfig()
    keeper: KeeperConfig = KeeperConfig()
    interserver: InterserverConfig = InterserverConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    inbox: InboxConfig = InboxConfig()
    hooks: dict[str, HookConfig] = {}
    """By name: whom the daemon tells of trouble, its end, and backups."""
    macros: dict[str, str] = {}
    """What `{shard}`, `{replica}` and names of your own stand for in paths of Keeper, on this machine."""

    @property
    def state_directory(self) -> Path:
        return Path(self.state_path).expanduser()

    def buckets(self) -> dict[str, ObjectDiskConfig]:
        """The disks in buckets."""
        return {name: disk for name, disk in self.disks.items() if isinstance(disk, ObjectDiskConfig)}

    def bucket(self, name: str) -> ObjectDiskConfig:
        """The configuration of a disk in a bucket. Raises `UsageError` when the disk is in none."""
        found = self.buckets().get(name)
        if found is None:
            raise UsageError(f"disk {name} is in no bucket", hint="name a disk of type object_disk")
        return found

    def policy(self, name: str) -> PolicyConfig:
        """The policy. Raises `NotFound` with the known names."""
        try:
            return self.policies[name]
        except KeyError:
            known = ", ".join(sorted(self.policies))
            raise NotFound(f"No such policy: {name}", hint=f"the configuration has: {known}") from None


def embedded(home: Path) -> Config:
    """The default configuration: an SSD directory and a directory bucket below `home`, policy `hot_cold`."""
    return Config(
        state_path=str(home / "state"),
        disks={
            "ssd": LocalDiskConfig(path=str(home / "ssd")),
            "s3": ObjectDiskConfig(url=(home / "bucket" / "store").as_uri() + "/"),
        },
        policies={
            "hot_cold": PolicyConfig(
                volumes=(
                    VolumeConfig(name="hot", disks=("ssd",)),
                    VolumeConfig(name="cold", disks=("s3",), prefer_not_to_merge=True),
                )
            )
        },
    )
