"""What goes unnoticed in a store: small parts in buckets, objects that nothing names, parts outside of a policy."""

from __future__ import annotations

from collections import Counter

from tiering.config.units import counted, format_size
from tiering.doctor.diagnosis import Finding
from tiering.engine.store import Store
from tiering.facts.status import crowded_documents, crowded_text, garbage


def of_store(store: Store) -> list[Finding]:
    """As findings."""
    config = store.context.config
    found = []
    for one in crowded_documents(store):
        hint = f"frostline merge {one['table']} --cold; the job cold_merges does it each hour, where it is on"
        found.append(Finding(subject="tables", check="many-parts", level="warning", what=crowded_text(one), hint=hint))
    found += stranded(store)
    left = garbage(config)
    if left and left["orphaned"]:
        size = format_size(left["orphaned_bytes"])
        what = f"the daemon's last gc left {left['orphaned']:,} objects, {size}, that nothing names"
        hint = (
            "frostline gc --delete, or daemon.gc_delete: true" if not config.daemon.gc_delete else "they are young yet"
        )
        found.append(Finding(subject="tables", check="garbage", level="warning", what=what, hint=hint))
    return found


def stranded(store: Store) -> list[Finding]:
    """Tables with parts on a disk that their policy does not name any more: no rule moves or merges them there."""
    catalog, found = store.context.catalog, []
    for definition in store.definitions():
        named = set(catalog.policy_disks(definition))
        counts = Counter(stored.disk for stored in catalog.parts(definition) if stored.disk not in named)
        for disk, parts in sorted(counts.items()):
            what = f"policy {definition.policy} does not name the disk {disk}, which has {counted(parts, 'part')} of it"
            move = f"frostline move {definition.full_name} --partition P --to-disk D"
            hint = f"name {disk} in policy {definition.policy} again, or move them: {move}"
            subject = f"table {definition.full_name}"
            found.append(Finding(subject=subject, check="policy", level="warning", what=what, hint=hint))
    return found
