"""What grows unnoticed in a store: small parts in buckets, and objects that nothing names."""

from __future__ import annotations

from tiering.config.units import format_size
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
    left = garbage(config)
    if left and left["orphaned"]:
        size = format_size(left["orphaned_bytes"])
        what = f"the daemon's last gc left {left['orphaned']:,} objects, {size}, that nothing names"
        hint = (
            "frostline gc --delete, or daemon.gc_delete: true" if not config.daemon.gc_delete else "they are young yet"
        )
        found.append(Finding(subject="tables", check="garbage", level="warning", what=what, hint=hint))
    return found
