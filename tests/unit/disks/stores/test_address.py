"""What a process elsewhere is given to reach a bucket, and how its uploads become files."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.object_disk.blobs import put_blob
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from oplog.errors import Refused, UsageError
from oplog.kinds import Merged

BYTES = b"rows of a part"
DIGEST = hashlib.sha256(BYTES).hexdigest()
PATH = "tables/t/all_1_1_0/data-0000-0000.parquet"


@pytest.fixture
def disk(tmp_path: Path) -> ObjectDisk:
    opened = open_disk("cold", ObjectDiskConfig(url=f"file://{tmp_path}/bucket/x/"), tmp_path / "state")
    assert isinstance(opened, ObjectDisk)
    return opened


@pytest.fixture
def shared(tmp_path: Path) -> StoreAddress:
    return StoreAddress.of(ObjectDiskConfig(url=f"file://{tmp_path}/bucket/x/"))


def test_an_upload_of_another_process_becomes_a_file(disk: ObjectDisk, shared: StoreAddress) -> None:
    """I1: what is committed can be read; I2: under a key that nothing else has."""
    with disk.transaction(Merged()) as transaction:
        elsewhere = pickle.loads(pickle.dumps(shared)).open()
        key = put_blob(elsewhere, PATH, BYTES, DIGEST, revision=disk.revision)
        transaction.uploaded(PATH, key, len(BYTES), DIGEST)
        transaction.commit()
    assert disk.read(PATH) == BYTES
    assert elsewhere.head(key).metadata["path"] == PATH


@pytest.mark.parametrize("size_bytes", [len(BYTES), len(BYTES) + 1])
def test_what_is_not_in_the_bucket_as_told_is_refused(disk: ObjectDisk, shared: StoreAddress, size_bytes: int) -> None:
    key = put_blob(shared.open(), PATH, BYTES, DIGEST, revision=0)
    if size_bytes == len(BYTES):
        shared.open().delete([key])
    with disk.transaction(Merged()) as transaction, pytest.raises(Refused, match="object r") as caught:
        transaction.uploaded(PATH, key, size_bytes, DIGEST)
    assert key in caught.value.message
    assert disk.revision == 0


def test_an_upload_counts_from_the_beginning_of_its_transaction(
    disk: ObjectDisk, shared: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: nothing is named that gc may be about to take."""
    with disk.transaction(Merged()) as transaction:
        key = put_blob(shared.open(), PATH, BYTES, DIGEST, revision=0)
        monkeypatch.setattr("disks.object_disk.commit_checks.MAX_AGE_SECONDS", -1)
        transaction.uploaded(PATH, key, len(BYTES), DIGEST)
        with pytest.raises(Refused, match="began"):
            transaction.commit()


def test_credentials_that_were_found_go_along_and_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never shown."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOUND")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "found-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "found-token")
    config = ObjectDiskConfig(url="s3://bucket/x/", endpoint_url="http://127.0.0.1:1", region="here")
    shared = StoreAddress.of(config)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    copy = pickle.loads(pickle.dumps(shared))
    assert copy == shared
    assert (copy.config.access_key_id, copy.config.secret_access_key) == ("AKIAFOUND", "found-secret")
    assert copy.config.session_token == "found-token"
    assert not any(secret in text for secret in ("found-secret", "found-token") for text in (repr(copy), f"{config}"))
    assert "found" not in repr(copy.config).replace("AKIAFOUND", "")


def test_a_store_of_one_process_cannot_be_shared() -> None:
    with pytest.raises(UsageError, match="this process only"):
        StoreAddress.of(ObjectDiskConfig(url="memory://x/"))
