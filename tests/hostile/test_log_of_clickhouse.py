"""A bucket that says it is a ClickHouse server's, with names and headers that no server gave. Guards I15 (loud).

| forged | what is answered |
|---|---|
| a `path` above the disk, absolute, with control characters, too long, hidden by RFC 2047 | a finding, exit 4 |
| an operation of another word, headers that are missing | the same |
| a path that is strange and safe | what is there |
| a number that SQLite cannot hold | it is foreign |
| a rename of the root, of a directory into itself, a link onto a directory | the same |

Nothing is written outside of where it belongs, and nothing of it reaches the terminal as it is.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.command_line import Frostline
from tests.servers import Server

pytestmark = pytest.mark.in_turn

FILE = "r{:064b}-file-" + "a" * 32
PART = "store/abc/abcdef00-0000-4000-8000-000000000000/all_1_1_0"


def hidden(text: str) -> str:
    """As S3 gives a value back that is no ASCII."""
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


PATHS = {
    "above": "../../../../outside",
    "absolute": "/etc/frostline-was-here",
    "hidden above": hidden("../../../../outside"),
    "hidden control characters": hidden("store/\x1b[2J\r\nforged line"),
    "hidden NUL": hidden("store/a\0b"),
    "no charset": "=?x-none?B?AAAA?=",
    "not base64": "=?UTF-8?B?%%%?=",
    "long": "store/" + "x" * 1800,
    "deep": "store/" + "d/" * 800 + "f",
    "our own": ".frostline/disk.json",
    "empty segments": "store//a/./b",
}


def operation(kind: str, source: str, target: str, number: int = 2) -> tuple[str, dict[str, str]]:
    names = ("from_path", "to_path") if kind == "rename" else ("src_path", "dst_path")
    return f"operations/r{number:064b}-host-{kind}", dict(zip(names, (source, target), strict=True))


OBJECTS: dict[str, list[tuple[str, dict[str, str]]]] = {
    **{f"a path: {name}": [(FILE.format(2), {"path": path})] for name, path in PATHS.items()},
    **{f"a rename to: {name}": [operation("rename", PART + "/", path)] for name, path in PATHS.items()},
    **{f"a link to: {name}": [operation("hardlink", PART + "/data.bin", path)] for name, path in PATHS.items()},
    "another word": [(f"operations/r{2:064b}-host-destroy_all", {"path": PART})],
    "no headers": [(f"operations/r{2:064b}-host-rename", {}), (FILE.format(3), {})],
    "the root is renamed": [operation("rename", "/", "store/x/"), operation("rename", "", "x", 3)],
    "a directory into itself": [operation("rename", "store/", "store/abc/store/")],
    "an object past the last number": [(FILE.format(1 << 63), {"path": f"{PART}/more.bin"})],
    "an operation past it": [operation("rename", PART + "/", PART[:-1] + "1/", (1 << 64) - 1)],
    "a link onto a directory": [operation("hardlink", f"{PART}/data.bin", "store/abc")],
}


SAFE = ("no charset", "our own", "past the last number", "past it")
"""Strange, and harmless: below the disk, or foreign to it. What a disk of ours may not hold is refused when it is
restored."""


@pytest.mark.parametrize("name", OBJECTS)
def test_it_is_named_and_goes_nowhere(
    frostline: Frostline, home: Path, bucket: str, ministack: Server, name: str
) -> None:
    client = ministack.client()

    def put(key: str, metadata: dict[str, str], body: bytes = b"data") -> None:
        client.put_object(Bucket=bucket, Key=f"p/{key}", Body=body, Metadata=metadata)

    put(".SCHEMA_VERSION", {}, b"1")
    put(FILE.format(1), {"path": f"{PART}/data.bin"})
    for key, metadata in OBJECTS[name]:
        put(key, metadata)
    url = f"s3://{bucket}/p/"
    harmless = name.endswith(SAFE)
    document = frostline.json("clickhouse", "inspect", url, "--files", code=0 if harmless else 4)
    assert harmless or document["problems"]
    found = {0, 2, 4} if harmless else {4}
    for verb, codes in (
        (("clickhouse", "inspect", url, "--files"), found),
        (("restore", "s3", "--from", url), found | {1}),
        (("restore", "s3", "--from", url, "--apply", "-y"), found | {1}),
        (("clickhouse", "export", url, str(home / "exported")), found | {1, 2, 10}),
    ):
        out, code = frostline.any(*verb)
        assert code in codes, (verb, code, out, frostline.error)
        assert "unexpected" not in frostline.error, (verb, frostline.error)
        assert "\x1b" not in out + frostline.error
        assert "\nforged line" not in out + frostline.error
    assert not list(home.parent.rglob("outside"))
    assert not Path("/etc/frostline-was-here").exists()
    frostline("fsck", "ssd")
