"""Every form that ClickHouse's log has taken, and its defects: what a rebuild makes of them, and what it says."""

from __future__ import annotations

import threading

import pytest

from disks.stores.base import ObjectInfo, ObjectStore
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from disks.workers.parallel import Askers
from disks.workers.progress import Silent
from oplog.clickhouse.names import FILE, Name, file_key, operation_key, parse_key
from oplog.errors import AccessDenied, NotFound, UsageError
from restore.clickhouse.bucket import ClickHouseTree, read_bucket
from tests.compat.buckets import TABLE, ClickHouse, Object, in_memory
from tests.compat.replaying import kinds, read


def shape(tree: ClickHouseTree) -> dict[str, tuple[list[str], int]]:
    """Path -> keys and links."""
    return {path: ([key for key, _ in file.blobs], file.links) for path, file in tree.files.items()}


class TestKeys:
    LETTERS = "abcdefghijklmnopqrstuvwxyzabcdef"

    @pytest.mark.parametrize(
        ("key", "name"),
        [
            (f"r{5:064b}-file-abc/{LETTERS[:29]}", Name(5, FILE)),
            (f"r{5:064b}-file-{LETTERS}", Name(5, FILE)),
            (f"operations/r{7:064b}-rename", Name(7, "rename")),
            (f"operations/r{7:064b}-vm-rename", Name(7, "rename", "vm")),
            (f"operations/r{7:064b}-ch-1.example.com-hardlink", Name(7, "hardlink", "ch-1.example.com")),
            (f"operations/r{(1 << 63) - 1:064b}-rename", Name((1 << 63) - 1, "rename")),
            (f"abc/{LETTERS[:29]}", Name(0, FILE)),
            (LETTERS, Name(0, FILE)),
        ],
    )
    def test_every_style(self, key: str, name: Name) -> None:
        assert parse_key(key) == name

    @pytest.mark.parametrize(
        "key",
        [
            f"r{5:063b}-file-{LETTERS}",
            f"r{5:064b}-file-{LETTERS}x",
            f"r{5:064b}-file-ABC/{LETTERS[:29]}",
            f"operations/x{5:064b}-rename",
            f"operations/r{5:064b}",
            f"operations/r{1 << 63:064b}-rename",  # no server counts so far, and SQLite holds no such number
            f"{LETTERS}\n",
            "store/abc/file.bin",
            ".SCHEMA_VERSION",
        ],
    )
    def test_other_names_are_not_ours(self, key: str) -> None:
        assert parse_key(key) is None

    def test_what_we_write_is_what_we_read(self) -> None:
        assert parse_key(file_key(9, self.LETTERS)) == Name(9, FILE)
        assert parse_key(operation_key(9, "hardlink", "my-host")) == Name(9, "hardlink", "my-host")


@pytest.mark.parametrize("host", ["vm", "ch-1.example.com", None])
@pytest.mark.parametrize("old_keys", [False, True])
class TestEveryStyle:
    """The same history in each style of keys."""

    def test_the_tree_and_every_revision_of_it(self, host: str | None, old_keys: bool) -> None:
        """I7. Defect 7: the filter works on every style of key."""
        server = ClickHouse(host=host, old_keys=old_keys)
        one = server.file("d/tmp_a/x")
        two = server.file("d/tmp_a/y")
        server.rename("d/tmp_a/", "d/a/")
        server.link("d/a/x", "d/tmp_b/x")
        three = server.file("d/tmp_b/y")
        server.rename("d/tmp_b", "d/b")
        states: list[dict[str, tuple[list[str], int]]] = [
            {},
            {"d/tmp_a/x": ([one], 1)},
            {"d/tmp_a/x": ([one], 1), "d/tmp_a/y": ([two], 1)},
            {"d/a/x": ([one], 1), "d/a/y": ([two], 1)},
            {"d/a/x": ([one], 2), "d/a/y": ([two], 1), "d/tmp_b/x": ([one], 2)},
            {"d/a/x": ([one], 2), "d/a/y": ([two], 1), "d/tmp_b/x": ([one], 2), "d/tmp_b/y": ([three], 1)},
            {"d/a/x": ([one], 2), "d/a/y": ([two], 1), "d/b/x": ([one], 2), "d/b/y": ([three], 1)},
        ]
        for revision, expected in enumerate(states):
            tree = read(server, revision)
            assert shape(tree) == expected
            assert tree.revision == revision
        assert shape(read(server)) == states[-1]
        assert shape(read(server, 1000)) == states[-1]
        assert read(server).findings == []


class TestRenames:
    def test_of_a_file(self) -> None:
        server = ClickHouse()
        key = server.file("d/tmp_mutation_6.txt")
        server.rename("d/tmp_mutation_6.txt", "d/mutation_6.txt")
        assert shape(read(server)) == {"d/mutation_6.txt": ([key], 1)}

    def test_only_whole_segments_match(self) -> None:
        server = ClickHouse()
        key = server.file("d/ab/x")
        server.rename("d/a", "d/c")
        assert shape(read(server)) == {"d/ab/x": ([key], 1)}

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_into_an_existing_directory_merges(self, slash: str) -> None:
        server = ClickHouse()
        kept = server.file("d/old/kept")
        server.file("d/old/both")
        below = server.file("d/old/sub/kept")
        new = server.file("d/new/both")
        inner = server.file("d/new/sub/added")
        server.rename(f"d/new{slash}", f"d/old{slash}")
        tree = read(server)
        assert shape(tree) == {
            "d/old/both": ([new], 1),
            "d/old/kept": ([kept], 1),
            "d/old/sub/added": ([inner], 1),
            "d/old/sub/kept": ([below], 1),
        }
        assert tree.replayed.merged == ("d/old",)

    def test_without_a_source_nothing_happens(self) -> None:
        server = ClickHouse()
        key = server.file("d/x")
        server.rename("d/gone/", "d/a/")
        tree = read(server)
        assert shape(tree) == {"d/x": ([key], 1)}
        assert tree.replayed.without_source == 1
        assert tree.findings == []

    @pytest.mark.parametrize(
        ("source", "target"), [("d/a", "d/a/b"), ("d/a", "d/file"), ("d/file", "d/a"), ("d/a", "d/file/b")]
    )
    def test_one_that_cannot_be_is_named(self, source: str, target: str) -> None:
        server = ClickHouse()
        server.file("d/a/x")
        server.file("d/file")
        server.rename(source, target)
        tree = read(server)
        assert set(tree.files) == {"d/a/x", "d/file"}
        assert len(tree.findings) == 1
        assert tree.findings[0].revision == 3

    def test_onto_itself_changes_nothing(self) -> None:
        server = ClickHouse()
        server.file("d/a/x")
        server.rename("d/a/", "d/a/")
        tree = read(server)
        assert set(tree.files) == {"d/a/x"}
        assert tree.findings == []

    def test_a_move_to_the_disk_is_one_rename(self) -> None:
        server = ClickHouse()
        server.part(f"{TABLE}/moving/all_1_1_0", "k.bin")
        server.rename(f"{TABLE}/moving/all_1_1_0/", f"{TABLE}/all_1_1_0/")
        tree = read(server)
        assert {path.rpartition("/")[0] for path in tree.files} == {f"{TABLE}/all_1_1_0"}
        assert tree.findings == []

    def test_into_one_another_without_end(self) -> None:
        """A bucket made to harm its reader: paths grow with every rename, far deeper than any call stack."""
        server = ClickHouse()
        server.file("d/x")
        deep = "/".join("a" * 400)
        for _ in range(20):
            server.rename("d", f"e/{deep}")
            server.rename("e", "d")
        tree = read(server)
        assert tree.files == {}
        assert kinds(tree) == ["unsafe_path"]


class TestHardLinks:
    def test_links_share_one_inode(self) -> None:
        """I8: an object lives while any path names it, so the count must be right."""
        server = ClickHouse()
        server.file("d/a/x", b"12345")
        server.link("d/a/x", "d/b/x")
        server.link("d/b/x", "d/c/x")
        server.file("d/a/y", b"12345")
        tree = read(server)
        assert {tree.files[f"d/{name}/x"].inode for name in "abc"} == {tree.files["d/a/x"].inode}
        assert tree.files["d/a/y"].inode != tree.files["d/a/x"].inode
        assert [tree.files[f"d/{name}/x"].ref_count for name in "abc"] == [2, 2, 2]
        assert tree.size_bytes == 10

    def test_a_link_outlives_a_rename_of_its_source(self) -> None:
        server = ClickHouse()
        key = server.file("d/a/x")
        server.link("d/a/x", "d/b/x")
        server.rename("d/a/", "d/delete_tmp_a/")
        tree = read(server)
        assert shape(tree) == {"d/b/x": ([key], 1)}
        assert tree.replayed.being_deleted == ("d/delete_tmp_a/x",)

    def test_a_link_to_what_is_gone_is_a_missing_file_of_its_part(self) -> None:
        """I15: a part that lacks a file is named."""
        server = ClickHouse()
        server.insert("all_1_1_0")
        lost = server.file(f"{TABLE}/all_1_1_0/v.bin")
        server.link(f"{TABLE}/all_1_1_0/v.bin", f"{TABLE}/tmp_mut_all_1_1_0_2/v.bin")
        server.part(f"{TABLE}/tmp_mut_all_1_1_0_2", "k.bin")
        server.rename(f"{TABLE}/tmp_mut_all_1_1_0_2/", f"{TABLE}/all_1_1_0_2/")
        assert read(server).findings == []
        server.delete(lost)
        tree = read(server)
        assert [finding.path for finding in tree.findings] == [f"{TABLE}/all_1_1_0_2/v.bin"]
        assert kinds(tree) == ["incomplete_part"]

    def test_a_file_written_where_a_link_was_lost_takes_its_place(self) -> None:
        """The capture's own case: ATTACH writes a file anew that a hard link had made."""
        server = ClickHouse()
        server.link("d/gone/metadata_version.txt", "d/attaching/metadata_version.txt")
        key = server.file("d/attaching/metadata_version.txt")
        server.rename("d/attaching/", "d/a/")
        tree = read(server)
        assert shape(tree) == {"d/a/metadata_version.txt": ([key], 1)}
        assert tree.findings == []

    @pytest.mark.parametrize("word", ["move", "replace"])
    @pytest.mark.parametrize("gone", [False, True])
    def test_a_part_copied_to_a_table_has_no_file_removed_at_once(self, word: str, gone: bool) -> None:
        """MOVE PARTITION TO TABLE and REPLACE PARTITION link every file and remove the version of the table's metadata,
        which the log does not tell: it is neither there nor missing."""
        server = ClickHouse()
        other = TABLE.replace("abc", "bcd")
        for number in (1, 2, 3):
            for table in (TABLE, other):
                directory = f"{table}/all_{number}_{number}_0"
                server.part(directory, "k.bin", "metadata_version.txt", checksums={"k.bin": 10})
        clone = f"{other}/tmp_{word}_from_all_1_1_0"
        for name in ("k.bin", "metadata_version.txt", "columns.txt", "checksums.txt"):
            server.link(f"{TABLE}/all_1_1_0/{name}", f"{clone}/{name}")
        server.rename(f"{clone}/", f"{other}/all_4_4_0/")
        if gone:
            server.rename(f"{TABLE}/all_1_1_0", f"{TABLE}/delete_tmp_all_1_1_0")
            server.objects = {
                key: item
                for key, item in server.objects.items()
                if item.metadata.get("path") != f"{TABLE}/all_1_1_0/metadata_version.txt"
            }
        tree = read(server)
        names = {path.rpartition("/")[2] for path in tree.files if path.startswith(f"{other}/all_4_4_0/")}
        assert names == {"k.bin", "columns.txt", "checksums.txt"}
        assert [finding.what for finding in tree.findings if "all_4_4_0" in finding.what] == []

    def test_a_copied_part_that_gets_the_file_anew_has_it(self) -> None:
        server = ClickHouse()
        server.part(f"{TABLE}/all_1_1_0", "k.bin", "metadata_version.txt", checksums={"k.bin": 10})
        clone = f"{TABLE}/tmp_replace_from_all_2_2_0"
        for name in ("k.bin", "metadata_version.txt", "columns.txt", "checksums.txt"):
            server.link(f"{TABLE}/all_1_1_0/{name}", f"{clone}/{name}")
        key = server.file(f"{clone}/metadata_version.txt", b"7")
        server.rename(f"{clone}/", f"{TABLE}/all_2_2_0/")
        tree = read(server)
        assert tree.files[f"{TABLE}/all_2_2_0/metadata_version.txt"].blobs == ((key, 1),)
        assert tree.findings == []

    def test_onto_a_file_or_a_directory_is_named(self) -> None:
        server = ClickHouse()
        server.file("d/x")
        server.file("d/y")
        server.file("d/sub/z")
        server.link("d/x", "d/y")
        server.link("d/x", "d/sub")
        assert kinds(read(server)) == ["unusable_link", "unusable_link"]


class TestFiles:
    def test_zero_bytes_with_an_object(self) -> None:
        server = ClickHouse()
        key = server.file("d/empty", b"")
        tree = read(server)
        assert shape(tree) == {"d/empty": ([key], 1)}
        assert tree.files["d/empty"].blobs == ((key, 0),)

    def test_zero_bytes_without_an_object_come_from_checksums(self) -> None:
        """25.5 and later write no object for an empty file: the part would be broken without it."""
        server = ClickHouse()
        server.part(f"{TABLE}/all_1_1_0", "count.txt", checksums={"count.txt": 10, "k.bin": 0, "k.cmrk2": 0})
        tree = read(server)
        assert tree.files[f"{TABLE}/all_1_1_0/k.bin"].blobs == ()
        assert tree.files[f"{TABLE}/all_1_1_0/k.bin"].ref_count == 0
        assert list(tree.files) == sorted(tree.files)
        assert tree.findings == []

    def test_empty_files_of_projections_and_covered_parts_are_there(self) -> None:
        """25.5: without them a projection is lost and the covered part is `broken-on-start`, and nobody says so."""
        server = ClickHouse()
        inside = {"a.bin": 0, "k.bin": 10}
        for part in ("all_1_1_0", "all_1_2_1"):
            server.part(f"{TABLE}/{part}/p.proj", "k.bin", checksums=inside)
            server.part(f"{TABLE}/{part}", "k.bin", checksums={"k.bin": 10, "e.bin": 0, "p.proj": 20})
        tree = read(server)
        for part in ("all_1_1_0", "all_1_2_1"):
            assert tree.files[f"{TABLE}/{part}/p.proj/a.bin"].blobs == ()
            assert tree.files[f"{TABLE}/{part}/e.bin"].blobs == ()
        assert tree.findings == []

    @pytest.mark.parametrize("lost", ["p.proj/k.bin", "p.proj/checksums.txt"])
    def test_a_projection_that_lacks_a_file_is_named(self, lost: str) -> None:
        """I15."""
        server = ClickHouse()
        server.part(f"{TABLE}/all_1_1_0/p.proj", "k.bin")
        server.part(f"{TABLE}/all_1_1_0", "k.bin", checksums={"k.bin": 10, "p.proj": 20})
        (key,) = [key for key, item in server.objects.items() if item.metadata.get("path", "").endswith(lost)]
        server.delete(key)
        assert [(finding.kind, finding.path) for finding in read(server).findings] == [
            ("incomplete_part", f"{TABLE}/all_1_1_0/{lost}")
        ]

    def test_hard_links_of_an_objectless_empty_file_share_an_inode(self) -> None:
        """I8: their reference count is that of the links in the log, through renames and links of links."""
        server = ClickHouse()
        checksums = {"k.bin": 10, "a.bin": 0, "b.bin": 0}
        server.part(f"{TABLE}/tmp_insert_all_1_1_0", "k.bin", checksums=checksums)
        server.rename(f"{TABLE}/tmp_insert_all_1_1_0/", f"{TABLE}/all_1_1_0/")
        for source, target in (("all_1_1_0", "all_1_1_0_2"), ("all_1_1_0_2", "all_1_1_0_3")):
            server.link(f"{TABLE}/{source}/a.bin", f"{TABLE}/tmp_clone_{target}/a.bin")
            server.part(f"{TABLE}/tmp_clone_{target}", "k.bin", checksums=checksums)
            server.rename(f"{TABLE}/tmp_clone_{target}/", f"{TABLE}/{target}/")
        tree = read(server)
        parts = ("all_1_1_0", "all_1_1_0_2", "all_1_1_0_3")
        assert [tree.files[f"{TABLE}/{part}/a.bin"].ref_count for part in parts] == [2, 2, 2]
        assert len({tree.files[f"{TABLE}/{part}/a.bin"].inode for part in parts}) == 1
        assert [tree.files[f"{TABLE}/{part}/b.bin"].ref_count for part in parts] == [0, 0, 0]
        assert tree.findings == []
        server.rename(f"{TABLE}/all_1_1_0", f"{TABLE}/delete_tmp_all_1_1_0")
        assert [read(server).files[f"{TABLE}/{part}/a.bin"].ref_count for part in parts[1:]] == [1, 1]

    def test_several_objects_are_one_file_where_clickhouse_appends(self) -> None:
        server = ClickHouse()
        keys = [server.file(f"{TABLE}/data.bin", b"x" * size) for size in (3, 5, 5)]
        server.link(f"{TABLE}/data.bin", f"{TABLE}/copy/data.bin")
        more = server.file(f"{TABLE}/data.bin", b"yy")
        tree = read(server)
        file = tree.files[f"{TABLE}/data.bin"]
        assert file.blobs == ((keys[0], 3), (keys[1], 5), (keys[2], 5), (more, 2))
        assert file.size_bytes == 15
        assert tree.files[f"{TABLE}/copy/data.bin"].blobs == file.blobs, "an append reaches every name of the file"
        assert tree.findings == []
        assert read(server, 2).files[f"{TABLE}/data.bin"].size_bytes == 8

    def test_files_from_before_send_metadata_come_first(self) -> None:
        """Turning it on copies each object onto itself: the key stays, the path is added, the time is new."""
        server = ClickHouse()
        server.insert("all_2_2_0")
        key = server.bare("d/old")
        server.rename("d/old", "d/moved")
        tree = read(server)
        assert shape(tree)["d/moved"] == ([key], 1)
        assert tree.files["d/moved"].revision == 0
        assert "d/old" in read(server, 0).files

    @pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a//b", "a/./b", "a\nb", "x" * 300])
    def test_unsafe_paths_are_refused_by_name(self, path: str) -> None:
        server = ClickHouse()
        server.file(path)
        server.file("fine")
        server.rename("fine", path)
        server.link("fine", path)
        tree = read(server)
        assert set(tree.files) == {"fine"}
        assert kinds(tree) == ["unsafe_path"] * 3

    def test_a_file_where_a_directory_is_and_the_other_way_round(self) -> None:
        server = ClickHouse()
        server.file("d/a/x")
        server.file("d/a")
        server.file("d/a/x/y")
        tree = read(server)
        assert set(tree.files) == {"d/a/x"}
        assert kinds(tree) == ["not_a_file", "not_a_directory"]


class TestMetadata:
    def rewritten(self, server: ClickHouse, change: dict[str, str | None]) -> MemoryStore:
        """The bucket with other names of user metadata; None drops one."""
        objects = []
        for item in server.objects.values():
            metadata = {
                new: value for name, value in item.metadata.items() if (new := change.get(name, name)) is not None
            }
            objects.append(Object(item.key, item.data, metadata, item.modified))
        return in_memory(objects)

    def history(self) -> ClickHouse:
        server = ClickHouse()
        server.file("d/tmp_a/x")
        server.rename("d/tmp_a/", "d/a/")
        server.link("d/a/x", "d/b/x")
        return server

    def test_dashes_instead_of_underscores(self) -> None:
        names: dict[str, str | None] = {
            name: name.replace("_", "-").title() for name in ("from_path", "to_path", "src_path", "dst_path")
        }
        tree = read_bucket(self.rewritten(self.history(), names))
        assert set(tree.files) == {"d/a/x", "d/b/x"}
        assert tree.findings == []

    @pytest.mark.parametrize("lost", ["from_path", "to_path", "src_path", "dst_path"])
    def test_dropped_names_are_reported_for_each_operation(self, lost: str) -> None:
        """I15: servers and proxies drop names with `_` without an error; a rebuild without renames is not right."""
        tree = read_bucket(self.rewritten(self.history(), {lost: None}))
        (finding,) = [finding for finding in tree.findings if finding.kind == "operation_without_paths"]
        assert finding.object is not None
        assert finding.object in finding.what

    def test_a_blob_without_a_path_is_one_that_nobody_names(self) -> None:
        tree = read_bucket(self.rewritten(self.history(), {"path": None}))
        assert tree.files == {}
        assert kinds(tree) == ["blob_without_path"]

    def test_names_that_are_not_ascii_come_back_encoded(self) -> None:
        server = ClickHouse()
        server.file("=?UTF-8?B?ZC9ncsO8bg==?=")
        server.file("=?no such charset?Q?x?=")
        assert set(read(server).files) == {"d/grün", "=?no such charset?Q?x?="}

    def test_an_unknown_operation_is_named(self) -> None:
        server = ClickHouse()
        server.file("d/x")
        server._put(f"operations/r{2:064b}-vm-truncate", b"0", {})
        assert kinds(read(server)) == ["unknown_operation"]


class Failing(WrappedStore):
    def __init__(self, inner: ObjectStore, error: Exception) -> None:
        super().__init__(inner)
        self._error = error
        self.heads = 0

    def head(self, key: str) -> ObjectInfo:
        self.heads += 1
        if self.heads == 3:
            raise self._error
        return super().head(key)


class TestStores:
    def server(self) -> ClickHouse:
        server = ClickHouse()
        for number in range(200):
            server.file(f"d/{number}")
        return server

    def test_an_object_that_goes_while_we_read_is_reported(self) -> None:
        tree = read_bucket(Failing(self.server().store(), NotFound("gone")), askers=Askers(workers=2))
        assert kinds(tree) == ["vanished"]
        assert len(tree.files) == 199

    def test_any_other_error_ends_the_reading(self) -> None:
        """I15: a tree that lacks what could not be read is not a tree."""
        store = Failing(self.server().store(), AccessDenied("no"))
        with pytest.raises(AccessDenied):
            read_bucket(store, askers=Askers(workers=2))
        assert store.heads < 50

    def test_heads_run_side_by_side(self) -> None:
        """Defect 8: one object at a time. Here eight HEADs must be under way at once, or none of them returns."""

        class Together(WrappedStore):
            gate = threading.Barrier(8)

            def head(self, key: str) -> ObjectInfo:
                self.gate.wait(10)
                return super().head(key)

        tree = read_bucket(Together(self.server().store()), askers=Askers(workers=8))
        assert len(tree.files) == 200

    def test_progress_counts_every_object(self) -> None:
        class Counter(Silent):
            def __init__(self) -> None:
                self.items = 0
                self.lock = threading.Lock()

            def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
                with self.lock:
                    self.items += items

        counter = Counter()
        read_bucket(self.server().store(), askers=Askers(progress=counter))
        assert counter.items == 200

    def test_another_marker_is_named(self) -> None:
        server = ClickHouse(schema="7")
        server.file("d/x")
        assert kinds(read(server)) == ["unknown_schema"]

    def test_an_empty_bucket(self) -> None:
        with pytest.raises(NotFound):
            read_bucket(MemoryStore("empty"))

    def test_a_disk_of_which_only_the_marker_is_left(self) -> None:
        tree = read(ClickHouse())
        assert tree.files == {}
        assert tree.revision == 0

    def test_a_disk_of_ours_is_not_taken_for_one(self) -> None:
        with pytest.raises(UsageError, match="disk of ours"):
            read(ClickHouse(schema="2"))

    def test_a_revision_far_beyond_all_reason_costs_nothing(self) -> None:
        server = ClickHouse()
        server.file("d/x", revision=(1 << 63) - 1)
        assert read(server).gaps == [(1, (1 << 63) - 2)]
