"""`make screenshots`: the pictures of docs/dashboard.md, of a store that `frostline demo` made.

python -m tests.tui.screenshots STORE DIRECTORY
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from disks.workers.progress import Progress
from tests.tui.pilot import Driver
from tiering.cli.frame.session import actor
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tui.app import Dashboard, Settings
from tui.source import Source

_SIZE = (104, 26)
_SQL = "SELECT origin, count(*) AS flights, avg(dep_delay) AS late FROM nyc.flights GROUP BY origin"
_FOREIGN_FONT = re.compile(r',?\s*url\("https://[^"]*"\) format\("[^"]*"\)')


async def _draw(store: Path, directory: Path) -> None:
    config = embedded(store.absolute())

    def opened(progress: Progress | None = None) -> Store:
        return Store.open(config, actor="you@machine", progress=progress, partial=True)

    source, who = Source(opened), actor()
    app = Dashboard(source, Settings(state_directory=config.state_directory, watch=False))
    async with app.run_test(size=_SIZE):
        driver = Driver(app, (sys.stdout, sys.stderr))
        await driver.settle()

        def picture(name: str) -> None:
            svg = app.export_screenshot(title=f"frostline top: {name}")
            svg = svg.replace(who, "you@machine"[: len(who)].ljust(len(who), "e"))  # the story was told on some machine
            lines = [line.rstrip() for line in _FOREIGN_FONT.sub("", svg).splitlines()]
            (directory / f"{name}.svg").write_text("\n".join(lines) + "\n")

        picture("overview")
        await driver.press("3", "down", "enter")
        picture("parts")
        await driver.press("5", "t")
        await driver.write("2040-01-01")
        await driver.press("enter", "asterisk")
        picture("policy")
        await driver.press("7", "enter")
        picture("log")
        await driver.press("0")
        await driver.write(_SQL)
        await driver.press("f5")
        picture("sql")
        await driver.press("2", "D")
        picture("question")
    source.close()
    source.wait()


if __name__ == "__main__":
    asyncio.run(_draw(Path(sys.argv[1]), Path(sys.argv[2])))
