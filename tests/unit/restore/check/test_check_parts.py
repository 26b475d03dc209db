"""What a check says of parts: their files, their names, and what they cover.

Guards I1 to I8, I14 and I15, each with a fault that it must find.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from disks.local.disk import LocalDisk
from disks.stores.base import ByteRange
from oplog.kinds import Dropped, Inserted, OtherKind
from restore.check.check import check
from restore.check.copies import overlaps
from tests.unit.restore.check.checked_site import DATA, TABLE, Site, add_part, define, flip, parquet
from tests.unit.restore.check.checked_site import site as site
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import DataFile, Part, PartName
from tiering.table.schema import TableDefinition

# The SSD


@pytest.mark.parametrize("files", [(DATA, "part.json"), (DATA,)])
def test_a_part_that_goes_while_it_is_read_is_no_problem(
    site: Site, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    """As a merge or a move takes it away; but where its `part.json` stays, the file is missing."""
    directory, read = TABLE.part_directory("all_3_3_0"), site.ssd.read

    def read_after_removal(path: str, byte_range: ByteRange | None = None) -> bytes:
        if path == f"{directory}/{DATA}" and site.ssd.exists(path):
            with site.ssd.transaction(Dropped()) as transaction:
                for file in files:
                    transaction.remove(f"{directory}/{file}")
                transaction.commit()
        return read(path, byte_range)

    monkeypatch.setattr(site.ssd, "read", read_after_removal)
    problems = site.check(read_data=True).problems
    assert not site.ssd.exists(f"{directory}/{DATA}")
    assert [problem.path for problem in problems] == ([] if "part.json" in files else [f"{directory}/{DATA}"])


@pytest.mark.parametrize("read_data", [False, True])
def test_a_missing_file(site: Site, read_data: bool) -> None:
    site.file("all_3_3_0").unlink()
    problem = site.only(read_data=read_data)
    assert (problem.invariant, problem.disk, problem.part) == ("I1", "ssd", "all_3_3_0")


def test_a_truncated_parquet_file(site: Site) -> None:
    path = site.file("all_3_3_0")
    path.write_bytes(path.read_bytes()[:-20])
    problem = site.only()
    assert (problem.invariant, problem.path) == ("I1", f"{TABLE.part_directory('all_3_3_0')}/{DATA}")


def test_a_flipped_bit_on_the_ssd(site: Site) -> None:
    path = site.file("all_3_3_0")
    path.write_bytes(flip(path.read_bytes()))
    assert site.check().ok
    assert "SHA-256" in site.only(read_data=True).what


def test_a_file_that_is_no_parquet_although_its_hash_is_right(site: Site) -> None:
    path = site.file("all_3_3_0")
    junk = bytes(path.stat().st_size)
    path.write_bytes(junk)
    rewrite(site, lambda file: DataFile(file.name, file.rows, len(junk), hashlib.sha256(junk).hexdigest()))
    assert "Parquet" in site.only(read_data=True).what


def test_a_footer_with_another_row_count(site: Site) -> None:
    path = site.file("all_3_3_0")
    data = parquet(11)
    path.write_bytes(data)
    rewrite(site, lambda file: DataFile(file.name, 10, len(data), hashlib.sha256(data).hexdigest()))
    assert "11 rows" in site.only(read_data=True).what


def rewrite(site: Site, change: Callable[[DataFile], DataFile]) -> None:
    path = site.file("all_3_3_0", "part.json")
    part = part_format.decode(path.read_bytes(), path="")
    (file,) = part.files
    changed = change(file)
    path.write_bytes(
        part_format.encode(
            Part(
                table=part.table,
                name=part.name,
                rows=part.rows,
                size_bytes=changed.size_bytes,
                created=part.created,
                files=(changed,),
            )
        )
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":1}'])
def test_a_part_json_that_cannot_be_read(site: Site, content: bytes) -> None:
    """I15, P45: a zero-byte part.json."""
    site.file("all_3_3_0", "part.json").write_bytes(content)
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I15", "all_3_3_0")
    assert problem.path is not None
    assert problem.path.endswith("all_3_3_0/part.json")


def test_a_part_json_of_another_part(site: Site) -> None:
    site.file("all_3_3_0", "part.json").write_bytes(site.file("all_4_4_0", "part.json").read_bytes())
    assert "all_4_4_0" in site.only().what


def test_a_part_without_part_json_and_a_file_nobody_listed(site: Site) -> None:
    site.file("all_3_3_0", "extra.bin").write_bytes(b"x")
    assert "not listed" in site.only().what
    site.file("all_3_3_0", "part.json").unlink()
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I2", "all_3_3_0")


def test_counts_that_do_not_add_up(tmp_path: Path) -> None:
    disk = LocalDisk("ssd", tmp_path)
    define(disk)
    add_part(
        disk,
        "all_1_1_0",
        edit=lambda part: Part(
            table=part.table, name=part.name, rows=99, size_bytes=1, created=part.created, files=part.files
        ),
    )
    what = " ".join(problem.what for problem in check({"ssd": disk}).problems)
    assert "99 rows" in what
    assert "1 bytes" in what


@pytest.mark.parametrize("kind", ["link", "link to a directory", "pipe"])
def test_what_is_no_file_is_named_and_never_followed(site: Site, tmp_path: Path, kind: str) -> None:
    """A part directory with a symlink."""
    target = site.file("all_3_3_0").with_name("strange")
    match kind:
        case "link":
            target.symlink_to("/etc/passwd")
        case "link to a directory":
            target.symlink_to(tmp_path / "state", target_is_directory=True)
        case "pipe":
            os.mkfifo(target)
    problem = site.only(read_data=True)
    assert (problem.invariant, problem.part) == ("I15", "all_3_3_0")
    assert problem.path == f"{TABLE.part_directory('all_3_3_0')}/strange"


def test_leftovers_of_dead_transactions_differ_from_live_ones(site: Site) -> None:
    """I14."""
    with site.ssd.transaction(Inserted()) as transaction:
        transaction.create("some/file", b"x")
        assert site.check().ok
    staging = site.root / "ssd" / ".frostline" / "staging" / "dead"
    staging.mkdir()
    problem = site.only()
    assert (problem.invariant, problem.path) == ("I14", str(staging))
    site.ssd.recover()
    assert site.check().ok


# Across disks


def test_a_part_on_two_disks_unless_it_is_being_moved(site: Site) -> None:
    """I1."""
    add_part(site.cold, "all_3_3_0")
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I1", "all_3_3_0")
    assert "ssd" in problem.what
    assert "cold" in problem.what
    assert site.check(moving=[(TABLE.uuid, "all_3_3_0")]).ok


def test_parts_that_overlap_across_disks(site: Site) -> None:
    """I2; a covered part is outdated and no fault."""
    add_part(site.cold, "all_5_7_0")
    add_part(site.ssd, "all_6_9_0")
    problem = site.only()
    assert problem.invariant == "I2"
    assert "all_5_7_0 and all_6_9_0" in problem.what


def test_a_covered_part_is_no_overlap(site: Site) -> None:
    add_part(site.ssd, "all_1_4_1")
    assert site.check().ok


def test_a_part_in_a_bucket_covers_what_it_is_proved_made_from(site: Site) -> None:
    """I1: others write to a bucket, so a name is not believed there."""
    add_part(site.cold, "all_3_4_1")
    problems = site.check().problems
    assert {(problem.invariant, problem.part) for problem in problems} == {("I1", "all_3_4_1")}
    assert "nor the log shows" in problems[0].what


def test_a_missing_or_old_table_json_is_found_and_repaired(site: Site) -> None:
    """I7: the bucket alone is enough."""
    newer = TableDefinition(
        uuid=TABLE.uuid,
        database="db",
        name="events",
        version=2,
        columns=TABLE.columns,
        order_by=TABLE.order_by,
        policy="hot_cold",
    )
    define(site.ssd, newer)
    problem = site.only()
    assert (problem.invariant, problem.disk) == ("I7", "cold")
    assert "older" in problem.what
    assert site.check(repair=True).repaired
    assert schema.decode(site.cold.read(f"{TABLE.directory}/table.json"), path="") == newer

    with site.cold.transaction(OtherKind("test")) as transaction:
        transaction.remove(f"{TABLE.directory}/table.json")
        transaction.commit()
    assert "missing" in site.only().what
    assert site.check(repair=True).ok
    assert site.check().ok


def test_a_machines_own_disk_may_be_behind_the_bucket(site: Site) -> None:
    """Another machine has altered the table, or made one: the next command writes it to the SSD. Nothing is wrong."""
    define(site.cold, structs.replace(TABLE, version=2))
    assert site.check().ok
    with site.ssd.transaction(OtherKind("test")) as transaction:
        transaction.remove(f"{TABLE.directory}/table.json")
        transaction.commit()
    assert (site.only().disk, "missing" in site.only().what) == ("ssd", True), "it has parts of the table"
    with site.ssd.transaction(OtherKind("test")) as transaction:
        for name in ("all_3_3_0", "all_4_4_0"):
            transaction.remove(TABLE.part_directory(name))
        transaction.commit()
    assert site.check().ok
    assert site.check(repair=True).repaired
    assert site.ssd.exists(f"{TABLE.directory}/table.json")


def test_a_damaged_table_json_is_named_and_not_overwritten(site: Site) -> None:
    path = site.root / "ssd" / TABLE.directory / "table.json"
    path.write_bytes(b"")
    problem = site.only(repair=True)
    assert (problem.invariant, problem.disk, problem.path) == ("I15", "ssd", f"{TABLE.directory}/table.json")
    assert path.read_bytes() == b""


def test_overlaps_are_seen_against_the_furthest_reaching_part() -> None:
    names = [PartName("a", 1, 10, 2), PartName("a", 3, 4, 3), PartName("a", 8, 12, 0), PartName("b", 1, 10, 0)]
    assert overlaps(names) == [(names[0], names[1]), (names[0], names[2])]
    assert overlaps(names[3:]) == []


def test_a_part_that_another_spans_without_having_its_rows(site: Site) -> None:
    """I1, I19: a name alone would hide rows; they are in every answer, beside that part's."""
    define(site.ssd, replace_settings(1000))
    define(site.cold, replace_settings(1000))

    def digest(value: str) -> Callable[[Part], Part]:
        return lambda part: structs.replace(part, digests=(value,))

    add_part(site.ssd, "all_10_10_0", edit=digest("a"))
    add_part(site.ssd, "all_10_11_1", edit=digest("b"))
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I1", "all_10_11_1")
    assert "takes the place of all_10_10_0" in problem.what


def replace_settings(window: int) -> TableDefinition:
    settings = structs.replace(TABLE.settings, deduplication_window=window)
    return structs.replace(TABLE, version=2, settings=settings)
