"""A bucket named by its URL: which endpoint and keys it is opened with, and that nothing can write to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from oplog.errors import Refused
from tiering.cli.frame.location import location, open_read_only
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.session import Session

ONE = """
disks:
  a: {type: object_disk, url: "s3://one/x/", endpoint_url: "http://a:1", region: r, access_key_id: k,
      secret_access_key: s, max_size_bytes: 5}
  b: {type: object_disk, url: "s3://one/y/", endpoint_url: "http://a:1"}
policies: {p: {volumes: [{name: v, disks: [a]}]}}
"""
TWO = """
disks:
  a: {type: object_disk, url: "s3://one/x/", endpoint_url: "http://a:1"}
  b: {type: object_disk, url: "s3://two/y/", endpoint_url: "http://b:2"}
policies: {p: {volumes: [{name: v, disks: [a]}]}}
"""


def session(tmp_path: Path, text: str) -> Session:
    file = tmp_path / "frostline.yaml"
    file.write_text(f"state_path: {tmp_path}/state\n{text}")
    file.chmod(0o600)
    return Session(GlobalOptions(config=str(file)))


@pytest.mark.parametrize(
    ("text", "url", "endpoint"),
    [
        (ONE, "s3://one/other/", "http://a:1"),
        (ONE, "s3://elsewhere/other/", "http://a:1"),
        (TWO, "s3://two/other/", "http://b:2"),
        (TWO, "s3://elsewhere/other/", None),
    ],
)
def test_endpoint_of_the_same_bucket_else_of_the_only_one(tmp_path: Path, text: str, url: str, endpoint: str) -> None:
    found = location(session(tmp_path, text), url)
    assert found.url == url
    assert found.endpoint_url == endpoint
    assert found.read_only


def test_keys_come_with_the_endpoint_and_quotas_do_not(tmp_path: Path) -> None:
    found = location(session(tmp_path, ONE), "s3://one/other/")
    assert (found.access_key_id, found.secret_access_key, found.region) == ("k", "s", "r")
    assert found.max_size_bytes is None


def test_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_read_only(session(tmp_path, ONE), f"file://{tmp_path}/bucket") as store, pytest.raises(Refused):
        store.put("x", b"1", sha256=hashlib.sha256(b"1").digest())
    assert list((tmp_path / "bucket").iterdir()) == []
