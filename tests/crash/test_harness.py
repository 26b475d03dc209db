"""The instruments themselves: each finds the fault that it is for, in a toy that puts one file in place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from disks import effects
from disks.effects import op
from tests.crash import enumeration, powercut
from tests.crash.enumeration import Tally
from tests.crash.harness import Audit, Failpoints, ForkServer, Mode, hooked
from tests.crash.site import Site

Bug = Literal["", "no file sync", "no directory sync"]


def place(root: Path, bug: Bug = "") -> None:
    """Write a file beside its place, rename it into it, and say so."""
    temporary, final = root / "new.tmp", root / "final"
    with op("fs.create", temporary):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with op("fs.write", temporary):
        os.write(descriptor, b"content")
    os.close(descriptor)
    if bug != "no file sync":
        effects.fsync_file(temporary)
    effects.rename(temporary, final)
    if bug != "no directory sync":
        effects.fsync_directory(root)


def place_with_hook(root: Path, mode: Mode, at: int) -> list[str]:
    hook = Failpoints(mode, at)
    with hooked(hook):
        place(root)
    return hook.names


def leave_nothing(root: Path) -> None:
    """Would tidy up after a crash, were it not killed."""
    try:
        place_with_hook(root, "kill", 3)
    finally:
        (root / "new.tmp").unlink(missing_ok=True)


def test_a_kill_leaves_exactly_the_effects_before_it(server: ForkServer, tmp_path: Path) -> None:
    names = server.value(place_with_hook, tmp_path, "count", 0)
    (tmp_path / "final").unlink()
    assert names == ["fs.create", "fs.write", "fs.fsync", "fs.rename", "fs.fsync_directory"]
    for at, left in ((1, []), (2, ["new.tmp"]), (4, ["new.tmp"]), (5, ["final"])):
        assert server.run(place_with_hook, tmp_path, "kill", at).kind == "killed"
        assert os.listdir(tmp_path) == left
        for name in left:
            (tmp_path / name).unlink()


def test_nothing_tidies_up_after_a_kill(server: ForkServer, tmp_path: Path) -> None:
    assert server.run(leave_nothing, tmp_path).kind == "killed"
    assert os.listdir(tmp_path) == ["new.tmp"]


@pytest.mark.parametrize(("mode", "left"), [("raise_before", ["new.tmp"]), ("raise_after", ["final"])])
def test_errors_strike_before_or_after_the_effect(tmp_path: Path, mode: Mode, left: list[str]) -> None:
    with pytest.raises(OSError, match="injected"):
        place_with_hook(tmp_path, mode, 4)
    assert os.listdir(tmp_path) == left


@pytest.mark.parametrize("mode", ["raise_before", "raise_after"])
def test_an_error_that_a_run_does_not_come_to_proves_nothing(server: ForkServer, site: Site, mode: Mode) -> None:
    server.value(enumeration.prepare, "drop_parts", site)
    found = server.value(enumeration.fail_and_repeat, "drop_parts", site, mode, 10_000)
    assert found == ["the error never happened"]


def test_nor_does_a_kill(server: ForkServer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    known = enumeration.reference(server, site, "drop_parts")
    longer = replace(known, countable=known.countable + 1)
    monkeypatch.setattr(enumeration, "reference", lambda *_: longer)
    monkeypatch.setattr(Tally, "due", lambda tally, operation, points: [longer.countable])
    once = enumeration.kill_everywhere(server, site, "drop_parts")
    again = enumeration.kill_twice(server, site, "drop_parts")
    for tally in (once, again):
        assert [line.split(": ")[1] for line in tally.violations] == ["the kill never happened"]


@pytest.mark.parametrize(
    ("bug", "lost"), [("", False), ("no file sync", True), ("no directory sync", True)], ids=lambda value: str(value)
)
def test_the_power_cut_model_loses_what_was_not_synced(tmp_path: Path, bug: Bug, lost: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    recorder = powercut.Recorder(root, root / "journal.db")
    with recorder.recording():
        place(root, bug)
    acknowledged = [cut.tree for cut in powercut.cuts({}, recorder.trace) if cut.last]
    assert any(tree.get("final") != b"content" for tree in acknowledged) is lost
    assert any(tree.get("final") == b"content" for tree in acknowledged)


def test_a_lost_directory_takes_its_content_along() -> None:
    trace = [
        powercut.Effect("fs.mkdir", ("new",)),
        powercut.Effect("fs.create", ("new/file",), (("new/file", b""),)),
        powercut.Effect("fs.fsync_directory", ("new",)),
    ]
    trees = [cut.tree for cut in powercut.cuts({"old": None}, trace)]
    assert {"old": None} in trees
    assert {"old": None, "new": None, "new/file": b""} in trees


def test_a_rename_between_directories_is_whole(tmp_path: Path) -> None:
    before: powercut.Tree = {"a": None, "b": None, "a/file": b"1"}
    trace = [powercut.Effect("fs.rename", ("a/file", "b/file"))]
    trees = [cut.tree for cut in powercut.cuts(before, trace)]
    assert sorted(sorted(tree) for tree in trees) == [["a", "a/file", "b"], ["a", "b", "b/file"]]


def test_the_audit_sees_what_happens_outside_of_effects(site: Site) -> None:
    site.root.mkdir()
    audit = Audit(site.root)
    try:
        place(site.root)
        assert audit.seen
        assert audit.holes == []
        with pytest.raises(FileNotFoundError):
            effects.rename(site.root / "missing", site.root / "elsewhere")
        (site.root / "final").rename(site.root / "elsewhere")
        assert [hole.split()[0] for hole in audit.holes] == ["os.rename"]
    finally:
        audit.close()
