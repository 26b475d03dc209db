"""What commits of a local disk say they touched: never less than what differs from before, whatever happened (I1)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from unittest import mock

import pytest

from disks import effects
from disks.base import Fingerprint
from disks.local import changes as lines
from disks.local import sizes
from disks.local.disk import LocalDisk
from oplog.errors import NoSpace
from oplog.kinds import Merged, Moved
from tests.unit.disks.local.putting import disk as disk
from tests.unit.disks.local.putting import put

SEEDS = range(12)
STEPS = 40


@dataclass
class World:
    """A disk with a few directories below `t`, and every state of it that could be told, with what was there."""

    root: Path
    random: random.Random
    numbers: Iterator[int] = field(default_factory=count)
    told: list[tuple[Fingerprint, dict[str, bytes], bool]] = field(default_factory=list)
    """State, content, and whether nothing but commits has happened since."""

    def __post_init__(self) -> None:
        self.disk = LocalDisk("hot", self.root)

    def commit(self, *verbs: tuple[str, str]) -> None:
        with LocalDisk("hot", self.root).transaction(Merged()) as transaction:  # of another process
            for verb, path in verbs:
                if verb == "create":
                    transaction.create(path, b"%d" % next(self.numbers))
                else:
                    transaction.remove(path)
            transaction.commit()

    def some(self) -> str:
        found = [path for path in self.disk.list("t") if path.endswith("/")]
        return self.random.choice(found)[:-1] if found else ""

    # What commits do

    def insert(self) -> None:
        self.commit(("create", f"t/{next(self.numbers)}/part.json"), ("create", f"u/{next(self.numbers)}/part.json"))

    def replace_within(self) -> None:
        if (one := self.some()) and self.disk.exists(f"t/{one}/part.json"):
            self.commit(("remove", f"t/{one}/part.json"), ("create", f"t/{one}/part.json"))

    def bring_deep(self) -> None:
        if one := self.some():
            self.commit(("create", f"t/{one}/deep/{next(self.numbers)}"))

    def remove(self) -> None:
        if one := self.some():
            self.commit(("remove", f"t/{one}"))

    def remove_while_somebody_reads(self) -> None:
        with self.disk.read_lease():
            self.remove()
            self.note(by_commits=True)

    def rename(self) -> None:
        if one := self.some():
            with self.disk.transaction(Moved()) as transaction:
                transaction.rename(f"t/{one}", f"t/{next(self.numbers)}")
                transaction.commit()

    # What else there is

    def hand(self) -> None:
        directory = self.root / "t" / str(next(self.numbers))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "part.json").write_bytes(b"hand")

    def hand_that_takes(self) -> None:
        if one := self.some():
            (self.root / "t" / one).rename(self.root / f"aside-{next(self.numbers)}")

    def hand_within_a_tick_of_a_commit(self) -> None:
        self.insert()
        self.hand()

    def dies(self) -> None:
        """A commit, at any of its effects; whoever looks next carries it out."""
        left = self.random.randrange(60)

        def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        effects.set_hook(hook)  # type: ignore[arg-type]
        try:
            with suppress(KeyboardInterrupt):
                self.random.choice((self.insert, self.remove, self.replace_within))()
        finally:
            effects.set_hook(None)
        LocalDisk("hot", self.root).recover()

    def loses_a_line(self) -> None:
        file = self.root / ".frostline/changes"
        if file.exists():
            kept = file.read_bytes().split(b"\n")
            to_delete = self.random.randrange(len(kept))
            file.write_bytes(b"\n".join(kept[:to_delete] + kept[to_delete + 1 :]))

    def tears_the_end(self) -> None:
        file = self.root / ".frostline/changes"
        if file.exists() and file.stat().st_size:
            os.truncate(file, self.random.randrange(file.stat().st_size))

    def fills_up(self) -> None:
        """No line can be written."""

        def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
            if phase == "before" and name == "fs.write" and str(arguments[0]).endswith("/changes"):
                raise NoSpace("no space left on device")

        effects.set_hook(hook)  # type: ignore[arg-type]
        try:
            self.replace_within()
        finally:
            effects.set_hook(None)

    def times_are_anothers(self) -> None:
        """The directories belong to another user."""
        utime = os.utime

        def refused(path: str, ns: tuple[int, int] | None = None) -> None:
            if ns is not None:
                raise PermissionError(path)
            utime(path)

        with mock.patch("os.utime", refused):
            self.random.choice((self.insert, self.replace_within))()

    def note(self, *, by_commits: bool) -> None:
        """Compare with all that was told before."""
        self.told = [(state, found, only and by_commits) for state, found, only in self.told]
        with self.disk.steady():
            now = self.disk.state_of("t")
            content = {info.path: self.disk.read(info.path) for info in self.disk.walk("t")}
            assert self.disk.stored_bytes() == sum(info.size_bytes for info in self.disk.walk())
        for before, found, only_commits in self.told:
            names = self.disk.changed_between("t", before, now) if now is not None else None
            differing = {path.split("/")[1] for path, _ in found.items() ^ content.items()}
            if names is not None:
                assert differing <= names
            if only_commits:
                assert names is not None
        if now is not None:
            self.told = [*self.told[-30:], (now, content, True)]


COMMITS = ("insert", "replace_within", "bring_deep", "remove", "remove_while_somebody_reads", "rename")
OTHERS = (
    "hand",
    "hand_that_takes",
    "hand_within_a_tick_of_a_commit",
    "dies",
    "loses_a_line",
    "tears_the_end",
    "fills_up",
    "times_are_anothers",
)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("steps", [COMMITS, COMMITS + OTHERS], ids=["commits", "all that may happen"])
def test_what_is_another_than_before_is_among_what_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: tuple[str, ...]
) -> None:
    """And nothing but commits leaves no gap; the state is told at once after each. The sizes that are kept follow."""
    monkeypatch.setattr(sizes, "KEPT_FROM", 1)
    world = World(tmp_path / "hot", random.Random(seed))
    if "hand" in steps:
        monkeypatch.setattr(lines, "_FILE_BYTES", 4000)
    world.commit(("create", "t/table.json"))
    world.note(by_commits=True)
    for _ in range(STEPS):
        step = world.random.choice(steps)
        getattr(world, step)()
        world.note(by_commits=step in COMMITS)
    assert world.told


def _state(disk: LocalDisk) -> Fingerprint:
    state = disk.state_of("t")
    assert state is not None
    return state


def test_a_commit_elsewhere_changes_nothing_here(disk: LocalDisk) -> None:
    put(disk, "t/a/part.json")
    before = _state(disk)
    put(disk, "u/a/part.json")
    assert _state(disk) == before
    put(disk, "t/b/part.json", "u/b/part.json")
    assert disk.changed_between("t", before, _state(disk)) == {"b"}


def test_a_commit_within_a_directory_shows_above_it(disk: LocalDisk) -> None:
    put(disk, "t/a/part.json")
    before = _state(disk)
    with disk.transaction(Merged()) as transaction:
        transaction.remove("t/a/part.json")
        transaction.create("t/a/part.json", b"2")
        transaction.commit()
    after = _state(disk)
    assert after != before
    assert disk.changed_between("t", before, after) == {"a"}


def test_a_hand_in_the_moment_of_a_commit_leaves_a_gap(disk: LocalDisk) -> None:
    """Also one that leaves as many directories as there were: many of these fall within one tick of the clock."""
    directory = disk.root / "t"
    put(disk, "t/hand/part.json")

    def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "after" and name == "fs.utime":
            (directory / "hand").rename(directory / "other")
            (directory / "other").rename(directory / "hand")

    effects.set_hook(hook)  # type: ignore[arg-type]
    try:
        for number in range(40):
            put(disk, f"t/{number}/part.json")
            assert disk.state_of("t") is None
    finally:
        effects.set_hook(None)


@pytest.mark.parametrize(
    "hand",
    [lambda path: (path / "x").mkdir(), lambda path: (path / "a").rename(path.parent / "a"), lambda path: path.touch()],
    ids=["brings", "takes", "touches"],
)
def test_a_hand_right_after_a_commit_leaves_a_gap(disk: LocalDisk, hand: Callable[[Path], object]) -> None:
    """However soon: the kernel's clock may not have gone on."""
    put(disk, "t/a/part.json")
    before = _state(disk)
    hand(disk.root / "t")
    assert disk.state_of("t") is None
    put(disk, "t/b/part.json")
    assert disk.changed_between("t", before, _state(disk)) is None


def test_a_commit_of_very_many_leaves_a_gap(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_NAMES", 3)
    put(disk, "t/a/part.json")
    before = _state(disk)
    put(disk, *(f"t/{number}/part.json" for number in range(4)))
    assert disk.state_of("t") is None
    assert disk.changed_between("t", before, before) == set()
    put(disk, "t/b/part.json")
    assert disk.changed_between("t", before, _state(disk)) is None


def test_the_lines_take_little_room(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_FILE_BYTES", 1000)
    states = []
    for number in range(40):
        put(disk, f"t/{number}/part.json")
        states.append(_state(disk))
    files = [disk.root / ".frostline" / name for name in ("changes", "changes.old")]
    assert all(1000 < file.stat().st_size < 1600 for file in files[1:])
    assert disk.changed_between("t", states[-3], states[-1]) == {"38", "39"}
    assert disk.changed_between("t", states[0], states[-1]) is None


def test_a_directory_s_files_are_listed_without_those_below(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first insert into a table asks for the files beside its parts, of which there may be a million."""
    put(disk, "t/a/part.json", "t/b/part.json", "t/blocks-0.json", "t/blocks-1.json")
    opened: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: [opened.append(str(path)), scandir(path)][1])
    with disk.read_lease():
        with LocalDisk("hot", disk.root).transaction(Merged()) as transaction:
            transaction.remove("t/blocks-1.json")
            transaction.commit()
        opened.clear()
        assert disk.files_in("t") == ["blocks-0.json", "table.json"]
    assert [path for path in opened if path.startswith(f"{disk.root}/t/")] == []
