"""A delete is done when the server says so of each key. Guards I15 (loud), P34."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from disks.stores.s3 import delete
from disks.stores.s3.answers import KINDS, S3Document, S3Request, checked
from disks.stores.s3.errors import S3Place
from disks.stores.wrappers.metered import Meter
from oplog.errors import AccessDenied, FrostlineError, Transient
from tests.servers import Server

SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


PLACE = S3Place("s3://b/p/", "b", "http://s")


class Answering:
    """Requests to a server that gives one answer, and remembers what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.sent = b""

    def delete(self, body: bytes) -> S3Document:
        self.sent = body
        found = checked(S3Request(KINDS["DeleteObjects"], PLACE), {}, self.answer)
        assert found is not None
        return found


def deleted(answer: bytes, *keys: str) -> tuple[dict[str, FrostlineError | None], Any]:
    server = Answering(answer)
    bucket = delete.Bucket(server, "p/", PLACE, Meter())  # type: ignore[arg-type]
    return delete.delete_current(bucket, keys), server


def test_each_key_that_stays_is_named_with_its_reason() -> None:
    answer = f"""<DeleteResult {SPACE}>
        <Error><Key>p/kept</Key><Code>AccessDenied</Code><Message>locked</Message></Error>
        <Error><Key>p/busy</Key><Code>InternalError</Code><Message>later</Message></Error>
        <Error><Key>p/gone</Key><Code>NoSuchKey</Code></Error></DeleteResult>"""
    answers, _ = deleted(answer.encode(), "kept", "busy", "gone", "a")
    assert isinstance(answers["kept"], AccessDenied)
    assert isinstance(answers["busy"], Transient)
    assert (answers["gone"], answers["a"]) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html><body>a proxy's page</body></html>",
        b"<DeleteResult><Error><Key>p/a</Key>",
        b"<Error><Code>InternalError</Code><Message>all of it failed after 200 was said</Message></Error>",
        b"<Error><Code>SlowDown</Code></Error>",
        b"<DeleteResult><Error><Key>p/other</Key><Code>AccessDenied</Code></Error></DeleteResult>",
        b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code></Error></DeleteResult>",
    ],
)
def test_an_answer_that_tells_nothing_of_the_keys_is_no_success(answer: bytes) -> None:
    with pytest.raises(Transient):
        deleted(answer, "a", "b")


def test_keys_arrive_as_they_are() -> None:
    keys = ["a & b", "<c>", 'd"e', "é/\u65e5", "x y+z%20"]
    _, server = deleted(b"<DeleteResult/>", *keys)
    root = ElementTree.fromstring(server.sent)
    found = [element.text for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]
    assert found == [f"p/{key}" for key in keys]


@pytest.mark.in_turn
def test_puts_and_deletes_load_no_client_library(ministack: Server) -> None:
    program = """
import hashlib, sys
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from oplog.errors import NotFound
with open_store(ObjectDiskConfig(url=sys.argv[1])) as store:
    store.put("a & b", b"x", sha256=hashlib.sha256(b"x").digest())
    assert store.delete(["a & b", "never"]) == {"a & b": None, "never": None}
    try:
        store.head("a & b")
    except NotFound:
        pass
    else:
        raise AssertionError("it is still there")
assert not {"boto3", "botocore"} & set(sys.modules)
"""
    words = [sys.executable, "-c", program, f"s3://{ministack.new_bucket()}/p/"]
    subprocess.run(words, env={**os.environ, **ministack.environment()}, check=True)
