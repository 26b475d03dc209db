"""Credentials without s3:DeleteObject, as the documentation allows: all but gc works, and nothing stays held for ever.

A real server behind a proxy that refuses deletes, each key by itself as AWS does, or the request as a whole. Guards I5
and I21: what a claim, a mark or a pin holds is given back by a document beside it, as under Object Lock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disks.object_disk.pending_deletes import INTENTS_PREFIX, end_of
from disks.stores.open import open_store
from disks.stores.s3 import store as s3
from oplog import pins
from oplog.revision import blob_key
from tests import worm
from tests.command_line import Frostline
from tests.meddling import Exchange, meddling
from tests.servers import Server

DELETES = pytest.mark.skipif(worm.ACTIVE, reason="ends with deletes that are allowed again")


def refuse_each(found: Exchange, body: bytes) -> None:
    keys = re.findall(rb"<Key>([^<]*)</Key>", body)
    errors = b"".join(b"<Error><Key>%s</Key><Code>AccessDenied</Code></Error>" % key for key in keys)
    found.status, found.body = 200, b"<DeleteResult>%s</DeleteResult>" % errors
    found.headers = {"x-amz-request-id": "1"}


def refuse_all(found: Exchange, body: bytes) -> None:
    found.status, found.headers = 403, {"x-amz-request-id": "1"}
    found.body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


class NoDeletes:
    """While `on`, nothing can be deleted."""

    def __init__(self, refuse: Callable[[Exchange, bytes], None]) -> None:
        self.on = False
        self._refuse = refuse

    def __call__(self, found: Exchange, forward: Callable[[], None]) -> None:
        if self.on and (found.method == "DELETE" or (found.method == "POST" and found.path.endswith("?delete"))):
            self._refuse(found, found.sent_body)
        else:
            forward()


@pytest.fixture(params=[refuse_each, refuse_all], ids=["each", "whole"])
def no_deletes(
    request: pytest.FixtureRequest, ministack: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[NoDeletes, Server]]:
    monkeypatch.setattr(s3, "_probed", {})
    refusing = NoDeletes(request.param)
    with meddling(ministack, around=refusing) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
        yield refusing, server


@pytest.fixture
def table(frostline: Frostline, no_deletes: tuple[NoDeletes, Server]) -> Frostline:
    """100 rows in the bucket, 100 on the SSD."""
    for name, first in (("cold", 0), ("hot", 100)):
        Path(f"{name}.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(first, first + 100)))
    no_deletes[0].on = True
    frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
    frostline("insert", "d.t", "cold.csv")
    frostline("move", "d.t", "--partition", "all", "--to-disk", "s3")
    frostline("insert", "d.t", "hot.csv")
    return frostline


def held_pins(server: Server, bucket: str) -> list[str]:
    with open_store(server.disk(f"s3://{bucket}/p/")) as store:
        return [pin.name for pin in pins.list_pins(store)]


@pytest.mark.in_turn
def test_backups_of_an_append_only_repository(
    table: Frostline, no_deletes: tuple[NoDeletes, Server], bucket: str
) -> None:
    repository = f"s3://{bucket}/repo/"
    table("backup", "init", repository)
    for name in ("one", "two", "three"):
        table("backup", "create", name, "--to", repository)
    assert [made["name"] for made in table.json("backup", "list", "--to", repository)["backups"]] == [
        "one",
        "two",
        "three",
    ]
    status = table.json("backup", "list", "--to", repository)
    assert not status.get("unfinished")
    table("backup", "verify", "three", "--to", repository)


@pytest.mark.in_turn
@DELETES
def test_a_complete_backup_leaves_no_pin_of_its_own(
    table: Frostline, no_deletes: tuple[NoDeletes, Server], bucket: str
) -> None:
    """Beside the disk's prefix only the pin of the backup itself holds the files; gc of whoever may delete ends it."""
    refusing, server = no_deletes
    repository = f"s3://{bucket}/repo/"
    table("backup", "init", repository)
    made = table.json("backup", "create", "one", "--to", repository)
    assert all(name == f"backup-{made['id']}" for name in held_pins(server, bucket))
    table("query", "select count(*) from d.t")
    table("pin", "d.t", "--partition", "all")
    table("unpin", "d.t", "--partition", "all")
    out = table("--yes", "gc", "s3", "--delete", "--json", "--guard-interval", "0s", "--allow-short-guard-interval")
    assert not json.loads(out)["failed"]
    with open_store(server.disk(f"s3://{bucket}/p/")) as store:
        assert any("+released" in item.key for item in store.list("pins/"))
        refusing.on = False
        pins.sweep(store)
        assert not any("+released" in item.key for item in store.list("pins/"))


@pytest.mark.in_turn
@DELETES
def test_a_collection_without_the_permission_says_so(
    table: Frostline, no_deletes: tuple[NoDeletes, Server], bucket: str
) -> None:
    """Exit 12 with the permission that it needs, and no announcement of its own stays in force."""
    refusing, server = no_deletes
    data = b"nobody names this"
    with open_store(server.disk(f"s3://{bucket}/p/")) as store:
        store.put(blob_key(1), data, sha256=hashlib.sha256(data).digest())
        gc = ("--yes", "gc", "s3", "--delete", "--guard-interval", "0s", "--allow-short-guard-interval")
        table(*gc, "--max-delete-fraction", "1", code=12)
        assert "s3:DeleteObject" in table.error
        intents = [item.key for item in store.list(INTENTS_PREFIX)]
        assert len([key for key in intents if end_of(key) in intents]) == 1
        refusing.on = False
        table(*gc, "--max-delete-fraction", "1")
        assert not any(item.size_bytes == len(data) for item in store.list("r"))
