"""restore.rebuild.plan: differences between file tables, the operations that undo them, blobs, digests (I7, P37)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oplog.replay import FileRow
from restore.rebuild.plan import (
    MissingObject,
    TableDifference,
    compare,
    in_scope,
    kept_reservations,
    lost_objects,
    missing_objects,
    table_digest,
    with_paths,
)


@dataclass(frozen=True)
class File:
    size_bytes: int = 1
    sha256: str | None = "aa"
    key: str | None = "k"
    inline: bytes | None = None
    blob_set: str | None = None

    @property
    def blobs(self) -> tuple[tuple[str, int], ...]:
        return ((self.key, self.size_bytes),) if self.key is not None else ()


def difference_of(
    current: Mapping[str, File], wanted: Mapping[str, File], scope: list[str] | None = None
) -> TableDifference:
    return compare(sorted(current.items()), sorted(wanted.items()), scope)


def applied(current: Mapping[str, File], wanted: Mapping[str, File], scope: list[str] | None = None) -> dict[str, File]:
    """What the commit of a restore does to the table: all removes, then all creates, as strict as the log's replay."""
    difference = difference_of(current, wanted, scope)
    result = dict(current)
    for path in difference.removed:
        del result[path]
    for path in difference.created:
        assert path not in result
        assert not any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in result)
        result[path] = wanted[path]
    return result


def test_scope_is_by_whole_directory_names() -> None:
    assert in_scope("store/a/x", ["store/a"])
    assert in_scope("store/a/x", ["store/a/"])
    assert in_scope("store/a", ["store/a"])
    assert not in_scope("store/ab/x", ["store/a"])
    assert in_scope("anything", None)
    assert not in_scope("anything", [])


def test_difference_names_created_removed_and_changed_paths() -> None:
    current = {"same": File(), "gone": File(), "changed": File(key="old")}
    wanted = {"same": File(), "new": File(), "changed": File(key="new")}
    difference = difference_of(current, wanted)
    assert difference.created == ("changed", "new")
    assert difference.removed == ("changed", "gone")
    assert difference.unchanged == 1
    assert not difference.empty
    assert difference_of(current, current).empty


def test_a_scope_leaves_other_tables_alone() -> None:
    """P37: restoring one table must not touch another."""
    current = {"t/1/f": File(), "u/1/f": File()}
    wanted = {"t/2/f": File(), "u/2/f": File()}
    difference = difference_of(current, wanted, ["t"])
    assert difference.created == ("t/2/f",)
    assert difference.removed == ("t/1/f",)
    assert applied(current, wanted, ["t"]) == {"t/2/f": File(), "u/1/f": File()}


def test_files_go_one_by_one_so_that_an_added_file_survives() -> None:
    """P43: a directory removed whole would take along what another writer put there after the plan was made."""
    current = {"s/t/p1/a": File(), "s/t/p1/b": File()}
    assert difference_of(current, {}).removed == ("s/t/p1/a", "s/t/p1/b")


def test_missing_objects_are_proved_by_size_too() -> None:
    """I3: an object counts only with the size that the table says."""
    wanted = {"a": File(key="ka", size_bytes=3), "b": File(key="kb", size_bytes=3), "c": File(key=None, inline=b"x")}
    assert missing_objects(wanted, {"ka": 3, "kb": 3}) == ()
    (short,) = missing_objects(wanted, {"ka": 3, "kb": 2})
    assert (short.key, short.path, short.size_bytes, short.found_bytes) == ("kb", "b", 3, 2)
    (gone,) = missing_objects(wanted, {"kb": 3})
    assert (gone.key, gone.found_bytes) == ("ka", None)
    assert missing_objects(wanted, {}, ["c"]) == ()


def test_lost_objects_are_found_by_reading_the_listing_in_step() -> None:
    """I3: every blob that the listing lacks, or shows with another size; links name one blob twice."""
    blobs = [("a", 1, "p"), ("b", 1, "q"), ("b", 1, "r"), ("c", 1, "s"), ("e", 1, "t")]
    listed = [("b", 1), ("bb", 7), ("c", 2), ("d", 1)]
    assert [(lost.key, lost.found_bytes) for lost in lost_objects(blobs, listed)] == [
        ("a", None),
        ("c", 2),
        ("e", None),
    ]
    assert len(list(lost_objects(blobs, []))) == 5


def test_lost_objects_are_told_for_each_file_that_needs_them() -> None:
    """Found by their keys, as they are where the files are in no table."""

    def row(path: str, key: str | None, size_bytes: int = 3, more: tuple[tuple[str, int], ...] = ()) -> FileRow:
        return FileRow(path, size_bytes, "", key, None, None, 1, more)

    rows = [row("t/a", "gone"), row("t/b", "gone"), row("t/c", "short"), row("t/d", None), row("t/e", "there")]
    rows += [row("t/f", "there", 5, (("gone", 2),)), row("t/g", "short", 2), row("u/a", "gone")]
    lost = {"gone": None, "short": 2}
    assert with_paths(lost, iter(rows), ["t"]) == [
        MissingObject("gone", "t/a", 3),
        MissingObject("gone", "t/b", 3),
        MissingObject("short", "t/c", 3, 2),
        MissingObject("gone", "t/f", 2),
    ]
    assert len(with_paths(lost, iter(rows), None)) == 5
    assert with_paths({}, iter(rows), None) == []


def test_taken_ranges_of_block_numbers_stay_taken() -> None:
    """Also those of a table that is gone: it may come back."""
    newest = [("t/blocks-1.json", File()), ("t/p/part.json", File()), ("u/levels-0.json", File())]
    assert list(kept_reservations(newest)) == [("t/blocks-1.json", File()), ("u/levels-0.json", File())]


def test_digest_sees_every_field_and_no_order() -> None:
    table = {"a": File(), "b": File(size_bytes=2)}
    base = table_digest(table)
    assert table_digest(dict(reversed(table.items()))) == base
    for other in (File(size_bytes=9), File(sha256="bb"), File(key="other"), File(blob_set="p")):
        assert table_digest({**table, "a": other}) != base
    assert table_digest({"a": File()}) != base
    assert table_digest({**table, "z/1": File()}, ["a", "b"]) == base


segment = st.sampled_from(["a", "b", "c", "ab"])
paths = st.lists(segment, min_size=1, max_size=3).map("/".join)
files = st.builds(File, key=st.sampled_from(["k1", "k2", "k3"]))


def _tree(table: dict[str, File]) -> dict[str, File]:
    """Drop paths that would be a file and a directory at once."""
    return {path: file for path, file in table.items() if not any(other.startswith(path + "/") for other in table)}


tables = st.dictionaries(paths, files, max_size=8).map(_tree)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(current=tables, wanted=tables)
def test_operations_turn_any_table_into_any_other(current: dict[str, File], wanted: dict[str, File]) -> None:
    """I7: the one commit of a restore gives exactly the wanted table."""
    difference = difference_of(current, wanted)
    assert applied(current, wanted) == wanted
    assert difference.unchanged + len(difference.created) == len(wanted)
    counted = compare(sorted(current.items()), sorted(wanted.items()), paths=False)
    assert (counted.created_files, counted.removed_files) == (len(difference.created), len(difference.removed))
    assert counted.created == counted.removed == ()
