"""Session tokens that run out while work is under way: read anew once, then an error in words. A real server behind a
proxy that takes no notice of signatures but of the key's name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.stores.base import ObjectStore
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from oplog.errors import AccessDenied
from tests.meddling import Exchange, meddling
from tests.servers import Server

DATA = b"some bytes"


def refuse_old(found: Exchange) -> None:
    if "Credential=old-key" in found.sent.get("authorization", ""):
        found.status = 400
        found.body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def write_profile(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n")


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("new", DATA, sha256=hashlib.sha256(DATA).digest()),
    "get": lambda store: store.get("there"),
    "list": lambda store: list(store.list()),
    "head": lambda store: store.head("there"),
    "delete": lambda store: store.delete(["there"]),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_token_that_has_run_out_is_read_anew(
    verb: str, ministack: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_probed", {})
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    bucket = ministack.new_bucket()
    ministack.client().put_object(Bucket=bucket, Key="p/there", Body=DATA)
    expired = False

    def answer(found: Exchange) -> None:
        if expired:
            refuse_old(found)

    write_profile(profile, "old-key")
    with meddling(ministack, answer=answer) as server:
        config = ObjectDiskConfig(url=f"s3://{bucket}/p/", endpoint_url=server.endpoint_url)
        with open_store(config) as store:
            for call in ("get", "list", "head"):
                CALLS[call](store)
            expired = True
            with pytest.raises(AccessDenied, match="ExpiredToken"):
                CALLS[verb](store)
            write_profile(profile, "new-key")
            monkeypatch.setattr("disks.stores.s3.session._RENEWED_LATELY_SECONDS", 0.0)
            CALLS[verb](store)


def test_keys_that_were_given_are_not_renewed(ministack: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with meddling(ministack, answer=refuse_old) as server:
        config = ObjectDiskConfig(url="s3://b/p/", endpoint_url=server.endpoint_url)
        with open_store(config) as store, pytest.raises(AccessDenied) as caught:
            list(store.list())
    assert "get a new one" in caught.value.hint
