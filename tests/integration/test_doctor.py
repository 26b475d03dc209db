"""`doctor` on real servers and real directories: each finding is made true first, by a rule of the bucket, a proxy that
meddles with what passes, or a file that is damaged. Guards P23, P34, P35, P56, P57, P58 and I15."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from disks.clickhouse.disk import LIMITATIONS
from disks.stores.s3 import store as s3
from tests import worm
from tests.integration.doctors import Doctor, levels
from tests.integration.doctors import doctor as doctor
from tests.meddling import Exchange, meddling
from tests.servers import Server
from tiering.cli import main as cli

DELETES = pytest.mark.skipif(worm.ACTIVE, reason="what doctor wrote is kept, and it says so")


def keys(server: Server, bucket: str) -> list[str]:
    """All keys but that of the store's own probe."""
    found = server.client().list_objects_v2(Bucket=bucket).get("Contents", [])
    return [item["Key"] for item in found if not item["Key"].endswith(s3.PROBE_KEY)]


@DELETES
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ministack", {"abort-uploads-rule": "note"}),
        pytest.param("ceph", {"abort-uploads-rule": "note", "metadata-underscore": "note"}, marks=pytest.mark.ceph),
        ("rclone", {"lifecycle": "unknown", "conditional-put": "warning", "sha256": "note"}),
    ],
)
def test_a_good_store_has_no_problem_and_is_left_as_it_was(
    kind: str, expected: dict[str, str], doctor: Doctor, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    bucket = server.new_bucket()
    found = doctor(server, bucket)
    found.pop("object-lock" if kind == "rclone" else "-", None)
    assert levels(found) == expected
    assert keys(server, bucket) == []
    assert server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_password_in_the_endpoint_is_covered(host: str, warns: bool, doctor: Doctor, ministack: Server) -> None:
    endpoint = ministack.endpoint_url.replace("127.0.0.1", f"joe:hunter2@{host}")
    found = doctor(ministack, ministack.new_bucket(), endpoint_url=endpoint)
    assert "hunter2" not in json.dumps(found)
    assert ("joe:********@0.0.0.0" in found["transport"]["what"]) if warns else "transport" not in found


class TestRules:
    """What the bucket's owner has set."""

    def rules(self, server: Server, *rules: dict[str, Any]) -> str:
        bucket = server.new_bucket()
        enabled = [{"ID": f"rule-{number}", "Status": "Enabled", **rule} for number, rule in enumerate(rules)]
        server.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": enabled})
        return bucket

    @pytest.mark.parametrize("prefix", ["", "some/", "some/prefix/", "some/prefix/operations/"])
    def test_a_rule_that_expires_our_objects_is_named_with_its_days(
        self, prefix: str, doctor: Doctor, ministack: Server
    ) -> None:
        """P57. The prefix is named, too."""
        bucket = self.rules(ministack, {"Filter": {"Prefix": prefix}, "Expiration": {"Days": 30}})
        finding = doctor(ministack, bucket, code=4)["lifecycle"]
        assert finding["level"] == "problem"
        for part in ("rule-0", "after 30 days", repr(prefix) if prefix else "whole bucket"):
            assert part in finding["what"]

    @DELETES
    def test_rules_for_others_do_no_harm(self, doctor: Doctor, ministack: Server) -> None:
        bucket = self.rules(
            ministack,
            {"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 1}},
            {"Filter": {"Prefix": "some/prefixes/"}, "Expiration": {"Days": 1}},
            {"Filter": {"Prefix": ""}, "Expiration": {"Days": 1}, "Status": "Disabled"},
            {"Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}},
        )
        assert levels(doctor(ministack, bucket)) == {}

    def test_archives_and_tags(self, doctor: Doctor, ministack: Server) -> None:
        bucket = self.rules(
            ministack,
            {"Filter": {"Prefix": ""}, "Transitions": [{"Days": 90, "StorageClass": "GLACIER"}]},
        )
        assert "archives objects after 90 days" in doctor(ministack, bucket, code=4)["lifecycle"]["what"]
        bucket = self.rules(
            ministack, {"Filter": {"Prefix": ""}, "Transitions": [{"Days": 90, "StorageClass": "STANDARD_IA"}]}
        )
        assert doctor(ministack, bucket)["lifecycle"]["level"] == "ok"
        tagged = {"And": {"Prefix": "some/", "Tags": [{"Key": "temporary", "Value": "yes"}]}}
        bucket = self.rules(ministack, {"Filter": tagged, "Expiration": {"Days": 1}})
        finding = doctor(ministack, bucket)["lifecycle"]
        assert (finding["level"], "certain tags" in finding["what"]) == ("warning", True)

    @DELETES
    @pytest.mark.parametrize("kind", ["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
    def test_versioning_says_who_pays_for_what(self, kind: str, doctor: Doctor, request: pytest.FixtureRequest) -> None:
        """P34."""
        server: Server = request.getfixturevalue(kind)
        bucket, client = server.new_bucket(), server.client()
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        finding = doctor(server, bucket)["versioning"]
        assert (finding["level"], "on" in finding["what"]) == ("note", True)
        for _ in range(3):
            client.put_object(Bucket=bucket, Key="some/prefix/old", Body=b"x" * 1000)
        client.put_object(Bucket=bucket, Key="other/old", Body=b"x" * 1000)
        client.put_object(Bucket=bucket, Key="other/old", Body=b"x" * 1000)
        finding = doctor(server, bucket)["versioning"]
        assert finding["level"] == "warning"
        assert "2.0 KiB" in finding["what"] or "2,000" in finding["what"] or "2.0 kB" in finding["what"], finding
        assert "pays" in finding["hint"]
        finding = doctor(server, bucket, delete_versions="false")["versioning"]
        assert (finding["level"], "their cost grows" in finding["hint"]) == ("warning", True)

    @pytest.mark.parametrize("kind", ["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
    def test_object_lock_and_its_retention_are_told(
        self, kind: str, doctor: Doctor, request: pytest.FixtureRequest
    ) -> None:
        """P56: the trial's own objects are kept too, which is no fault of the store."""
        server: Server = request.getfixturevalue(kind)
        found = doctor(server, server.new_bucket(object_lock_days=7))
        assert found["object-lock"]["level"] == "note"
        assert "7 days (GOVERNANCE)" in found["object-lock"]["what"]
        assert "guard interval" in found["object-lock"]["hint"]
        assert found["delete"]["level"] == "unknown"
        assert "Object Lock keeps what was written" in found["delete"]["what"]
        if kind == "ceph":  # 16.2 honours If-None-Match only where it keeps no versions: found here, and worth knowing
            assert found["conditional-put"]["level"] == "warning"
            assert "without versioning" in found["conditional-put"]["hint"]


class TestMeddling:
    """What a server or something before it does to requests and answers."""

    @pytest.mark.parametrize(
        ("shift", "level", "code"),
        [
            (timedelta(minutes=1), "warning", 0),
            (timedelta(hours=1), "problem", 4),
            (timedelta(days=-400), "problem", 4),
        ],
    )
    def test_a_wrong_clock(self, shift: timedelta, level: str, code: int, doctor: Doctor, ministack: Server) -> None:
        """P23."""

        def answer(found: Exchange) -> None:
            found.headers["date"] = format_datetime(datetime.now(UTC) + shift, usegmt=True)

        bucket = ministack.new_bucket()
        with meddling(ministack, answer=answer) as server:
            finding = doctor(server, bucket, code=code)["clock"]
        assert finding["level"] == level
        assert ("behind" if shift > timedelta(0) else "ahead") in finding["what"]
        assert "NTP" in finding["hint"]

    def test_no_clock_is_not_known_instead_of_ok(self, doctor: Doctor, ministack: Server) -> None:
        with meddling(ministack, answer=lambda found: found.headers.pop("date", None) and None) as server:
            assert doctor(server, ministack.new_bucket())["clock"]["level"] == "unknown"

    def test_headers_that_are_dropped(self, doctor: Doctor, ministack: Server) -> None:
        def request(headers: dict[str, str]) -> None:
            for name in list(headers):
                if name.startswith("x-amz-meta-"):
                    del headers[name]

        with meddling(ministack, request=request) as server:
            found = doctor(server, ministack.new_bucket())
        assert (found["metadata"]["level"], found["metadata-underscore"]["level"]) == ("warning", "note")

    def test_conditions_and_checksums_that_are_dropped(self, doctor: Doctor, ministack: Server) -> None:
        def request(headers: dict[str, str]) -> None:
            for name in ("if-none-match", "x-amz-checksum-sha256", "x-amz-sdk-checksum-algorithm"):
                headers.pop(name, None)
            if headers.get("x-amz-content-sha256"):
                headers["x-amz-content-sha256"] = "UNSIGNED-PAYLOAD"

        with meddling(ministack, request=request) as server:
            found = doctor(server, ministack.new_bucket())
        assert found["conditional-put"]["level"] == "warning"
        assert "with a lease" in found["conditional-put"]["what"]
        assert found["sha256"]["level"] == "note"

    def test_a_listing_that_lags(self, doctor: Doctor, ministack: Server) -> None:
        """P58."""

        def answer(found: Exchange) -> None:
            if "list-type=2" in found.path and b"doctor/" in found.body:
                start, end = found.body.find(b"<Contents>"), found.body.rfind(b"</Contents>") + len(b"</Contents>")
                found.body = found.body[:start] + found.body[end:]
                found.body = re.sub(rb"<KeyCount>\d+</KeyCount>", b"", found.body)

        with meddling(ministack, answer=answer) as server:
            found = doctor(server, ministack.new_bucket(), code=4)
        assert found["list-after-write"]["level"] == "problem"
        assert "missing from a listing" in found["list-after-write"]["what"]

    def test_reads_of_an_old_copy(self, doctor: Doctor, ministack: Server) -> None:
        """P58: a cache that knows nothing of the last put, and still has what was deleted."""

        def answer(found: Exchange) -> None:
            if found.method == "GET" and "/doctor/" in found.path and "list-type" not in found.path:
                found.status, found.body = 404, b"<Error><Code>NoSuchKey</Code></Error>"

        with meddling(ministack, answer=answer) as server:
            found = doctor(server, ministack.new_bucket(), code=4)
        assert found["read-own-write"]["level"] == "problem"

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("method", "query", "check", "level", "code"),
        [
            ("PUT", "/doctor/", "put", "problem", 4),
            ("POST", "?delete", "delete", "warning", 0),
            ("POST", "uploads", "multipart", "warning", 0),
            ("GET", "list-type=2", "list", "problem", 4),
            ("GET", "/doctor/", "get", "problem", 4),
        ],
    )
    def test_permissions_are_told_one_by_one(
        self, method: str, query: str, check: str, level: str, code: int, doctor: Doctor, ministack: Server
    ) -> None:
        def answer(found: Exchange) -> None:
            listing = "list-type=2" in found.path
            if found.method == method and query in found.path and listing == (check == "list"):
                found.status, found.body = 403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"

        with meddling(ministack, answer=answer) as server:
            found = doctor(server, ministack.new_bucket(), code=code)
        assert found[check]["level"] == level
        assert "s3:" in found[check]["hint"]

    @pytest.mark.parametrize(
        ("query", "check"),
        [("?lifecycle", "lifecycle"), ("?versioning", "versioning"), ("?object-lock", "object-lock")],
    )
    def test_a_question_without_an_answer_is_not_known(
        self, query: str, check: str, doctor: Doctor, ministack: Server
    ) -> None:
        def answer(found: Exchange) -> None:
            if query in found.path:
                found.status, found.body = 501, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"

        with meddling(ministack, answer=answer) as server:
            assert doctor(server, ministack.new_bucket())[check]["level"] == "unknown"


class TestReaching:
    def test_a_missing_bucket_and_a_dead_server(self, doctor: Doctor, ministack: Server) -> None:
        found = doctor(ministack, "no-such-bucket", code=4)
        assert list(found) == ["reachable"]
        assert "no bucket" in found["reachable"]["what"]
        found = doctor(ministack, "b", code=4, endpoint_url="http://127.0.0.1:9")
        assert "no answer" in found["reachable"]["what"]

    def test_a_read_only_disk_is_not_written_to(self, doctor: Doctor, ministack: Server) -> None:
        bucket = ministack.new_bucket()
        ministack.client().put_object(Bucket=bucket, Key="some/prefix/x", Body=b"x")
        found = doctor(ministack, bucket, read_only="true")
        assert found["get"]["level"] == "ok"
        assert (found["put"]["level"], "read-only" in found["put"]["what"]) == ("unknown", True)
        assert keys(ministack, bucket) == ["some/prefix/x"]

    def test_leftovers_of_uploads_are_counted(self, doctor: Doctor, ministack: Server) -> None:
        """P35."""
        bucket = ministack.new_bucket()
        ministack.client().create_multipart_upload(Bucket=bucket, Key="some/prefix/half")

        def answer(found: Exchange) -> None:
            if "uploads" in found.path and found.method == "GET":
                found.body = found.body.replace(b"<Initiated>2026", b"<Initiated>2020")

        with meddling(ministack, answer=answer) as server:
            finding = doctor(server, bucket)["uploads"]
        assert finding["level"] == "warning"
        assert "1 unfinished" in finding["what"]
        assert doctor(ministack, bucket)["uploads"]["level"] == "ok", "a young one may be somebody's work"

    def test_a_disk_with_clickhouse_s_log_says_what_is_not_promised(
        self, doctor: Doctor, ministack: Server, capsys: pytest.CaptureFixture[str]
    ) -> None:
        doctor(ministack, ministack.new_bucket(), log_format="1")
        assert cli.run(["doctor", "s3"]) == 0
        shown = capsys.readouterr().out
        for sentence in LIMITATIONS:
            assert f"note       log-format-1: {sentence}" in shown

    def test_one_disk_of_a_store_that_holds_parts_on_another(self, doctor: Doctor, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("k\n1\n")
        assert cli.run(["table", "create", "d.t", "--like", str(tmp_path / "rows.csv"), "--order-by", "k"]) == 0
        assert cli.run(["insert", "d.t", str(tmp_path / "rows.csv")]) == 0
        assert "identity" not in doctor.findings("s3")
        (tmp_path / "home" / "ssd").rename(tmp_path / "home" / "elsewhere")
        assert "identity" not in doctor.findings("s3")
        assert doctor.findings("ssd", code=4)["identity"]["subject"] == "disk ssd"

    def test_an_unknown_disk(self, doctor: Doctor) -> None:
        assert cli.run(["doctor", "nope"]) == 10


class TestHere:
    """Local disks and this machine."""

    @DELETES
    def test_a_fresh_home_is_in_order(self, doctor: Doctor, disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_HOME", str(disk_path / "home"))
        found = doctor.findings()
        of_the_machine = ("open-files", "clock")
        assert {check: level for check, level in levels(found).items() if check not in of_the_machine} == {}
        assert {"versions", "journal", "fsync", "space"} <= set(found)
        assert not (disk_path / "home" / "ssd").exists(), "looking makes nothing"

    def test_a_full_disk_by_its_own_rule(self, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__SSD__KEEP_FREE_SPACE_BYTES", "900PiB")
        finding = doctor.findings("ssd", code=4)["space"]
        assert (finding["level"], "keep_free_space_bytes" in finding["hint"]) == ("problem", True)

    def test_a_path_that_is_a_file(self, doctor: Doctor, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "ssd").write_text("")
        assert doctor.findings("ssd", code=4)["directory"]["level"] == "problem"

    def test_memory_is_no_place_to_keep_data(self, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FROSTLINE_DISKS__SSD__PATH", "/dev/shm/frostline-doctor-test")
        assert doctor.findings("ssd")["file-system"]["level"] == "warning"

    @pytest.mark.parametrize("damage", [b"", b"not a database" * 1000])
    def test_a_damaged_journal_is_found_and_left_alone(self, damage: bytes, doctor: Doctor, tmp_path: Path) -> None:
        assert cli.run(["table", "create", "d.t", "--column", "n:int64", "--order-by", "n"]) == 0
        path = tmp_path / "home" / "state" / "journal.db"
        assert doctor.findings()["journal"]["level"] == "ok"
        path.write_bytes(damage)
        assert doctor.findings(code=4)["journal"]["level"] == "problem"
        assert path.read_bytes() == damage

    def test_unfinished_and_failed_moves(self, doctor: Doctor, tmp_path: Path) -> None:
        assert cli.run(["table", "create", "d.t", "--column", "n:int64", "--order-by", "n"]) == 0
        with sqlite3.connect(tmp_path / "home" / "state" / "journal.db") as database:
            for state in ("copying", "failed"):
                database.execute(
                    "INSERT INTO moves (table_name, table_uuid, part, source, target, bytes, reason_kind,"
                    " reason_detail, actor, keep_source, state, attempts, pid, start, instance, created, updated)"
                    " VALUES ('d.t', 'u', ?, 'ssd', 's3', 1, 'manual', '', '', 0, ?, 1, 1, '', '',"
                    " '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00')",
                    (f"all_{state}", state),
                )
        found = doctor.findings()
        assert found["moves"]["level"] == "warning"
        assert "1 unfinished" in found["moves"]["what"]

    def test_text_shows_what_is_wrong_and_what_to_do(
        self, doctor: Doctor, ministack: Server, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bucket = ministack.new_bucket()
        rule = {"ID": "sweep", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}
        ministack.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
        doctor(ministack, bucket, code=4)
        assert cli.run(["doctor", "s3"]) == 4
        shown = capsys.readouterr().out
        assert "PROBLEM    lifecycle: lifecycle rule 'sweep' deletes" in shown
        assert "1 problem" in shown
        assert "  ok " not in shown
