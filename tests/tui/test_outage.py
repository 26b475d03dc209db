"""The S3 server goes away and comes back while the dashboard is open: a real server that is stopped and started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from disks.object_disk import disk as object_disk
from disks.stores.wrappers import retry
from tests.homes import Home
from tests.servers import Server, free_port, ministack
from tests.tui.pilot import Driver, drive
from tui import source

_AWAY = "disk s3 cannot be reached: its last known contents are shown"
_SCREENS = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "minus")


class Bucket:
    """A server with one bucket, which it still has when it comes back."""

    def __init__(self, kept: Path) -> None:
        self._kept, self._port = kept, free_port()
        self._up = ExitStack()
        self.server: Server
        self.start()
        self.name = self.server.new_bucket()

    def start(self) -> None:
        self.server = self._up.enter_context(ministack(self._port, self._kept))

    def stop(self) -> None:
        self._up.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "kept")
    yield made
    made.stop()


@pytest.fixture
def cold(home: Home, bucket: Bucket) -> Home:
    """A store with `d.cold` in the bucket and `d.hot` on the SSD."""
    root = home.path.parent / "cold"
    made = Home(root, "a", home.capsys)
    document = yaml.safe_load(made.configuration.read_text())
    document["disks"]["s3"] = {
        "type": "object_disk",
        "url": f"s3://{bucket.name}/store/",
        "endpoint_url": bucket.server.endpoint_url,
        "access_key_id": bucket.server.access_key_id,
        "secret_access_key": bucket.server.secret_access_key,
        "region": "us-east-1",
    }
    made.configuration.write_text(yaml.safe_dump(document))
    for table in ("d.cold", "d.hot"):
        made.create(table)
        made.insert(1, 2, 3, table=table)
    made.to_bucket(table="d.cold")
    return made


@pytest.mark.in_turn
def test_every_screen_outlives_the_bucket(cold: Home, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen stays; what is asked of the bucket is refused in words; all is there again when it is."""
    monkeypatch.setattr(source, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(object_disk, "_ASK_AGAIN_SECONDS", 1e6)  # it is left in peace, but for who wants to know
    parts = cold.json("parts")["parts"]

    async def story(driver: Driver) -> None:
        for key in _SCREENS:
            await driver.press(key, *(["escape"] if key == "0" else []))
        bucket.stop()
        for key, said in (("1", _AWAY), ("2", _AWAY), ("3", _AWAY), ("5", _AWAY), ("6", "unreachable")):
            await driver.press(key, "r")
            await driver.sees(said)
            await driver.lacks("Nothing is due")
        await driver.press("5")
        await driver.sees("Nothing moves: 1 part cannot move: disk s3 cannot be reached")
        await driver.press("3")
        await driver.lists(sorted(part["part"] for part in parts), lambda rows: sorted(row["part"] for row in rows))
        await driver.press("7", "r")
        await driver.sees("no answer from", "create table d.hot")
        for key in ("4", "8", "9", "0", "minus"):
            await driver.press(key, *(["escape"] if key == "0" else []), "r")
            await driver.lacks("what it holds") if key in ("4", "9") else None
            await driver.press("f1")
            await driver.until(lambda: len(driver.app.screen_stack) == 2)
            await driver.press("escape")
        bucket.start()
        for key in _SCREENS:
            await driver.press(key, *(["escape"] if key == "0" else []), "r")
            await driver.lacks("cannot be reached", "no answer")
            if key != "8":  # no repository is configured
                await driver.until(lambda: driver.app.problem is None)
        await driver.press("3")
        await driver.lists(len(parts), len)
        assert driver.told == []

    drive(cold, story, size=(140, 40))


@pytest.mark.in_turn
def test_actions_on_a_bucket_that_is_away_say_so_in_words(
    cold: Home, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them, and none changes anything."""
    monkeypatch.setattr(source, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(retry.Backoff, "budget_seconds", lambda backoff, error: 0.2)
    monkeypatch.setattr(object_disk, "_ASK_AGAIN_SECONDS", 0.0)
    before = cold.json("parts")

    async def story(driver: Driver) -> None:
        for key in ("2", "3", "6", "7"):
            await driver.press(key)
        bucket.stop()

        async def refused(*keys: str) -> None:
            made = len(driver.told)
            await driver.press(*keys)
            await driver.until(lambda: len(driver.told) > made)
            assert not any(word in driver.told[-1] for word in ("unexpected", "Traceback")), driver.told

        await driver.press("6")
        await driver.lists(["s3", "ssd"], lambda rows: [row["name"] for row in rows])
        await refused("home", "c")
        await refused("w")
        await refused("7", "home", "d")
        await refused("z")
        await driver.press("0")
        await driver.write("select k from d.cold")
        await refused("f5")
        await driver.press("3", "home", "enter")
        await driver.sees("d.cold")
        await driver.press("f1")
        await driver.until(lambda: len(driver.app.screen_stack) == 2)
        await driver.press("escape")
        bucket.start()

    drive(cold, story, size=(140, 40))
    assert cold.json("parts") == before


@pytest.mark.in_turn
def test_a_silent_bucket_is_said_and_keys_work(cold: Home, bucket: Bucket) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("3")
        await driver.lists(2, len)
        os.kill(bucket.server.pid, signal.SIGSTOP)
        try:
            driver.send("r")
            await driver.sees("Reading the store for", "no answer yet; what is shown is of ")
            driver.send("down")
            await driver.until(lambda: driver.app.view.grid.cursor == 1)  # type: ignore[union-attr]
            driver.send("f1")
            await driver.until(lambda: len(driver.app.screen_stack) == 2)
            driver.send("escape")
            await driver.until(lambda: len(driver.app.screen_stack) == 1)
            driver.send("m")
            await driver.sees("Move 1 part to", "volume hot (ssd)")
            assert driver.app._reading, "it was opened while an answer is waited for"
        finally:
            os.kill(bucket.server.pid, signal.SIGCONT)
        await driver.press("escape")
        await driver.lacks("no answer yet", "cannot be reached")
        await driver.lists(2, len)

    drive(cold, story, size=(140, 40))
