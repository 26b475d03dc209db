"""What a disk that is to be adopted holds, and which of its parts cannot stay where they are."""

from contextlib import closing
from typing import TYPE_CHECKING

from oplog.errors import DiskUnreachable, FrostlineError, Transient
from tiering.cli.frame.session import Session, actor

if TYPE_CHECKING:
    from disks.base import Disk
    from tiering.catalog.catalog import Catalog
    from tiering.catalog.copies.doubled import Compared
    from tiering.catalog.identities.identity import Identities
    from tiering.facts.disk_decisions import HeldTable
    from tiering.journal.journal import Journal


class Adoption:
    """The disk `name` beside the other disks of the store now."""

    def __init__(
        self,
        disk: "Disk",
        journal: "Journal",
        tables: "list[HeldTable]",
        compared: "Compared",
        levels: dict[str, int],
        unlisted: list[tuple[str, str]] | None,
    ) -> None:
        """`unlisted`: where the journal is new, the parts on local disks that a bucket has had."""
        self.tables = tables
        self.doubled = compared.doubled
        self._compared = compared
        self._disk = disk
        self._journal = journal
        self._levels = levels
        self._unlisted = unlisted

    @classmethod
    def of(cls, session: Session, identities: "Identities", name: str) -> "Adoption | None":
        """What is to be done of it; None, with a note, where the disk cannot be read as it is. Raises `DiskUnreachable`
        when another disk does not answer: nobody knows then which rows are there twice."""
        from tiering.catalog.catalog import Catalog

        disks, journal = identities.with_real(name), identities.journal
        catalog = Catalog(
            session.config,
            disks,
            dropping=journal.being_dropped,
            merges=lambda uuid: journal.work.merges(table_uuid=uuid),
        )
        with closing(catalog):
            try:
                catalog.refresh()
                if away := [disk.name for disk in disks.values() if disk.unreachable and disk.broken is None]:
                    raise DiskUnreachable(
                        f"adopting {name} needs disk {away[0]}: it shows which rows are duplicates",
                        hint="try again when the bucket answers",
                    )
                return cls._read(catalog, disks, journal, name)
            except Transient:
                raise
            except FrostlineError as error:
                session.output.note(
                    f"the parts of disk {name} cannot be compared with those of other disks: {error.message};"
                    " 'frostline fsck' names duplicate rows"
                )
                return None

    @classmethod
    def _read(cls, catalog: "Catalog", disks: "dict[str, Disk]", journal: "Journal", name: str) -> "Adoption":
        from tiering.catalog.copies.copying import had_by_buckets
        from tiering.catalog.copies.doubled import compare_parts, levels_given
        from tiering.catalog.reachability import holdings
        from tiering.facts.disk_decisions import HeldTable

        held = holdings(catalog).get(name, {})
        found = [HeldTable(holding.table, uuid, holding.parts, holding.rows) for uuid, holding in held.items()]
        made = {table.uuid: levels_given(journal.work.merged_parts(table.uuid)[1]) for table in catalog.tables()}
        levels = {uuid: level for uuid, level in made.items() if level}
        unlisted = None
        if not journal.source_copies.are_listed() and all(disk.broken is None for disk in disks.values()):
            unlisted = had_by_buckets(catalog, disks, filter(catalog.copies.follows, catalog.tables()))
        return cls(disks[name], journal, found, compare_parts(catalog, disks, name), levels, unlisted)

    def set_aside(self) -> None:
        """Rename what cannot stay, in one commit. A name that was given to a merged part is not given again. What stays
        is a copy of a bucket's part or this machine's own, and the journal notes which."""
        from contextlib import ExitStack

        from tiering.catalog.copies.doubled import set_aside

        with ExitStack() as claims:
            for uuid in {one.part.definition.uuid for one in self.doubled}:
                names = [one.part.facts.name for one in self.doubled if one.part.definition.uuid == uuid]
                claims.enter_context(self._journal.claim(uuid, names, "adopt"))
            if not self._disk.read_only:
                set_aside(self._disk, self.doubled, self._levels, actor())
        own, listed = set(self._compared.own), self._journal.source_copies
        listed.forget(own)
        copies = [*self._compared.copies, *(self._unlisted or ())]
        listed.add([part for part in copies if part not in own], all_listed=self._unlisted is not None)
