"""What verbs count adds up, and one thing is counted the same by all."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.command_line import Frostline
from tests.tools.reference import configuration, documents
from tiering.config.settings import Config


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    """A table with a part on each disk, and four commits in the bucket."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    frostline = Frostline(capsys)
    columns = ("--column", "k:int64", "--column", "g:string", "--order-by", "k", "--partition-by", "identity(g)")
    frostline("table", "create", "d.t", *columns)
    for key, partition in enumerate(("mon", "tue", "wed")):
        Path("rows.csv").write_text(f"k,g\n{key},{partition}\n")
        frostline("insert", "d.t", "rows.csv")
        if partition != "wed":
            frostline("move", "d.t", "--partition", partition, "--to-disk", "s3")
    frostline("table", "alter", "d.t", "--add-column", "x:int64")
    return frostline


def number(text: str, pattern: str) -> int:
    (found,) = re.findall(pattern, text)
    return int(found)


@pytest.mark.in_turn
@pytest.mark.parametrize("revision", [1, 2, 3, 4])
@pytest.mark.parametrize("applied", [False, True])
def test_the_files_of_a_restore(frostline: Frostline, revision: int, applied: bool) -> None:
    said = frostline("restore", "s3", "--revision", str(revision), *(("--apply", "-y") if applied else ()))
    total = number(said, r"(?:created  |to create)  (\d+)") + number(said, r"unchanged  (\d+)")
    files = number(said, r"at revision \d+: (\d+) files?")
    if total != files:
        assert f"in all     {total} files, " in said
        assert f"revision {revision} had {files}" in said
    if applied:
        assert number(frostline("restore", "s3"), r"at revision \d+: (\d+) files?") == total


def test_the_bytes_of_fsck(frostline: Frostline) -> None:
    """However much is read, what is checked is the same."""
    checked = {
        re.findall(r"^Checked .*?(?= \()", frostline("fsck", *more), re.MULTILINE)[0]
        for more in ((), ("--read-data",), ("--read-data-subset", "50%"))
    }
    (one,) = checked
    assert one.startswith("Checked 3 parts, ")


@pytest.mark.in_turn
def test_every_section_of_the_configuration_is_described() -> None:
    titles = {title.partition(" ")[0] for title in re.findall(r"^## (.*)$", configuration(), re.MULTILINE)}
    for item in msgspec.structs.fields(Config):
        if item.name not in ("state_path", "macros"):
            assert {item.name, f"{item.name}.NAME"} & titles, item.name
    assert "docs/reference/configuration.md" in documents(Path(__file__).parents[2])
