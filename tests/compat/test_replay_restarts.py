"""Logs of servers that were restarted, and of parts that were copied: what the order of entries does not say."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from restore.clickhouse.bucket import read_bucket
from tests.compat.buckets import START, TABLE, ClickHouse, Object, checksums_txt, in_memory
from tests.compat.replaying import kinds, read


class TestRestarts:
    """Defect 1: the counter starts at 1 with every start of the server."""

    def test_both_runs_count_in_the_order_of_their_times(self) -> None:
        server = ClickHouse()
        server.insert("all_1_1_0", "k.bin")
        server.insert("all_2_2_0", "k.bin")
        server.restart()
        server.host = "vm2"
        server.link(f"{TABLE}/all_1_1_0/k.bin", f"{TABLE}/tmp_mut_all_1_1_0_3/k.bin")
        server.part(f"{TABLE}/tmp_mut_all_1_1_0_3", "v.bin")
        server.rename(f"{TABLE}/tmp_mut_all_1_1_0_3/", f"{TABLE}/all_1_1_0_3/")
        tree = read(server)
        assert {path.split("/")[3] for path in tree.files} == {"all_1_1_0", "all_2_2_0", "all_1_1_0_3"}
        assert tree.files[f"{TABLE}/all_1_1_0_3/k.bin"].links == 2
        assert len(tree.order.runs) == 2
        assert set(kinds(tree)) == {"duplicate_revision"}
        assert [finding.revision for finding in tree.findings] == [1, 2, 3, 4, 5]
        assert all(key in tree.findings[0].what for key in tree.order.duplicates[1])

    def test_three_runs(self) -> None:
        server = ClickHouse()
        for number in (1, 2, 3):
            server.host = f"vm{number}"
            server.insert(f"all_{number}_{number}_0", "k.bin")
            server.rename(f"{TABLE}/all_{number}_{number}_0", f"{TABLE}/all_{number}_{number}_7")
            server.restart()
        tree = read(server)
        assert {path.split("/")[3] for path in tree.files} == {"all_1_1_7", "all_2_2_7", "all_3_3_7"}
        assert len(tree.order.runs) == 3

    def test_an_overwritten_rename_is_reported_with_the_hidden_part(self) -> None:
        """Two restarts with inserts of the same shape: ClickHouse gave 1000 of 2000 rows and no error."""
        server = ClickHouse()
        server.insert("all_1_1_0")
        server.restart()
        server.insert("all_2_2_0")
        tree = read(server)
        assert f"{TABLE}/all_2_2_0/k.bin" in tree.files
        lost = [finding for finding in tree.findings if finding.kind == "lost_rename"]
        assert [finding.path for finding in lost] == [f"{TABLE}/tmp_insert_all_1_1_0"]
        assert f"{TABLE}/tmp_insert_all_1_1_0/k.bin" in tree.files, "nothing is dropped"
        assert kinds(tree).count("duplicate_revision") == 4

    def test_temporary_names_that_a_restart_gives_again_hide_nothing(self) -> None:
        """As real servers do it: each run inserts through tmp_insert_all_1_1_0, and each rename overwrites the last."""
        server = ClickHouse()
        for number in (1, 2, 3):
            server.part(f"{TABLE}/tmp_insert_all_1_1_0", "k.bin", f"only{number}.bin")
            server.rename(f"{TABLE}/tmp_insert_all_1_1_0/", f"{TABLE}/all_{number}_{number}_0/")
            server.restart()
        tree = read(server)
        assert len({key for file in tree.files.values() for key, _ in file.blobs}) == 12, "every blob is in the tree"
        parts = {path.split("/")[3]: path for path in tree.files if "/only" in path}
        assert {name: path[-9:] for name, path in parts.items()} == {
            "tmp_lost_0_tmp_insert_all_1_1_0": "only1.bin",
            "tmp_lost_1_tmp_insert_all_1_1_0": "only2.bin",
            "all_3_3_0": "only3.bin",
        }
        assert sorted(kinds(tree)) == [*["duplicate_revision"] * 4, "lost_rename", "lost_rename"]

    def test_uploads_that_overtake_one_another_hide_no_restart(self) -> None:
        """As a real server's threads do it: within a run the times are out of order, and the first number ends last."""
        server = ClickHouse()
        random = Random(7)
        moment = START
        objects: list[Object] = []
        for number, pause in ((1, 0.7), (2, 3600.0), (3, 60.0), (4, 2.5)):
            written = set(server.objects)
            server.host = f"vm{number}"
            server.insert(f"all_{number}_{number}_0", "k.bin", "v.bin", "w.bin")
            new = [item for key, item in server.objects.items() if key not in written]
            moment += timedelta(seconds=pause)
            delays = sorted((random.random() / 10 for _ in new[:-1]), reverse=number % 2 == 0)
            for item, delay in zip(new, [*delays, 0.2], strict=True):
                objects.append(Object(item.key, item.data, item.metadata, moment + timedelta(seconds=delay)))
            moment += timedelta(seconds=0.2)
            server.restart()
        tree = read_bucket(in_memory(objects))
        assert len(tree.order.runs) == 4
        assert {path.split("/")[3] for path in tree.files} == {f"all_{number}_{number}_0" for number in (1, 2, 3, 4)}
        assert set(kinds(tree)) == {"duplicate_revision"}

    def test_a_number_taken_twice_by_threads_is_no_restart(self) -> None:
        server = ClickHouse()
        for number in range(1, 201):
            server.file(f"d/{number}")
        server.file("d/again", revision=199)
        tree = read(server)
        assert len(tree.order.runs) == 1
        assert len(tree.files) == 201
        assert tree.order.duplicates.keys() == {199}

    def test_temporary_names_given_again_are_no_copies(self) -> None:
        server = ClickHouse()
        for number in (1, 2, 3):
            server.host = f"vm{number}"
            server.part(f"{TABLE}/tmp_insert_all_1_1_0", "k.bin")
            server.rename(f"{TABLE}/tmp_insert_all_1_1_0/", f"{TABLE}/all_{number}_{number}_0/")
            server.restart()
        tree = read(server)
        assert {path.split("/")[3] for path in tree.files} == {"all_1_1_0", "all_2_2_0", "all_3_3_0"}
        assert set(kinds(tree)) == {"duplicate_revision"}

    def test_a_revision_is_that_of_the_newest_run_that_reached_it(self) -> None:
        server = ClickHouse()
        for number in range(1, 9):
            server.file(f"d/first{number}")
        server.restart()
        for number in range(1, 5):
            server.file(f"d/second{number}")
        first = {f"d/first{number}" for number in range(1, 9)}
        assert set(read(server, 2).files) == first | {"d/second1", "d/second2"}
        assert set(read(server, 6).files) == {f"d/first{number}" for number in range(1, 7)}

    def test_a_copied_bucket_says_that_the_order_is_not_known(self) -> None:
        """All times are those of the copy, operations first: they cannot put the runs in order."""
        server = ClickHouse()
        server.insert("all_1_1_0")
        server.restart()
        server.host = "vm2"
        server.insert("all_2_2_0")
        keys = sorted(server.objects)
        store = in_memory(
            [
                Object(key, server.objects[key].data, server.objects[key].metadata, START + timedelta(seconds=second))
                for second, key in enumerate(keys)
            ]
        )
        tree = read_bucket(store)
        assert tree.order.times_unusable
        assert "not known" in tree.findings[0].what
        assert {path.split("/")[3] for path in tree.files} == {"all_1_1_0", "all_2_2_0"}

    def test_duplicates_of_one_second_are_kept_and_reported(self) -> None:
        """Two threads that read the counter at once: no restart, but two objects of one number."""
        server = ClickHouse()
        one = server.file("d/a", revision=1)
        two = server.file("d/b", revision=1)
        same = [Object(item.key, item.data, item.metadata) for item in server.objects.values()]
        tree = read_bucket(in_memory(same))
        assert set(tree.files) == {"d/a", "d/b"}
        assert tree.order.duplicates == {1: tuple(sorted((one, two)))}
        assert len(tree.order.runs) == 1


class TestCopies:
    """Defect 3: an object made by a server-side copy keeps the path of its source."""

    def test_two_objects_for_a_file_of_a_part_are_not_joined(self) -> None:
        server = ClickHouse()
        first = server.file(f"{TABLE}/all_1_1_0/k.bin", b"x" * 10)
        copy = server.file(f"{TABLE}/all_1_1_0/k.bin", b"x" * 10)
        tree = read(server)
        assert tree.files[f"{TABLE}/all_1_1_0/k.bin"].size_bytes == 10
        (claim,) = [finding for finding in tree.findings if finding.kind == "path_claimed_twice"]
        assert first in claim.what
        assert copy in claim.what

    def test_a_copy_made_after_the_rename_stays_where_it_says_it_is(self) -> None:
        server = ClickHouse()
        server.insert("all_1_1_0", "k.bin")
        copy = server.file(f"{TABLE}/tmp_insert_all_1_1_0/k.bin", b"x" * 10)
        tree = read(server)
        assert len(tree.files[f"{TABLE}/all_1_1_0/k.bin"].blobs) == 1
        assert tree.files[f"{TABLE}/all_1_1_0/k.bin"].size_bytes == 10
        assert [finding.object for finding in tree.findings if finding.kind == "path_claimed_twice"] == [copy]

    def holding(self, server: ClickHouse, directory: str, files: dict[str, bytes], *, written: set[str]) -> None:
        """A part whose checksums list all the files, and of which only some were written under their own path."""
        for name in written:
            server.file(f"{directory}/{name}", files[name])
        server.file(f"{directory}/columns.txt", b"columns")
        server.file(f"{directory}/checksums.txt", checksums_txt(files))

    def copied(self, *copies: bytes) -> tuple[ClickHouse, list[str]]:
        """A part, and another one whose `k.bin` is one of the copies, all of which say that they are of the first."""
        server = ClickHouse()
        first = f"{TABLE}/tmp_insert_all_1_1_0"
        self.holding(server, first, {"k.bin": b"first part"}, written={"k.bin"})
        keys = [server.bare(f"{first}/k.bin", copy) for copy in copies]
        server.rename(f"{first}/", f"{TABLE}/all_1_1_0/")
        files = {"k.bin": b"other part", "v.bin": b"v"}
        self.holding(server, f"{TABLE}/all_2_2_0", files, written={"v.bin"})
        return server, keys

    def test_a_gap_is_filled_by_size_and_hash(self) -> None:
        """I1: an object that a server copied inside the store bears the path of its source; the checksums of the part
        that lacks it tell where it belongs. Of two of one size the hash decides."""
        server, (wrong, right) = self.copied(b"wrong part", b"other part")
        tree = read(server)
        assert tree.files[f"{TABLE}/all_2_2_0/k.bin"].blobs == ((right, 10),)
        assert tree.files[f"{TABLE}/all_1_1_0/k.bin"].blobs[0][0] not in (wrong, right)
        assert tree.replayed.filled == {f"{TABLE}/all_2_2_0/k.bin": right}
        claims = [finding for finding in tree.findings if finding.kind == "path_claimed_twice"]
        assert [finding.claims for finding in claims] == [(wrong,)], "what is explained is no finding any more"
        assert "incomplete_part" not in kinds(tree)

    def test_no_object_with_another_hash_fills_it(self) -> None:
        server, _ = self.copied(b"wrong part", b"twrong par")
        tree = read(server)
        assert f"{TABLE}/all_2_2_0/k.bin" not in tree.files
        assert "incomplete_part" in kinds(tree)

    def test_one_object_is_the_file_of_one_part(self) -> None:
        """Two parts with the same bytes have two objects, unless the log calls them links."""
        server, (key,) = self.copied(b"other part")
        self.holding(server, f"{TABLE}/all_3_3_0", {"k.bin": b"other part"}, written=set())
        tree = read(server)
        assert [path for path, file in tree.files.items() if file.blobs == ((key, 10),)] == [f"{TABLE}/all_2_2_0/k.bin"]
        assert [finding.path for finding in tree.findings if finding.kind == "incomplete_part"] == [
            f"{TABLE}/all_3_3_0/k.bin"
        ]

    def test_links_of_a_file_that_was_found_share_its_object(self) -> None:
        """I8."""
        server, (key,) = self.copied(b"other part")
        server.link(f"{TABLE}/all_2_2_0/k.bin", f"{TABLE}/all_2_2_0_3/k.bin")
        self.holding(server, f"{TABLE}/all_2_2_0_3", {"k.bin": b"other part"}, written=set())
        server.part(f"{TABLE}/detached/all_2_2_0", "x.bin")
        tree = read(server)
        assert tree.files[f"{TABLE}/all_2_2_0_3/k.bin"].blobs == ((key, 10),)
        assert tree.files[f"{TABLE}/all_2_2_0_3/k.bin"].links == 2

    def test_copies_that_took_one_another_s_place_are_put_right(self) -> None:
        """Where the sizes differ the newer one is not the part's: both get the place that their parts say."""
        server = ClickHouse()
        first = f"{TABLE}/all_1_1_0"
        files = {"k.bin": b"first"}
        self.holding(server, first, files, written={"k.bin"})
        copy = server.file(f"{first}/k.bin", b"other part")
        self.holding(server, f"{TABLE}/all_2_2_0", {"k.bin": b"other part"}, written=set())
        tree = read(server)
        assert tree.files[f"{first}/k.bin"].size_bytes == 5
        assert tree.files[f"{TABLE}/all_2_2_0/k.bin"].blobs == ((copy, 10),)
        assert tree.findings == []

    def test_a_name_used_again_after_its_rename_is_no_copy(self) -> None:
        """A part moved to the disk, away and back: `moving/<part>/` is written twice."""
        server = ClickHouse()
        moving, part = f"{TABLE}/moving/all_1_1_0", f"{TABLE}/all_1_1_0"
        server.part(moving, "k.bin")
        server.rename(f"{moving}/", f"{part}/")
        server.rename(part, f"{TABLE}/delete_tmp_all_1_1_0")
        server.part(moving, "k.bin")
        server.rename(f"{moving}/", f"{part}/")
        tree = read(server)
        assert tree.findings == []
        assert tree.files[f"{part}/k.bin"].size_bytes == 10

    @pytest.mark.parametrize("name", ["metadata_version.txt", "mutation_5.txt", "sizes.json"])
    def test_a_file_that_is_rewritten_has_its_newest_bytes(self, name: str) -> None:
        server = ClickHouse()
        server.file(f"{TABLE}/{name}", b"0")
        new = server.file(f"{TABLE}/{name}", b"10")
        assert read(server).files[f"{TABLE}/{name}"].blobs == ((new, 2),)


class TestLeftovers:
    def test_a_killed_move_is_named_with_its_objects(self) -> None:
        """Defect 4: objects of a move that was killed, which nothing collects."""
        server = ClickHouse()
        for name in ("k.bin", "k.cmrk2", "count.txt"):
            server.file(f"{TABLE}/moving/202401_1_1_0/{name}", b"12345")
        tree = read(server)
        assert kinds(tree) == ["unfinished_part"]
        assert "3 objects, 15 bytes" in tree.findings[0].what
        assert tree.findings[0].path == f"{TABLE}/moving/202401_1_1_0"

    def test_parts_being_deleted_are_no_part_of_the_tree(self) -> None:
        """Defect 2 is about what such a part shares with a frozen one: here nothing is deleted, it is left out."""
        server = ClickHouse()
        server.insert("all_1_1_0", "k.bin")
        server.rename(f"{TABLE}/all_1_1_0", f"{TABLE}/delete_tmp_all_1_1_0")
        tree = read(server)
        assert tree.files == {}
        assert len(tree.replayed.being_deleted) == 3
        assert tree.findings == []
