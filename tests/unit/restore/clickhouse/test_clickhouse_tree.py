"""ClickHouse's local metadata, versions 1 to 5: read, written, and the same after both. Guards I7, I8, I15, P47.

The capture is a disk that ClickHouse 24.8 wrote: see its README."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks import effects
from oplog.clickhouse.metadata import Metadata, decode, encode
from oplog.errors import Damaged, FrostlineError, Refused, UsageError
from oplog.replay import FileRow
from restore.clickhouse.tree import read_tree, write_tree
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX
from tests.turns import examples

LOCAL = CLICKHOUSE / "local"
EXAMPLE = b"3\n1\t4\n4\tr1-file-vsv/ifrmr\n2\n1\n"


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def link_counts(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_nlink for path in directory.rglob("*") if path.is_file()}


# The codec

BLOBS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40),
        st.integers(0, 1 << 62),
    ),
    max_size=5,
).map(tuple)


@given(BLOBS, st.integers(0, 1000), st.booleans(), st.binary(max_size=60), st.sampled_from([1, 2, 3, 4, 5]))
def test_what_is_encoded_is_decoded(
    blobs: tuple[tuple[str, int], ...], ref_count: int, read_only: bool, inline: bytes, version: int
) -> None:
    """P47: dump, load, dump is identical, over all versions and every kind of file."""
    metadata = Metadata(blobs, ref_count, read_only and version >= 3, inline if version >= 4 else b"")
    data = encode(metadata, version, key_prefix="some/prefix/")
    assert decode(data, key_prefix="some/prefix/", name="x") == (metadata, version)
    assert encode(decode(data, key_prefix="some/prefix/", name="x")[0], version, key_prefix="some/prefix/") == data


def test_the_versions_differ_as_clickhouse_wrote_them() -> None:
    metadata = Metadata((("r1-file-a", 3), ("r2-file-b", 4)), 1, True)
    written = {version: encode(metadata, version, key_prefix="p/") for version in (1, 2, 3, 4, 5)}
    assert written[1] == b"1\n2\t7\n3\tp/r1-file-a\n4\tp/r2-file-b\n1\n"
    assert written[2] == b"2\n2\t7\n3\tr1-file-a\n4\tr2-file-b\n1\n"
    assert written[3] == b"3\n2\t7\n3\tr1-file-a\n4\tr2-file-b\n1\n1\n"
    assert written[4] == b"4\n2\t7\n3\tr1-file-a\n4\tr2-file-b\n1\n1\n\n"
    assert written[5] == b"5\n2\t7\n3\tp/r1-file-a\n4\tp/r2-file-b\n1\n1\n\n"
    assert encode(Metadata(()), 3, key_prefix="p/") == b"3\n0\t0\n0\n0\n"
    inline = Metadata((), inline=b"a\tb\nc'\\d\x00")
    assert encode(inline, 4, key_prefix="") == b"4\n0\t0\n0\n0\na\\tb\\nc\\'\\\\d\\0\n"
    with pytest.raises(UsageError, match="no place"):
        encode(inline, 3, key_prefix="")


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b"", "", "is empty"),
        (b"3\n", "line 2", "cut off"),
        (b"6\n1\t4\n4\tk\n0\n0\n", "line 1", "version 6"),
        (b"x\n", "line 1", "a number"),
        (b"3\n1 4\n4\tk\n0\n0\n", "line 2", "number of objects"),
        (b"3\n1\t5\n4\tk\n0\n0\n", "line 2", "total"),
        (b"3\n999999999\t5\n4\tk\n0\n0\n", "line 2", "objects"),
        (b"3\n1\t4\n4 k\n0\n0\n", "line 3", "key"),
        (b"3\n1\t4\n-4\tk\n0\n0\n", "line 3", "key"),
        (b"3\n1\t4\n4\t\xff\n0\n0\n", "line 3", "UTF-8"),
        (b"3\n1\t4\n4\t\n0\n0\n", "line 3", "empty"),
        (b"5\n1\t4\n4\tother/k\n0\n0\n\n", "line 3", "prefix"),
        (EXAMPLE[:-2], "line 5", "cut off"),
        (EXAMPLE.replace(b"\n1\n", b"\n2\n"), "line 5", "read-only"),
        (EXAMPLE + b"more\n", "line 6", "after the end"),
        (EXAMPLE[:-1], "line 5", "cut off"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(data: bytes, line: str, why: str) -> None:
    with pytest.raises(Damaged, match=why) as caught:
        decode(data, key_prefix="p/", name="store/x/count.txt")
    assert "store/x/count.txt" in caught.value.message
    assert line in caught.value.message


def test_every_prefix_of_a_file_raises_only_damaged() -> None:
    for stop in range(len(EXAMPLE)):
        with pytest.raises(Damaged):
            decode(EXAMPLE[:stop], key_prefix="", name="x")


# The capture


def test_the_capture_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """I7: a tree that ClickHouse wrote is read and written again: bytes, names, hard links."""
    tree = read_tree(LOCAL, key_prefix=KEY_PREFIX)
    assert (tree.problems, tree.miscounted, dict(tree.versions)) == ([], [], {3: len(tree.rows) - 1})
    out = tmp_path / "out"
    written = write_tree(out, list(tree.rows.values()), version=3, key_prefix=KEY_PREFIX)
    assert content(out) == content(LOCAL)
    lines = [line.split("\t") for line in (CLICKHOUSE / "local-links.txt").read_text().splitlines()]
    assert {path: f"nlink={count}" for path, count in link_counts(out).items()} == {line[3]: line[0] for line in lines}
    assert (written.files, written.written, written.unchanged) == (len(tree.rows), len(tree.rows), 0)
    again = write_tree(out, list(tree.rows.values()), version=3, key_prefix=KEY_PREFIX)
    assert (again.written, again.unchanged) == (0, len(tree.rows))


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_the_capture_through_every_version(tmp_path: Path, version: int) -> None:
    first = read_tree(LOCAL, key_prefix=KEY_PREFIX)
    write_tree(tmp_path / "one", list(first.rows.values()), version=version, key_prefix=KEY_PREFIX)
    second = read_tree(tmp_path / "one", key_prefix=KEY_PREFIX)
    assert second.problems == []
    assert second.miscounted == []
    expected = first.rows
    if version < 3:  # they have no word for it
        expected = {path: msgspec.structs.replace(row, read_only=False) for path, row in first.rows.items()}
    assert second.rows == expected
    write_tree(tmp_path / "two", list(second.rows.values()), version=version, key_prefix=KEY_PREFIX)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert link_counts(tmp_path / "two") == link_counts(tmp_path / "one")


def test_damaged_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    """I15, and ClickHouse's fifth defect: a server that was killed leaves an empty metadata file."""
    tree = tmp_path / "tree"
    shutil.copytree(LOCAL, tree)
    paths = sorted(path for path in tree.rglob("count.txt"))
    paths[0].write_bytes(b"")
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    paths[2].unlink()
    paths[2].symlink_to("/etc/passwd")
    read = read_tree(tree, key_prefix=KEY_PREFIX)
    assert [str(paths[number]) in problem.message for number, problem in enumerate(read.problems)] == [True] * 3
    assert "is empty" in read.problems[0].message
    assert len(read.rows) == len(content(LOCAL)) - 3
    with pytest.raises(FrostlineError, match="no directory"):
        read_tree(tree / "nothing", key_prefix=KEY_PREFIX)
    other = read_tree(LOCAL, key_prefix="other/")  # version 3 holds relative keys: any prefix will do
    assert other.problems == []


# Writing

ROWS = [
    FileRow("a/1", 3, "", "k1", None, None, 1),
    FileRow("a/2", 5, "", "k2", None, None, 1, (("k3", 2),)),
    FileRow("b/1", 3, "", "k1", None, None, 1),
    FileRow("b/empty", 0, "", None, b"", None, 1),
    FileRow("c/1", 3, "", "k1", None, None, 1),
]


def test_names_of_one_file_are_one_inode(tmp_path: Path) -> None:
    """I8: the server deletes the objects with the last name, so the count must be right."""
    written = write_tree(tmp_path, ROWS, version=3, key_prefix="p/")
    assert (tmp_path / "a/1").samefile(tmp_path / "b/1")
    assert (tmp_path / "a/1").samefile(tmp_path / "c/1")
    assert (tmp_path / "a/1").read_bytes() == b"3\n1\t3\n3\tk1\n2\n0\n"
    assert (written.linked, written.bytes) == (2, 8)


def test_an_object_of_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"k1 belongs to a/1 and to b/2"):
        write_tree(
            tmp_path / "x",
            [ROWS[0], FileRow("b/2", 5, "", "k1", None, None, 1, (("k3", 2),))],
            version=3,
            key_prefix="p/",
        )
    assert not (tmp_path / "x").exists()


def test_nothing_foreign_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, data in (("other", b"x"), ("b/1", b"not ours")):
        (tmp_path / name).write_bytes(data)
        before = content(tmp_path)
        with pytest.raises(Refused, match=name):
            write_tree(tmp_path, ROWS, version=3, key_prefix="p/")
        assert content(tmp_path) == before
        (tmp_path / name).unlink()
    unlinked = tmp_path / "b/1"
    unlinked.write_bytes(b"3\n1\t3\n3\tk1\n2\n0\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1").write_bytes(unlinked.read_bytes())  # the same bytes, but not the same inode
    with pytest.raises(Refused, match="b/1"):
        write_tree(tmp_path, ROWS, version=3, key_prefix="p/")


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    written = write_tree(tmp_path / "new", ROWS, version=3, key_prefix="p/", dry_run=True)
    assert written.written == 5
    assert not (tmp_path / "new").exists()


def test_hard_links_of_an_objectless_empty_file_stay_links(tmp_path: Path) -> None:
    """I8: a server counts them, 25.5 and later, as those of files with objects. What is not linked is not."""
    rows = [
        FileRow("a/1", 0, "", None, b"", "a/1", 0),
        FileRow("a/2", 0, "", None, b"", None, 0),
        FileRow("b/1", 0, "", None, b"", "a/1", 0),
    ]
    for version in (3, 5):
        place = tmp_path / str(version)
        write_tree(place, rows, version=version, key_prefix="p/")
        assert link_counts(place) == {"a/1": 2, "a/2": 1, "b/1": 2}
        assert content(place)["b/1"].split(b"\n")[2] == b"1"
        read = read_tree(place, key_prefix="p/")
        assert (list(read.rows.values()), read.miscounted) == (rows, [])
    (tmp_path / "3" / "b/1").unlink()
    assert read_tree(tmp_path / "3", key_prefix="p/").miscounted == ["a/1"]


class Stopped(BaseException):
    pass


@pytest.fixture
def no_hook() -> Iterator[None]:
    yield
    effects.set_hook(None)


@pytest.mark.crash
@pytest.mark.usefixtures("no_hook")
def test_an_export_goes_on_wherever_it_was_stopped(tmp_path: Path) -> None:
    expected = tmp_path / "whole"
    steps = 0

    def count(when: str, name: str, args: tuple[object, ...]) -> None:
        nonlocal steps
        steps += 1

    effects.set_hook(count)
    write_tree(expected, ROWS, version=3, key_prefix="p/")
    for stop in range(steps):
        out = tmp_path / f"at{stop}"
        left = stop

        def die(when: str, name: str, args: tuple[object, ...]) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        effects.set_hook(die)
        with pytest.raises(Stopped):
            write_tree(out, ROWS, version=3, key_prefix="p/")
        effects.set_hook(None)
        write_tree(out, ROWS, version=3, key_prefix="p/")
        assert content(out) == content(expected)
        assert link_counts(out) == link_counts(expected)
        shutil.rmtree(out)


NAMES = st.text("abc", min_size=1, max_size=2)
FILES = st.dictionaries(
    st.lists(NAMES, min_size=2, max_size=3).map("/".join),
    st.one_of(st.integers(0, 3), st.binary(max_size=8)),
    max_size=12,
)


@settings(max_examples=examples(40), deadline=None)
@given(files=FILES, version=st.sampled_from([4, 5]))
def test_any_tree_survives_the_way_through_the_file_system(
    files: dict[str, int | bytes], version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """P47 for whole trees: rows, tree, rows, tree."""
    inodes = [(("k0", 0),), (("k1", 7),), (("k2", 7), ("k3", 9)), (("k4", 1),)]
    rows: dict[str, FileRow] = {}
    for path, what in sorted(files.items()):
        if any(path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in rows):
            continue
        if isinstance(what, bytes):
            rows[path] = FileRow(path, len(what), "", None, what, None, 0)
        else:
            blobs = inodes[what]
            size = sum(number for _, number in blobs)
            rows[path] = FileRow(path, size, "", blobs[0][0], None, None, 0, blobs[1:], what == 3)
    directory = tmp_path_factory.mktemp("tree")
    write_tree(directory, list(rows.values()), version=version, key_prefix="p/")
    read = read_tree(directory, key_prefix="p/")
    assert (read.rows, read.problems, read.miscounted) == (rows, [], [])
    assert all(os.stat(directory / path).st_nlink == _count(rows, row) for path, row in rows.items())


def _count(rows: dict[str, FileRow], row: FileRow) -> int:
    return sum(other.blobs == row.blobs for other in rows.values()) if row.blobs else 1
