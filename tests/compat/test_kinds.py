"""Which kind of bucket it is, and what the kinds that need no log hold: `plain`, `plain_rewritable`, bare blobs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from disks.clickhouse.disk import ClickHouseDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.schemes import _memory
from oplog.clickhouse.checksums import parse, parse_checksums
from oplog.clickhouse.cityhash import FileHash
from oplog.errors import Damaged, UsageError
from oplog.kinds import Inserted
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.listing import Kind, recognise
from restore.clickhouse.parts import State, find_tables
from restore.clickhouse.report import inspect
from tests.compat.buckets import START, TABLE, ClickHouse, Object, captured, checksums_txt, in_memory
from tests.compat.captures import CLICKHOUSE
from tiering.cli import main as cli

DIRECTORY = "abcdefghijklmnopqrstuvwxyzabcdef"
OTHER = "zbcdefghijklmnopqrstuvwxyzabcdef"
PART = f"{TABLE}/all_1_1_0"


def kind_of(*keys: str) -> Kind:
    return recognise([ObjectInfo(key, 1, START) for key in keys])


class TestRecognise:
    @pytest.mark.parametrize(
        ("keys", "kind"),
        [
            ([], Kind.EMPTY),
            ([".SCHEMA_VERSION"], Kind.SEND_METADATA),
            ([f"r{1:064b}-file-{DIRECTORY}"], Kind.SEND_METADATA),
            ([f"operations/r{1:064b}-rename"], Kind.SEND_METADATA),
            ([".SCHEMA_VERSION", f"abc/{DIRECTORY[:29]}"], Kind.SEND_METADATA),
            ([f"abc/{DIRECTORY[:29]}", f"abd/{DIRECTORY[:29]}"], Kind.WITHOUT_METADATA),
            ([DIRECTORY], Kind.WITHOUT_METADATA),
            ([f"__meta/{DIRECTORY}/prefix.path", f"{DIRECTORY}/k.bin"], Kind.PLAIN_REWRITABLE),
            ([f"{PART}/k.bin"], Kind.PLAIN),
            (["data/db/t/all_1_1_0/k.bin"], Kind.PLAIN),
            ([f"operations/r{1:064b}-commit", f"r{1:064b}-file-{DIRECTORY}"], Kind.FROSTLINE),
            ([f"snapshots/r{1:064b}.zst"], Kind.FROSTLINE),
            (["holiday.jpg"], Kind.UNKNOWN),
        ],
    )
    def test_by_names(self, keys: list[str], kind: Kind) -> None:
        assert kind_of(*keys) is kind

    def test_our_own_disk(self, tmp_path: Path) -> None:
        store = MemoryStore("ours")
        disk = ObjectDisk("s3", store, tmp_path)
        with disk.transaction(Inserted()) as transaction:
            transaction.create("store/abc/x", b"1")
            transaction.commit()
        report = inspect(store)
        disk.close()
        assert report.kind is Kind.FROSTLINE
        assert report.findings == []
        with pytest.raises(UsageError, match="disk of ours"):
            read_bucket(store)

    def test_our_own_disk_with_clickhouse_s_log(self, tmp_path: Path) -> None:
        """Its numbers have gaps and it has a lease: neither is anything to report."""
        store = MemoryStore("format-1")
        disk = ClickHouseDisk("s3", store, tmp_path, lease_settle_seconds=0)
        for number in (1, 2):
            with disk.transaction(Inserted()) as transaction:
                transaction.create(f"{TABLE}/all_{number}_{number}_0/data-0000.parquet", b"1")
                transaction.create(f"{TABLE}/all_{number}_{number}_0/part.json", b"{}")
                transaction.commit()
        disk.close()
        report = inspect(store)
        assert report.kind is Kind.SEND_METADATA
        assert report.findings == []
        assert report.notes == []
        assert len(report.files) == 4

    @pytest.mark.parametrize("prefix", ["disk/", "a/b/", "a/b/c/"])
    def test_a_disk_deeper_in_the_bucket_is_pointed_to(self, prefix: str) -> None:
        server = ClickHouse()
        server.file("d/x")
        objects = [Object(prefix + item.key, item.data, item.metadata) for item in server.objects.values()]
        report = inspect(in_memory(objects))
        assert report.kind is Kind.UNKNOWN
        assert report.contents.below == prefix


def plain_part(base: str, **sizes: int) -> list[Object]:
    files = {"k.bin": b"x" * 10, "columns.txt": b"columns", "checksums.txt": checksums_txt(sizes or {"k.bin": 10})}
    return [Object(f"{base}/{name}", data, {}) for name, data in files.items()]


class TestPlain:
    def test_keys_are_paths(self) -> None:
        tree = read_bucket(in_memory(plain_part(PART)))
        assert list(tree.files) == [f"{PART}/checksums.txt", f"{PART}/columns.txt", f"{PART}/k.bin"]
        assert tree.files[f"{PART}/k.bin"].blobs == ((f"{PART}/k.bin", 10),)
        assert tree.findings == []

    def test_a_part_is_checked_against_its_checksums(self) -> None:
        """I15: files that are gone and files of another size are named."""
        tree = read_bucket(in_memory(plain_part(PART, **{"k.bin": 11, "v.bin": 5})))
        assert [(finding.kind, finding.path) for finding in tree.findings] == [
            ("incomplete_part", f"{PART}/v.bin"),
            ("wrong_size", f"{PART}/k.bin"),
        ]

    def test_it_has_no_revisions(self) -> None:
        with pytest.raises(UsageError, match="no revisions"):
            read_bucket(in_memory(plain_part(PART)), revision=3)


class TestPlainRewritable:
    def objects(self, path: str = f"{PART}/", token: str = DIRECTORY) -> list[Object]:
        return [
            Object(f"__meta/{token}/prefix.path", path.encode(), {}),
            *(Object(f"{token}/{item.key.rpartition('/')[2]}", item.data, {}) for item in plain_part("x")),
        ]

    def test_directories_name_their_files(self) -> None:
        root = Object("__root/disk_info", b"1", {})
        tree = read_bucket(in_memory([*self.objects(), root]))
        assert tree.kind is Kind.PLAIN_REWRITABLE
        assert tree.files[f"{PART}/k.bin"].blobs == ((f"{DIRECTORY}/k.bin", 10),)
        assert "disk_info" in tree.files
        assert tree.findings == []

    def test_files_of_a_directory_that_nobody_names(self) -> None:
        objects = [item for item in self.objects() if not item.key.startswith("__meta/")]
        tree = read_bucket(in_memory([*objects, *self.objects(f"{TABLE}/all_2_2_0/", OTHER)]))
        assert {finding.object for finding in tree.findings} == {item.key for item in objects}
        assert {finding.kind for finding in tree.findings} == {"unnamed_object"}

    def test_two_directories_of_one_path(self) -> None:
        tree = read_bucket(in_memory([*self.objects(), *self.objects(token=OTHER)]))
        assert {finding.kind for finding in tree.findings} == {"path_claimed_twice"}
        assert len(tree.files) == len(tree.findings) == 3

    @pytest.mark.parametrize("path", ["../up/", "/etc/", "no slash", "", "a//b/"])
    def test_unsafe_directories_are_named(self, path: str) -> None:
        tree = read_bucket(in_memory([*self.objects(path), *self.objects(f"{PART}/", OTHER)]))
        assert "unsafe_path" in {finding.kind for finding in tree.findings}
        assert all(path.startswith(PART) for path in tree.files)


class TestChecksums:
    def test_of_the_capture(self) -> None:
        """Written by ClickHouse, compressed with LZ4."""
        store = in_memory(captured())
        tree = read_bucket(store)
        path = next(path for path in tree.files if path.endswith("/202401_1_3_1/checksums.txt"))
        listed = parse(store.get(tree.files[path].blobs[0][0]), name=path)
        directory = path.rpartition("/")[0]
        assert len(listed) == 13
        assert all(tree.files[f"{directory}/{name}"].size_bytes == size for name, size in listed.items())

    @pytest.mark.parametrize("method", [0x02, 0x82, 0x90])
    def test_each_compression(self, method: int) -> None:
        plain = checksums_txt({"k.bin": 300, "p.proj": 1 << 40})
        assert parse(_recompressed(plain, method), name="c") == {"k.bin": 300, "p.proj": 1 << 40}

    def test_each_cut_or_flipped_byte_is_damage_or_another_list(self) -> None:
        """P: hostile bytes from a bucket never do more than raise `Damaged`."""
        good = _recompressed(checksums_txt({"k.bin": 300, "count.txt": 1}), 0x82)
        for length in range(len(good)):
            with pytest.raises(Damaged, match="part/checksums"):
                parse(good[:length], name="part/checksums.txt")
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 0xFF
            try:
                parse(bytes(bad), name="c")
            except Damaged:
                continue

    def test_the_hash_of_every_file_of_the_capture(self) -> None:
        """ClickHouse's own: files of 1 byte to 12 KiB, shorter and longer than each way that the hash goes."""
        store = in_memory(captured())
        tree = read_bucket(store)
        sizes = set()
        for path, file in tree.files.items():
            if not path.endswith("/checksums.txt"):
                continue
            listed = parse_checksums(store.get(file.blobs[0][0]), name=path)
            for name, checksum in listed.items():
                data = b"".join(store.get(key) for key, _ in tree.files[path[:-13] + name].blobs)
                state = FileHash()
                for start in range(0, len(data), 1000):
                    state.update(data[start : start + 1000])
                assert (len(data), state.digest()) == checksum, f"{path}: {name}"
                sizes.add(len(data))
        assert (min(sizes), max(sizes), len(sizes)) == (0, 12025, 31)

    def test_one_that_cannot_be_read_is_a_finding(self) -> None:
        server = ClickHouse()
        server.insert("all_1_1_0")
        server.file(f"{TABLE}/all_2_2_0/columns.txt")
        server.file(f"{TABLE}/all_2_2_0/checksums.txt", b"nonsense")
        tree = read_bucket(server.store())
        assert [(finding.kind, finding.path) for finding in tree.findings] == [
            ("unreadable_checksums", f"{TABLE}/all_2_2_0/checksums.txt")
        ]


def _recompressed(plain: bytes, method: int) -> bytes:
    import struct

    header = b"checksums format version: 4\n"
    body = plain[len(header) + 25 :]
    codec = {0x82: "lz4_raw", 0x90: "zstd"}.get(method)
    packed = pa.compress(body, codec, asbytes=True) if codec else body
    return header + bytes(16) + struct.pack("<BII", method, len(packed) + 9, len(body)) + packed


class TestParts:
    def states(self, *names: str) -> dict[str, State]:
        server = ClickHouse()
        for name in names:
            server.part(f"{TABLE}/{name}", "k.bin")
        (table,) = find_tables(read_bucket(server.store()).files)
        return {part.directory.removeprefix(f"{TABLE}/"): part.state for part in table.parts}

    def test_covered_parts(self) -> None:
        states = self.states("a_1_1_0", "a_2_2_0", "a_1_3_1", "a_1_3_1_6", "a_4_4_0", "b_1_1_0", "a_b_1_1_0")
        covered = {name for name, state in states.items() if state is State.COVERED}
        assert covered == {"a_1_1_0", "a_2_2_0", "a_1_3_1"}

    def test_places(self) -> None:
        assert self.states("a_1_1_0", "detached/a_2_2_0", "moving/a_3_3_0", "tmp_merge_a_1_2_1") == {
            "a_1_1_0": State.ACTIVE,
            "detached/a_2_2_0": State.DETACHED,
            "moving/a_3_3_0": State.TEMPORARY,
            "tmp_merge_a_1_2_1": State.TEMPORARY,
        }

    def test_a_covered_part_may_be_on_its_way_out(self) -> None:
        server = ClickHouse()
        server.insert("all_1_2_1")
        server.file(f"{TABLE}/all_1_1_0/k.bin")
        assert read_bucket(server.store()).findings == []

    def test_our_own_tables_are_not_held_to_clickhouse_s_rules(self) -> None:
        server = ClickHouse()
        server.insert("all_2_2_0")
        server.file(f"{TABLE}/all_1_1_0/data-0000.parquet")
        server.file(f"{TABLE}/all_1_1_0/part.json")
        assert read_bucket(server.store()).findings == []


class TestCommandLine:
    def url(self, objects: list[Object], name: str) -> str:
        _memory[name] = in_memory(objects, name)
        return f"memory://{name}"

    def run(self, url: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, object]]:
        code = cli.run(["--json", "clickhouse", "inspect", url, *more])
        said = capsys.readouterr()
        return code, json.loads(said.out or said.err)

    def test_a_bucket_without_send_metadata_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        blobs = [Object(f"abc/{DIRECTORY[:29]}", b"1", {}), Object(f"abd/{DIRECTORY[:29]}", b"1", {})]
        code, document = self.run(self.url(blobs, "bare"), capsys)
        assert code == 4
        assert document["kind"] == "without_metadata"
        assert document["files"] == 0
        assert "2 objects without a path" in json.dumps(document["problems"])

    def test_damage_is_named_and_exits_with_4(self, capsys: pytest.CaptureFixture[str]) -> None:
        server = ClickHouse()
        server.insert("all_1_1_0")
        server.restart()
        server.insert("all_2_2_0")
        code, document = self.run(self.url(list(server.objects.values()), "damage"), capsys)
        assert code == 4
        assert document["ok"] is False
        assert document["counter_restarts"] == 1
        problems = document["problems"]
        assert isinstance(problems, list)
        assert {problem["kind"] for problem in problems} == {"duplicate_revision", "lost_rename"}
        assert cli.run(["clickhouse", "inspect", "memory://damage"]) == 4
        assert "tmp_insert_all_1_1_0 is a complete part" in capsys.readouterr().out

    @pytest.mark.parametrize("revision", ["-1", "x", "1.5"])
    def test_wrong_revisions(self, revision: str, capsys: pytest.CaptureFixture[str]) -> None:
        url = self.url([Object(f"r{1:064b}-file-{DIRECTORY}", b"1", {"path": "x"})], "one")
        assert cli.run(["clickhouse", "inspect", url, f"--revision={revision}"]) == 2

    def test_files_for_people(self, capsys: pytest.CaptureFixture[str]) -> None:
        server = ClickHouse()
        server.file("d/x", b"12345")
        server.link("d/x", "d/y")
        assert cli.run(["clickhouse", "inspect", self.url(list(server.objects.values()), "files"), "--files"]) == 0
        said = capsys.readouterr().out
        assert "d/x" in said
        assert "d/y" in said

    def test_rows_and_a_draft_of_each_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The draft is of no use to a server as it is: keys that are guessed would make wrong answers."""
        server = ClickHouse()
        text = b"columns format version: 1\n2 columns:\n`k` UInt64\n`a\\`b` Array(String)\n"
        for name, rows in (("2024_1_1_0", b"3"), ("2024_2_2_0", b"4"), ("2024_1_2_1", b"7")):
            for file, data in {"columns.txt": text, "count.txt": rows, "minmax_k.idx": b"12"}.items():
                server.file(f"{TABLE}/{name}/{file}", data)
            server.file(f"{TABLE}/{name}/checksums.txt", checksums_txt({"count.txt": 1}))
        url = self.url(list(server.objects.values()), "draft")
        code, document = self.run(url, capsys)
        assert code == 0
        (table,) = document["tables"]  # type: ignore[misc]
        assert (table["rows"], table["columns"]) == (7, {"k": "UInt64", "a`b": "Array(String)"})
        assert cli.run(["clickhouse", "inspect", url, "--attach"]) == 0
        said = capsys.readouterr().out
        assert f"ATTACH TABLE <database>.<table> UUID '{TABLE.rpartition('/')[2]}'" in said
        assert "    `a\\`b` Array(String)\n)" in said
        assert "PARTITION BY <an expression of `k`>" in said

    def test_a_count_that_is_missing_is_not_guessed(self, capsys: pytest.CaptureFixture[str]) -> None:
        server = ClickHouse()
        server.insert("all_1_1_0", "k.bin")
        _, document = self.run(self.url(list(server.objects.values()), "uncounted"), capsys)
        (table,) = document["tables"]  # type: ignore[misc]
        assert (table["rows"], table["attach"]) == (None, None)

    def test_a_thousand_problems_fit_on_a_screen(self, capsys: pytest.CaptureFixture[str]) -> None:
        server = ClickHouse()
        for _ in range(1000):
            server.file("../up")
        assert cli.run(["clickhouse", "inspect", self.url(list(server.objects.values()), "many")]) == 4
        said = capsys.readouterr().out
        assert "and 980 more" in said
        assert "1,000 problems." in said
        assert len(said.splitlines()) < 40


def test_the_capture_is_the_one_the_tests_were_written_for() -> None:
    """So that a changed capture fails here, by name, and not in every other test."""
    assert sum(1 for _ in captured()) == 240
    assert (CLICKHOUSE / "README.md").exists()
