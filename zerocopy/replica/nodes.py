"""Where a replicated table's facts are in Keeper; the names are those of ClickHouse where they mean the same. Pure.

<table>/metadata                     the definition, the newest; its policy is each machine's own
<table>/log/log-<number>             what happened, and what is agreed upon, in order; its own data: the last merge
<table>/blocks/<partition>_<digest>  a block that was inserted -> the part; after <n> drops of the partition: …-<n>
<table>/block_numbers/<partition>    what was dropped of it last; its version: how often that was
<table>/block_numbers/<partition>/block-<who>-<number>   an insert on its way; goes with its session
<table>/outputs/<part>                          the digest of what a merge makes: the first replica writes it
<table>/merging/<part>               which replica makes this large merge for all, or takes back what was dropped of the
                                     partition (a range as of a drop); goes with its session
<table>/cold/<store>/<part>          which replica has it in a store whose objects they share; while it is brought there
                                     the node goes with that one's session
<table>/mover                        of a table with a shared disk: who moves which parts there now; empty: nobody
<table>/mover/alive-<id>             goes with that one's session
<table>/restoring                    while the nodes are put back out of what the replicas have: who is waited for
<table>/replicas/<name>              who the replica is: a token that its machine knows; with a word before it while
                                     the nodes are put back
    host                             where it gives parts to the others
    is_active                        goes with the session of its daemon
    home                             which home put the nodes back; goes when the daemon of that one is there
    log_pointer                      the number of the first entry of the log that it has not taken over
    queue/queue-<number>             what it took over and has not done
    parts/<part>                     what it has -> the digest
      is_lost               1: the log is cleaned past what it took over, and it copies everything again
    metadata_version                 of the definition that it has on its disks
    min_unprocessed_insert_time      since when the oldest insert waits that is in the queue; 0: none does
"""

from __future__ import annotations

import msgspec

from oplog.errors import Damaged
from zerocopy.keeper.operations import CreateNode

_MOST_DIGITS = 18
ANY_POLICY = "-"
"""What the definition in Keeper says of the policy."""


class TableNodes(msgspec.Struct, frozen=True):
    """The nodes of a table."""

    path: str

    @property
    def metadata(self) -> str:
        return f"{self.path}/metadata"

    @property
    def log(self) -> str:
        return f"{self.path}/log"

    @property
    def replicas(self) -> str:
        return f"{self.path}/replicas"

    @property
    def mover(self) -> str:
        return f"{self.path}/mover"

    @property
    def restoring(self) -> str:
        return f"{self.path}/restoring"

    @property
    def all_cold(self) -> str:
        return f"{self.path}/cold"

    def cold(self, store: str) -> str:
        """Below it, by part: who has it in this store, or brings it there."""
        return f"{self.all_cold}/{store}"

    def alive(self, claim: str) -> str:
        return f"{self.mover}/alive-{claim}"

    def common(self, *, shared_disk: bool) -> list[str]:
        """What belongs to all replicas, beside the metadata."""
        names = ["log", "blocks", "block_numbers", "outputs", "replicas", *(["mover"] if shared_disk else [])]
        return [f"{self.path}/{name}" for name in names]

    def block(self, partition: str, digest: str, drops: int) -> str:
        """What was inserted before the last of so many drops of the partition does not count."""
        return f"{self.path}/blocks/{partition}_{digest}" + (f"-{drops}" if drops else "")

    def numbers(self, partition: str) -> str:
        return f"{self.path}/block_numbers/{partition}"

    def output(self, part: str) -> str:
        return f"{self.path}/outputs/{part}"

    @property
    def all_merging(self) -> str:
        return f"{self.path}/merging"

    def merging(self, part: str) -> str:
        return f"{self.all_merging}/{part}"

    def replica(self, name: str) -> ReplicaNodes:
        return ReplicaNodes(f"{self.replicas}/{name}")


class ReplicaNodes(msgspec.Struct, frozen=True):
    """The nodes of one replica."""

    path: str

    @property
    def host(self) -> str:
        return f"{self.path}/host"

    @property
    def is_active(self) -> str:
        return f"{self.path}/is_active"

    @property
    def home(self) -> str:
        return f"{self.path}/home"

    @property
    def metadata_version(self) -> str:
        return f"{self.path}/metadata_version"

    @property
    def log_pointer(self) -> str:
        return f"{self.path}/log_pointer"

    @property
    def is_lost(self) -> str:
        return f"{self.path}/is_lost"

    @property
    def queue(self) -> str:
        return f"{self.path}/queue"

    @property
    def parts(self) -> str:
        return f"{self.path}/parts"

    @property
    def min_unprocessed(self) -> str:
        return f"{self.path}/min_unprocessed_insert_time"

    def made(self, token: bytes, version: int, *, pointer: int = 0, is_lost: bool = False) -> list[CreateNode]:
        """What a replica begins with: it has this version of the definition, and took the log over to there."""
        return [
            CreateNode(self.path, token),
            CreateNode(self.host),
            CreateNode(self.log_pointer, str(pointer).encode()),
            CreateNode(self.queue),
            CreateNode(self.parts),
            CreateNode(self.is_lost, b"1" if is_lost else b"0"),
            CreateNode(self.metadata_version, str(version).encode()),
            CreateNode(self.min_unprocessed),
        ]

    def part(self, name: str) -> str:
        return f"{self.parts}/{name}"

    def queued(self, number: int) -> str:
        return f"{self.queue}/queue-{number:010d}"


def number_of(name: str) -> int:
    """The number that the server put behind the name of a node. Raises `Damaged` for a name without one."""
    digits = name[-10:]
    if len(digits) != 10 or not (digits.isascii() and digits.isdecimal()):
        raise Damaged(f"the node {name} in Keeper has no number", hint="Frostline made no such node; remove it")
    return int(digits)


def place_in(data: bytes, path: str) -> int:
    """The number of an entry of the log that a node holds; 0 for an empty one. Raises `Damaged` naming the node."""
    text = data.decode(errors="replace")
    if not data or (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        return int(text or "0")
    raise changed_by_hand(path, f"{text[:40]!r} is no number of an entry of the log")


def changed_by_hand(path: str, fault: str) -> Damaged:
    """What is said of a node that none of us wrote so. Nothing is done by it."""
    return Damaged(
        f"the node {path} in Keeper is invalid: {fault}",
        hint="give it back what it held; new nodes of a replica: stop its daemon, 'frostline replica drop' on another "
        "machine, then 'frostline table drop' and 'table create --replicated' here",
    )
