"""What goes unnoticed in a store: small parts in buckets, objects that nothing names, parts outside of a policy, and
parts that no rule takes because a row is dated far ahead."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

from tiering.catalog.catalog import StoredPart
from tiering.config.units import counted, format_size
from tiering.doctor.diagnosis import Finding
from tiering.engine.small_parts import crowded
from tiering.engine.store import Store
from tiering.facts.status import crowded_text, garbage
from tiering.policy import ttl

_FAR_AHEAD = timedelta(days=366)
"""A newest row dated later than so long after now is more likely a mistake than a fact."""
_MOST_NAMED = 20
"""So many parts are named, each in a line; one line says that there are more."""


def of_store(store: Store) -> list[Finding]:
    """As findings."""
    config = store.context.config
    found = []
    for one in crowded(store, config.daemon.cold_merge_parts):
        hint = f"frostline merge {one.table} --cold; the daemon's job cold_merges does it, if it is on"
        found.append(Finding(subject="tables", check="many-parts", level="warning", what=crowded_text(one), hint=hint))
    found += stranded(store)
    left = garbage(config)
    if left and left["orphaned"]:
        size = format_size(left["orphaned_bytes"])
        what = f"the daemon's last gc left {counted(left['orphaned'], 'object')}, {size}, that nothing names"
        hint = (
            "frostline gc --delete, or daemon.gc_delete: true" if not config.daemon.gc_delete else "they are young yet"
        )
        found.append(Finding(subject="tables", check="garbage", level="warning", what=what, hint=hint))
    return [*found, *_far_ahead(store)]


def _far_ahead(store: Store) -> Iterator[Finding]:
    kept = (
        (stored, due)
        for definition in store.definitions()
        if definition.ttl
        for stored in store.parts(definition.full_name)
        for due in ttl.due_times(definition, stored.facts)
        if due.newest is not None and due.newest - store.context.clock() > _FAR_AHEAD
    )
    for stored, due in islice(kept, _MOST_NAMED):
        yield _kept_by_its_date(stored, due)
    if more := sum(1 for _ in kept):
        what = f"{more:,} more parts have a row that has a time far in the future"
        yield Finding(subject="tables", check="far-future", level="warning", what=what)


def _kept_by_its_date(stored: StoredPart, due: ttl.Due) -> Finding:
    assert due.newest is not None
    table, partition, newest = stored.definition.full_name, stored.name.partition, ttl.short_time(due.newest)
    names = [*table.split(".", 1), due.rule.column]
    database, name, column = ('"' + word.replace('"', '""') + '"' for word in names)
    since = (due.newest - timedelta(seconds=1)).isoformat()
    query = f"SELECT * FROM {database}.{name} WHERE {column} >= '{since}'"
    what = f"part {stored.label} of {table}, partition {partition}, has a row with {due.rule.column} {newest}:"
    what += f" until then the rule '{ttl.rule_text(due.rule)}' does not take the part"
    hint = f"frostline query {shlex.quote(query)} shows it; if the time is wrong, insert the partition again without"
    hint += " it (--replace-partitions), or move the part with 'frostline move'"
    return Finding(subject="tables", check="far-future", level="warning", what=what, hint=hint)


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
