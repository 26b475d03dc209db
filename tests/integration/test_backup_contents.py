"""`backup diff` and `backup cat`: what is in backups, without restoring them."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path

import pytest

from oplog.errors import Damaged, NotFound, UsageError
from tests.backups import TABLE, Machine, filled, insert, machine_on, move
from tiering.cli import main as cli


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = filled(machine_on(tmp_path))
    made.init()
    monkeypatch.setenv("FROSTLINE_CONFIG", str(made.write_config(tmp_path / "frostline.yaml")))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)
    made.create("one")
    return made


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, bytes]:
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, write_through=True))
        code = cli.run(["backup", *arguments])
        sys.stdout.flush()
        return code, written.getvalue()


def test_two_backups_are_compared(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with here.open() as store:
        move(store, "cold", "202602")  # a part that moved is the same
    here.create("two")
    code, text = run(monkeypatch, "diff", "one", "two", "--json")
    assert (code, json.loads(text)) == (0, {"from": "one", "to": "two", "tables": []})
    with here.open() as store:
        insert(store, 9000, months=(3,))
    here.create("three")
    (table,) = json.loads(run(monkeypatch, "diff", "two", "latest", "--json")[1])["tables"]
    assert (table["table"], table["change"]) == (TABLE, "changed")
    assert [part["change"] for part in table["parts"]] == ["added"]
    code, text = run(monkeypatch, "diff", "three", "one")
    assert code == 0
    assert f"  - {table['parts'][0]['part']}: " in text.decode()
    assert run(monkeypatch, "diff", "one", "four")[0] == 10


def test_every_file_is_written_with_its_bytes(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, files in here.digests().items():
        for file, digest in files.items():
            code, data = run(monkeypatch, "cat", "latest", f"{TABLE}/{part}/{file}")
            assert (code, hashlib.sha256(data).hexdigest()) == (0, digest)
    assert run(monkeypatch, "cat", "one", f"{TABLE}/nothing/part.json") == (10, b"")
    assert run(monkeypatch, "cat", "one", "../../etc/passwd")[0] == 2
    part = next(iter(here.digests()))
    with here.repository() as repository:
        with pytest.raises(NotFound, match="has no file"):
            repository.cat("one", f"{TABLE}/{part}")
        with pytest.raises(UsageError):
            repository.cat("one", "/x")


def test_a_changed_file_is_not_written(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    part, files = next(iter(here.digests().items()))
    root = Path(here.repository_url.removeprefix("file://"))
    for path in [*(root / "packs").rglob("*"), *(root / "blobs").rglob("*")]:
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(bytes(byte ^ 1 for byte in data))
    code, data = run(monkeypatch, "cat", "one", f"{TABLE}/{part}/{next(iter(files))}")
    assert (code, data) == (1, b"")
    with here.repository() as repository, pytest.raises(Damaged):
        repository.cat("one", f"{TABLE}/{part}/part.json")
