"""Which objects are garbage, decided without a bucket (I4, I5, P25 to P36)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from disks.object_disk.references import (
    Blobs,
    classify,
    collectable_log,
    disagreement,
    inventory,
    retained_from,
)
from disks.stores.base import ObjectInfo
from oplog.revision import blob_key, parse_blob_key
from tests.turns import examples
from tests.unit.disks.garbage.buckets import NOW
from tests.unit.disks.garbage.buckets import _who_lists as _who_lists

# The pure part


def at(key: str, hours: float = 0, size_bytes: int = 1) -> ObjectInfo:
    return ObjectInfo(key, size_bytes, NOW - timedelta(hours=hours))


def test_retention_begins_before_the_first_young_commit() -> None:
    """With the revision before it."""
    commits = {1: at("", 50), 2: at("", 40), 3: at("", 10), 4: at("", 30)}
    day = timedelta(hours=24)
    assert retained_from(commits, now=NOW, retention=day) == 2
    assert retained_from(commits, now=NOW, retention=timedelta(0)) == 4
    assert retained_from(commits, now=NOW, retention=timedelta(hours=99)) == 0
    assert retained_from({}, now=NOW, retention=day) == 0
    strange = {**commits, 1: ObjectInfo("", 1, datetime(1970, 1, 1, tzinfo=UTC))}
    assert retained_from(strange, now=NOW, retention=day) == 0


def test_listings_agree_unless_a_blob_goes_changes_or_comes_late() -> None:
    """P29."""

    def objection(first: list[ObjectInfo], second: list[ObjectInfo]) -> str | None:
        found = inventory(first).blobs
        assert isinstance(found, Blobs)
        return disagreement(found, second)

    one, two, three = at(blob_key(1), 9), at(blob_key(2), 8), ObjectInfo(blob_key(3), 1, NOW)
    assert objection([one, two], [one, two]) is None
    assert objection([one], [one, three]) is None
    assert objection([one, three], [one, ObjectInfo(blob_key(2), 1, NOW), three]) is None
    assert objection([one, two], [one]) is not None
    assert objection([one, two], [two]) is not None
    assert objection([one, two], []) is not None
    assert objection([one], [ObjectInfo(one.key, 2, one.modified)]) is not None
    assert objection([one], [ObjectInfo(one.key, 1, NOW)]) is not None
    assert objection([two], [one, two]) is not None
    assert objection([one, one], [one]) is not None
    assert objection([one], [one, one]) is not None
    assert objection([one, two], [one, two, one]) is not None
    assert objection([at("pins/a.json")], []) is None


revisions = st.integers(min_value=1, max_value=30)


@settings(max_examples=examples(300))
@given(head=revisions, snapshots=st.sets(revisions), pinned=st.sets(revisions), data=st.data())
def test_no_log_object_goes_that_a_restorable_revision_needs(
    head: int, snapshots: set[int], pinned: set[int], data: st.DataObject
) -> None:
    """I4 for the log: whatever was restorable and is retained or pinned stays so."""
    base = data.draw(st.integers(min_value=0, max_value=head))
    snapshots = {revision for revision in snapshots if revision <= head}
    commits = set(range(1, head + 1))

    def possible(revision: int, commits: set[int], snapshots: set[int]) -> bool:
        return any(start <= revision and set(range(start + 1, revision + 1)) <= commits for start in (0, *snapshots))

    old_commits, old_snapshots = collectable_log(commits, snapshots, base=base, pinned=pinned)
    left_commits, left_snapshots = commits - set(old_commits), snapshots - set(old_snapshots)
    for revision in {*range(base, head + 1), *(pin for pin in pinned if pin <= head)}:
        assert possible(revision, left_commits, left_snapshots)
    assert head in left_commits
    assert sorted(left_commits) == list(range(min(left_commits), head + 1)), "a gap"
    assert not snapshots or max(snapshots) in left_snapshots


@settings(max_examples=examples(200))
@given(
    blobs=st.lists(st.tuples(st.integers(1, 9), st.integers(-50, 100), st.booleans()), max_size=20),
    head=st.integers(1, 9),
)
def test_only_old_unnamed_settled_blobs_are_orphans(blobs: list[tuple[int, int, bool]], head: int) -> None:
    """I5: each blob is in one class, and an orphan has every property that it needs to go."""
    listed = [at(blob_key(revision), hours) for revision, hours, _ in blobs]
    named = {entry.key for entry, (_, _, is_named) in zip(listed, blobs, strict=True) if is_named}
    verdict = classify(Blobs(listed), named, head=head, now=NOW, guard=timedelta(hours=24))
    assert verdict.referenced == len(named)
    classes = [*verdict.pending, *verdict.orphaned, *verdict.suspicious]
    assert sorted(entry.key for entry in classes) == sorted({entry.key for entry in listed} - named)
    for entry in verdict.orphaned:
        assert entry.key not in named
        assert (parse_blob_key(entry.key) or 99) <= head
        assert NOW - entry.modified >= timedelta(hours=24)
