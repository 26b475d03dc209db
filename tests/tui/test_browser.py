"""The served dashboard in a real browser: headless Chromium, where there is one."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.homes import Home
from tests.tui.browsing import PATIENCE_SECONDS, Served, alive, until

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(
    _CHROMIUM is None or os.environ.get("CI") == "true", reason="needs Chromium, which CI does not install"
)


@pytest.fixture
def debugged(tmp_path: Path) -> Iterator[str]:
    """A browser; where it can be told what to do."""
    profile = tmp_path / "profile"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    command = [str(_CHROMIUM), *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        active = profile / "DevToolsActivePort"
        asyncio.run(until(lambda: active.exists() and active.read_text().count("\n")))
        yield f"http://127.0.0.1:{active.read_text().splitlines()[0]}"
    finally:
        process.kill()
        process.wait()


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.asked: list[str] = []
        """What was fetched from anywhere."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Tell the browser something."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = json.loads((await self._socket.receive()).data)
            if answer.get("method") == "Network.requestWillBeSent":
                self.asked.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Network.webSocketCreated":
                self.asked.append(answer["params"]["url"])
            if answer.get("id") == number:
                result: dict[str, Any] = answer["result"]
                return result

    async def value(self, expression: str) -> Any:
        """What a script of the page would find."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True)
        return found["result"].get("value")

    async def sees(self, text: str) -> None:
        """Until the terminal of the page shows it."""
        shown: Any = ""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while text not in (shown or ""):
                shown = await self.value("document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ')")


async def _open(session: aiohttp.ClientSession, debugged: str, address: str) -> Page:
    async with session.put(f"{debugged}/json/new?about:blank") as answer:
        where = (await answer.json())["webSocketDebuggerUrl"]
    page = Page(await session.ws_connect(where))
    await page.call("Network.enable")
    await page.call("Page.navigate", url=address)
    return page


def test_a_browser_shows_the_dashboard_and_takes_keys(home: Home, debugged: str) -> None:
    async def story(served: Served) -> None:
        async with aiohttp.ClientSession() as session:
            page = await _open(session, debugged, served.address)
            await page.sees("Overview")
            assert "token" not in await page.value("location.href")
            assert await page.value("document.cookie") == ""
            await page.call("Input.insertText", text="2")
            await page.sees("d.small")
            assert len(page.asked) > 5
            ours = (served.origin, served.origin.replace("http", "ws"), "data:")
            assert all(url.startswith(ours) for url in page.asked), page.asked
            processes = served.viewers()
            await page.call("Page.navigate", url="about:blank")
            await until(lambda: not any(map(alive, processes)))

    with Served(home) as served:
        asyncio.run(story(served))


def test_a_page_of_another_site_gets_nothing(home: Home, debugged: str) -> None:
    """In the browser that holds the cookie, and even if the path were known."""

    async def evil(request: web.Request) -> web.Response:
        return web.Response(text="<h1>evil</h1>", content_type="text/html")

    async def story(served: Served) -> None:
        app = web.Application()
        app.router.add_get("/", evil)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            good = await _open(session, debugged, served.address)
            await good.sees("Overview")
            path = await good.value("location.pathname")
            for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
                page = await _open(session, debugged, f"{origin}/")
                await _until_value(page, "document.body?.innerText", "evil")
                socket = f"new WebSocket('ws://127.0.0.1:{served.port}{path}socket')"
                opened = f"new Promise(done => {{ const s = {socket};"
                opened += " s.onopen = () => done('open'); s.onerror = () => done('refused'); })"
                assert await page.value(opened) == "refused"
                fetched = f"fetch('{served.origin}{path}', {{credentials: 'include'}})"
                assert await page.value(f"{fetched}.then(() => 'read', () => 'refused')") == "refused"
            assert len(served.viewers()) == 1
        await runner.cleanup()

    with Served(home) as served:
        asyncio.run(story(served))


async def _until_value(page: Page, expression: str, value: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await page.value(expression) != value:
            pass
