"""Replicas and their marks on the screens: a real ZooKeeper, a real bucket, and what the verbs say of the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobReference
from disks.kinds import as_disk
from tests.replicas.machines import Machine
from tests.tui.pilot import Driver, drive
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store


@pytest.fixture
def machines(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str
) -> tuple[Machine, Machine]:
    """Two replicas, each with a log of its own in one bucket; `b` has not taken in what `a` inserted."""
    a, b = (Machine(tmp_path, name, settings, capsys, f"s3://{bucket}/cold/", log=name) for name in ("a", "b"))
    a.create("--policy", "cold")
    b.join("--policy", "cold")
    a.insert(1, 2, 3)
    return a, b


@pytest.mark.in_turn
def test_what_waits_is_shown_and_taken_in(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    b.sync(code=1)  # nobody gives the part out
    (waits,) = b.json("replica", "queue", "d.t")["entries"]

    async def story(driver: Driver) -> None:
        await driver.press("minus")
        await driver.until(lambda: {row["replica"] for row in driver.rows} == {"a", "b"})
        await driver.press("home", *["down"] * [row["replica"] for row in driver.rows].index("b"))
        (failing,) = (row for row in driver.rows if row["replica"] == "b")
        assert failing["last_error"].startswith(f"{waits['part']}: ")
        await driver.sees(failing["last_error"][:16])  # in the column of its trouble
        await driver.press("w")
        await driver.sees("frostline replica queue d.t", waits["part"])
        tries = f"{waits['waits']['tries']} try: {waits['waits']['reason']}"
        await driver.until(lambda: tries in " ".join(driver.text.replace("│", "").split()))
        await driver.press("escape")
        await driver.press("y")
        await driver.is_told("d.t: 1 part fetched, 0 parts merged.\n$ frostline replica sync d.t")

    with a.serving():
        drive(b, story, size=(160, 30))
    assert b.keys() == [1, 2, 3]
    assert b.json("replica", "queue", "d.t")["entries"] == []


@pytest.mark.in_turn
def test_marks_are_compared_and_put_back_before_gc_may_collect(machines: tuple[Machine, Machine]) -> None:
    a, _ = machines
    (part,) = a.disks()
    a.move(part)
    with Store.open(a.configuration) as store:
        disk = as_disk(store.disk("s3"), LoggedDisk)
        assert disk is not None
        assert disk.marks is not None
        used = {BlobReference(i.blob_set, i.path.rpartition("/")[0]) for i in disk.walk() if i.key and i.blob_set}
        disk.marks.remove(disk.marks.seen(used))
    a("gc", "s3", "--delete", code=13)

    async def story(driver: Driver) -> None:
        await driver.press("6")
        await driver.until(lambda: any(row["name"] == "s3" for row in driver.rows))
        await driver.press("home", *["down"] * [row["name"] for row in driver.rows].index("s3"))
        await driver.press("enter")
        await driver.sees("never compared with the logs")
        await driver.press("m")
        await driver.sees(
            "$ frostline replica audit s3 --repair", "mark_missing", "Not clean: gc collects nothing here."
        )
        await driver.press("y")
        await driver.until(
            lambda: any("1 difference repaired. Clean: gc may collect here." in told for told in driver.told)
        )
        await driver.press("r")
        await driver.sees("marks: gc may collect here")

    drive(a, story, size=(160, 50))
    a("gc", "s3", "--delete")


@pytest.mark.in_turn
def test_marks_of_an_unshared_disk_are_refused_as_by_the_verb(
    machines: tuple[Machine, Machine],
) -> None:
    a, _ = machines
    a("replica", "audit", "ssd", code=2)
    words = a.error.splitlines()[0].removeprefix("frostline: ")

    async def story(driver: Driver) -> None:
        await driver.press("6")
        await driver.until(lambda: any(row["name"] == "ssd" for row in driver.rows))
        await driver.press("home", *["down"] * [row["name"] for row in driver.rows].index("ssd"))
        await driver.press("m")
        await driver.until(lambda: any(words in told for told in driver.told))

    drive(a, story)
