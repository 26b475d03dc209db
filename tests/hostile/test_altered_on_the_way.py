"""A byte of a PUT's body is altered between us and an S3 server that compares SHA-256, MD5 or nothing.

Guards I15: no wrong byte is ever committed; a retry stores the right ones, or an error names the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disks.stores.s3 import store as s3
from tests.certificates import context, made
from tests.command_line import Frostline
from tests.meddling import Exchange, meddling
from tests.servers import Server

ROWS = 500
COMPARED = {
    "sha256": (),
    "md5": ("x-amz-checksum-", "x-amz-sdk-checksum-", "x-amz-content-sha256"),
    "nothing": ("x-amz-checksum-", "x-amz-sdk-checksum-", "x-amz-content-sha256", "content-md5"),
}
"""What the server compares, and the headers that are taken off on the way to it."""


class Altering:
    """Alters one body of those whose key has a text in it, once it is set."""

    def __init__(self, taken_off: tuple[str, ...]) -> None:
        self.text = ""
        self.altered = 0
        self._taken_off = taken_off

    def __call__(self, found: Exchange, forward: Callable[[], None]) -> None:
        if self.text and found.method == "PUT" and self.text in found.path and found.sent_body:
            self.text, self.altered = "", self.altered + 1
            middle = len(found.sent_body) // 2
            found.sent_body = (
                found.sent_body[:middle] + bytes([found.sent_body[middle] ^ 4]) + found.sent_body[middle + 1 :]
            )
        for name in [name for name in found.sent if self._taken_off and name.startswith(self._taken_off)]:
            del found.sent[name]
        forward()


@contextmanager
def table_behind(
    altering: Altering, server: Server, frostline: Frostline, patch: pytest.MonkeyPatch, tls: Path | None = None
) -> Iterator[Frostline]:
    """A table with rows on the SSD, whose policy has a bucket on the server."""
    patch.setattr(s3, "_probed", {})
    with meddling(server, around=altering, tls=context(tls) if tls else None) as proxy:
        settings = {"URL": f"s3://{server.new_bucket()}/p/", "ENDPOINT_URL": proxy.endpoint_url, "RETRY_SECONDS": "3"}
        for name, value in (settings | ({"CA_BUNDLE": str(tls / "ca.pem")} if tls else {})).items():
            patch.setenv(f"FROSTLINE_DISKS__S3__{name}", value)
        patch.setenv("AWS_ACCESS_KEY_ID", proxy.access_key_id)
        patch.setenv("AWS_SECRET_ACCESS_KEY", proxy.secret_access_key)
        Path("rows.csv").write_text("k,v\n" + "".join(f"{number},{number % 7}\n" for number in range(ROWS)))
        frostline("table", "create", "d.t", "--like", "rows.csv", "--order-by", "k")
        frostline("insert", "d.t", "rows.csv")
        yield frostline


def has_all_rows(frostline: Frostline) -> bool:
    rows = frostline.json("query", "SELECT count(*), sum(k) FROM d.t")["rows"]
    return bool(rows == [[ROWS, ROWS * (ROWS - 1) // 2]])


MOVE = ("move", "d.t", "--partition", "all", "--to-disk", "s3")


@pytest.mark.in_turn
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compared", COMPARED)
def test_a_data_file_is_whole_or_its_move_fails(
    ministack: Server,
    frostline: Frostline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    compared: str,
    secure: bool,
) -> None:
    altering = Altering(COMPARED[compared])
    tls = made(tmp_path) if secure else None
    with table_behind(altering, ministack, frostline, monkeypatch, tls) as table:
        altering.text = "-file-"
        output, code = table.any(*MOVE)
        assert altering.altered == 1
        if code:
            assert code == 1
            assert "do not match their SHA-256" in output
            assert has_all_rows(table)
            table(*MOVE)
        assert table.json("parts", "d.t")["parts"][0]["disk"] == "s3"
        assert has_all_rows(table)
        table("fsck", "--read-data")


@pytest.mark.in_turn
@pytest.mark.parametrize("compared", COMPARED)
def test_a_log_entry_is_whole_or_named(
    ministack: Server, frostline: Frostline, monkeypatch: pytest.MonkeyPatch, compared: str
) -> None:
    altering = Altering(COMPARED[compared])
    with table_behind(altering, ministack, frostline, monkeypatch) as table:
        altering.text = "operations/"
        output, code = table.any(*MOVE)
        assert altering.altered == 1
        if compared == "nothing":  # the entry was stored: nothing was acknowledged by it
            assert code in (1, 5), output
            _, code = table.any("query", "SELECT count(*), sum(k) FROM d.t")
            assert code or has_all_rows(table)
            said, code = table.any("fsck")
            assert code == 4
            assert "operations/r" in said
            return
        if code:
            assert has_all_rows(table)
            table(*MOVE)
        assert has_all_rows(table)
        table("fsck", "--read-data")
