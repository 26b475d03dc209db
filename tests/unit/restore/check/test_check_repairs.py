"""What a repair does, and what it leaves.

Guards I1 to I8, I14 and I15.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from oplog.errors import Locked, Refused
from oplog.kinds import OtherKind, SetAside
from oplog.revision import commit_key
from restore.check.check import CheckOptions, check
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.unit.restore.check.checked_site import POLICIES, TABLE, Site, add_part, flip
from tests.unit.restore.check.checked_site import site as site

# Repair


def test_a_repair_sets_aside_unreadable_parts_deletes_nothing(site: Site) -> None:
    """I15: the reason is in the name; queries see the rest; the part comes back by hand."""
    key = site.blob("all_1_1_0")
    data, info = site.bucket._objects[key]
    site.bucket.delete([key])
    site.file("all_3_3_0", "part.json").write_bytes(b"")
    before = set(site.bucket._objects)
    dry = site.check(repair=True, dry_run=True)
    assert len(dry.problems) == 2
    assert all("would" in sentence for sentence in dry.repaired)
    assert set(site.bucket._objects) == before
    result = site.check(repair=True)
    assert result.ok
    assert len(result.repaired) == 2
    aside = f"{TABLE.directory}/detached"
    assert site.cold.list(aside) == ["missing_all_1_1_0/"]
    assert site.ssd.list(aside) == ["broken_all_3_3_0/"]
    assert before <= set(site.bucket._objects)
    again = site.check()
    assert again.ok
    assert again.set_aside == [f"ssd:{aside}/broken_all_3_3_0", f"cold:{aside}/missing_all_1_1_0"]
    commit = next(iter(site.cold.entries(limit=1))).commit
    assert (commit.kind, commit.reason) == (SetAside(), "fsck: part all_1_1_0 is missing")

    site.bucket._objects[key] = (data, info)
    with site.cold.transaction(OtherKind("test")) as transaction:
        transaction.rename(f"{aside}/missing_all_1_1_0", TABLE.part_directory("all_1_1_0"))
        transaction.commit()
    assert site.check(read_data=True).set_aside == [f"ssd:{aside}/broken_all_3_3_0"]


def test_a_disk_with_a_part_set_aside_goes_back_and_is_collected(site: Site) -> None:
    """I7: that the object of a part in detached/ is gone is known; what needs no such object goes on."""
    site.bucket.delete([site.blob("all_1_1_0")])
    assert site.check(repair=True).ok
    aside = site.cold.revision
    add_part(site.cold, "all_9_9_0")
    with pytest.raises(Refused, match="1 object that is gone"):
        restore(site.cold, RebuildRequest(revision=aside - 1, apply=True))
    assert restore(site.cold, RebuildRequest(revision=aside, apply=True)).applied
    assert not site.cold.exists(TABLE.part_directory("all_9_9_0"))
    later = datetime.now(UTC) + timedelta(days=3)
    report = collect(site.cold, GcRules(delete=True, max_delete_fraction=1.0), now=later)
    assert (report.refused, report.deleted) == (None, 1)
    site.cold.retention_seconds = -1
    assert site.check().ok


def test_a_repair_keeps_what_reading_proved_to_be_altered(site: Site) -> None:
    site.spoil(site.blob("all_1_1_0"), flip)
    assert site.check(repair=True).ok, "a quick check does not read data"
    assert site.check(read_data=True, repair=True).ok
    assert site.cold.list(f"{TABLE.directory}/detached") == ["altered_all_1_1_0/"]
    assert site.check(read_data=True).ok


def test_a_second_broken_part_of_a_name_finds_a_place(site: Site) -> None:
    for _ in range(2):
        site.file("all_3_3_0", "part.json").unlink()
        assert site.check(repair=True).ok
        add_part(site.ssd, "all_3_3_0")
    assert site.ssd.list(f"{TABLE.directory}/detached") == ["incomplete_all_3_3_0/", "incomplete_all_3_3_0_try2/"]


def test_a_repair_touches_no_part_that_is_moving_or_claimed(site: Site) -> None:
    site.file("all_3_3_0", "part.json").unlink()
    assert not site.check(repair=True, moving=[(TABLE.uuid, "all_3_3_0")]).ok

    @contextmanager
    def refuse(uuid: str, parts: list[str], why: str) -> Iterator[None]:
        raise Locked(f"{parts} are busy")
        yield

    result = check(site.disks, CheckOptions(repair=True), policies=POLICIES, claim=refuse)
    assert not result.ok
    assert "busy" in result.repaired[0]


def test_a_repair_believes_no_short_listing(site: Site) -> None:
    """P29: every blob that the listing lacks is asked for by name before its part is called missing."""
    keys = {site.blob("all_1_1_0"), site.blob("all_2_2_0")}
    whole = site.bucket.list
    site.bucket.list = lambda prefix="", start_after="": (  # type: ignore[method-assign,misc]
        info for info in whole(prefix, start_after=start_after) if info.key not in keys
    )
    result = site.check(repair=True)
    assert {problem.invariant for problem in result.problems} == {"I15"}
    assert result.repaired == []


def test_a_repair_finishes_what_a_crash_left(site: Site) -> None:
    """I14."""
    for place in (site.root / "ssd" / ".frostline" / "staging" / "dead", site.cold.state_path / "scratch" / "dead"):
        place.mkdir(parents=True)
    assert {problem.invariant for problem in site.check().problems} == {"I14"}
    assert {problem.invariant for problem in site.check(repair=True, dry_run=True).problems} == {"I14"}
    result = site.check(repair=True)
    assert result.ok
    assert len(result.repaired) == 2


def test_a_log_that_cannot_be_replayed_is_checked_by_the_cache(site: Site) -> None:
    """I6, I3: the cache is the last witness."""
    site.bucket.delete([commit_key(1)])
    site.bucket.delete([site.blob("all_1_1_0")])
    invariants = {problem.invariant for problem in site.check(read_data=True).problems}
    assert {"I6", "I7", "I3"} <= invariants
