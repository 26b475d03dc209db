"""Bringing a part that another replica has to this one.

    the part's files    in the scratch directory of a transaction, compared with the digest in Keeper    nothing
    one commit          the part comes, what it covers on that disk goes                                 the part,
    unsaid what it covers on other disks goes                                                                   the same
    word                one multi: parts/<part> comes, parts/<covered> and the queued entry go           done

A fetch that was killed after its commit finds the part here, and only says the word.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from disks.base import Transaction
from disks.effects import make_directory
from oplog.errors import Conflict, Damaged, NotFound, Transient
from oplog.kinds import Inserted, Merged
from tiering.catalog import tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import content_digest
from tiering.catalog.new_parts import stage_part
from tiering.table.part import Part, PartName
from zerocopy.interserver import client
from zerocopy.replica.connections import secret_of
from zerocopy.replica.replica import Replica


@dataclass(frozen=True, slots=True)
class Source:
    """A replica that has a part, or one that covers it."""

    replica: str
    part: PartName
    digest: str
    address: str


@dataclass(slots=True)
class Fetcher:
    """Fetches for one replica; remembers for one run what the others have."""

    replica: Replica
    _parts: dict[str, list[PartName]] = field(default_factory=dict)

    def registered(self, part: PartName) -> list[Source]:
        """Who says of itself that it has this very part, wherever it can be reached."""
        return [source for source in self._holders(part) if source.part == part]

    def sources(self, wanted: PartName) -> list[Source]:
        """Who has the part itself, then who has one that covers it, and can be asked for it."""
        return [source for source in self._holders(wanted) if source.address]

    def _holders(self, wanted: PartName) -> list[Source]:
        exact: list[tuple[str, PartName]] = []
        covering: list[tuple[str, PartName]] = []
        for name in self.replica.others():
            if name not in self._parts:
                nodes = self.replica.table.replica(name)
                self._parts[name] = [PartName.parse(part) for part in self.replica.keeper.children(nodes.parts)]
            for part in self._parts[name]:
                if part == wanted or part.covers(wanted):
                    (exact if part == wanted else covering).append((name, part))
        found = [self._source(name, part) for name, part in [*exact, *covering]]
        return [source for source in found if source is not None]

    def _source(self, name: str, part: PartName) -> Source | None:
        nodes = self.replica.table.replica(name)
        node, host = self.replica.keeper.find(nodes.part(str(part))), self.replica.keeper.find(nodes.host)
        if node is None or host is None:
            return None
        return Source(name, part, node.data.decode(errors="replace"), host.data.decode(errors="replace"))

    def fetch(self, wanted: PartName) -> PartName:
        """Bring the part, or one that covers it, from whoever has it; returns which. Raises `Transient` when nobody can
        give it now, with every reason."""
        reasons: list[str] = []
        for source in self.sources(wanted):
            try:
                self._fetch(source)
            except (Transient, NotFound, Damaged) as error:
                reasons.append(f"{source.replica}: {error.message}")
                continue
            return source.part
        raise Transient(
            f"part {wanted} of {self.replica.definition.full_name} is not to be had now: "
            + ("; ".join(reasons) or "no replica whose address is known has it"),
            hint="is a daemon running on a replica that has it? 'frostline replica status' says",
        )

    def _fetch(self, source: Source) -> None:
        context, definition = self.replica.context, self.replica.definition
        here = part_here(self.replica, source.part)
        if here is not None:
            if content_digest(here.part) != source.digest:
                raise Conflict(
                    f"part {source.part} of {definition.full_name} is another one here than on {source.replica}",
                    hint="run 'frostline fsck --read-data' on both machines",
                )
            return
        covered = covered_here(self.replica, source.part)
        with ExitStack() as stack:
            chosen: list[tuple[str, Transaction]] = []

            def place(part: Part) -> Path:
                space = context.reservations.for_insert(definition, part.size_bytes, part, context.clock())
                disk = stack.enter_context(space)
                kind = Merged() if covered else Inserted()
                reason = f"fetched from replica {source.replica}"
                transaction = context.disk(disk).transaction(kind, reason=reason, actor=context.actor)
                chosen.append((disk, stack.enter_context(transaction)))
                directory = transaction.scratch() / "fetched"
                make_directory(directory)
                return directory

            name, secret = str(source.part), secret_of(context)
            part, directory = client.fetch(source.address, secret, definition, name, source.digest, place)
            ((disk, transaction),) = chosen
            commit_part(self.replica, transaction, part, directory, covered, disk)


def commit_part(
    replica: Replica,
    transaction: Transaction,
    part: Part,
    directory: Path,
    covered: list[StoredPart],
    disk: str,
) -> None:
    """Commit a part that came, with what it covers; copies on other disks go afterwards, outdated until then."""
    context, definition = replica.context, replica.definition
    with context.journal.claim(definition.uuid, [part.name, *(old.facts.name for old in covered)], "fetch"):
        stage_part(transaction, definition, part, directory)
        for old in covered:
            if old.disk == disk:
                transaction.remove(old.directory)
        transaction.commit()
        tables.remove_copies(context, [old for old in covered if old.disk != disk], reason="replaced by a merge")
    context.catalog.refresh()


def part_here(replica: Replica, name: PartName) -> StoredPart | None:
    """The part, if it is in the table here."""
    parts = replica.context.catalog.parts(replica.definition)
    return next((stored for stored in parts if stored.name == name), None)


def covered_here(replica: Replica, name: PartName) -> list[StoredPart]:
    """The parts of this machine alone that this one takes the place of, every copy."""
    context = replica.context
    parts = context.catalog.parts(replica.definition, include_outdated=True)
    return [
        stored for stored in parts if name.covers(stored.name) and not context.disk(stored.disk).capabilities.shared
    ]
