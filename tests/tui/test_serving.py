"""`top --serve`: who is let in, who is not, and that a viewer is a dashboard."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from importlib import resources

import aiohttp
import pytest
from yarl import URL

from tests.homes import Home
from tests.tui.browsing import Served, alive, browser, enter, kill, tab, until
from tui.serving.gate import Gate


@pytest.fixture
def served(home: Home) -> Iterator[Served]:
    with Served(home) as served:
        yield served


@pytest.mark.in_turn
def test_the_address_lets_one_browser_in_once(served: Served) -> None:
    async def story() -> None:
        async with browser() as first, browser() as second:
            async with first.get(served.address, allow_redirects=False) as answer:
                assert answer.status == 303
                cookie = answer.cookies["frostline"]
                assert cookie["httponly"]
                assert cookie["samesite"] == "Strict"
                assert cookie["path"] == answer.headers["Location"]
                assert "token" not in answer.headers["Location"]
                page = served.origin + answer.headers["Location"]
            async with first.get(page) as answer:
                assert answer.status == 200
            async with second.get(served.address) as answer:
                assert answer.status == 403
                assert "used already" in await answer.text()
            async with second.get(page) as answer:
                assert answer.status == 403
            other = await enter(second, served, served.next_address())
            assert other != page
            async with first.get(other) as answer:
                assert answer.status == 403

    asyncio.run(story())


FOREIGN: tuple[tuple[dict[str, str], str], ...] = (
    ({"Host": "evil.example"}, "and no other"),
    ({"Host": "127.0.0.1"}, "and no other"),
    ({"Host": "evil.example:{port}"}, "and no other"),
    ({"Origin": "http://evil.example"}, "another site"),
    ({"Origin": "https://127.0.0.1:{port}"}, "another site"),
    ({"Origin": "http://127.0.0.1:1"}, "another site"),
    ({"Origin": "http://localhost:{port}"}, "another site"),
    ({"Origin": "null"}, "another site"),
    ({"Origin": ""}, "another site"),
    ({"Sec-Fetch-Site": "cross-site"}, "another site"),
    ({"Sec-Fetch-Site": "same-site"}, "another site"),
)
"""Headers that another page sends, and why they are refused."""


@pytest.mark.in_turn
def test_what_another_page_sends_is_refused(served: Served) -> None:
    """Even with a cookie that is right; and the address that nobody used yet stays good."""

    async def story() -> None:
        async with browser() as session, browser() as other:
            page = await enter(session, served)
            unused = served.next_address()
            cookie = session.cookie_jar.filter_cookies(URL(page))["frostline"].value
            for headers, refused in FOREIGN:
                said = {name: value.format(port=served.port) for name, value in headers.items()}
                said["Cookie"] = f"frostline={cookie}"
                for path in ("", "page.js"):
                    async with session.get(page + path, headers=said) as answer:
                        assert answer.status == 403, headers
                        assert refused in await answer.text(), headers
                with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                    await session.ws_connect(f"{page}socket", headers={"Origin": served.origin, **said})
                assert caught.value.status == 403, headers
                async with session.get(unused, headers=said, allow_redirects=False) as answer:
                    assert answer.status == 403, headers
                assert served.viewers() == [], headers
            await enter(other, served, unused)

    asyncio.run(story())


@pytest.mark.in_turn
def test_without_cookie_or_origin_nothing_is_served(served: Served) -> None:
    async def story() -> None:
        async with browser() as session, browser() as stranger:
            page = await enter(session, served)
            for path in ("", "page.js", "socket", "nothing"):
                async with stranger.get(page + path, headers={"Origin": served.origin}) as answer:
                    assert answer.status == 403, path
            for path in ("/", "/?token=", "/?token=x", "/?token=" + "é" * 40):
                async with stranger.get(served.origin + path) as answer:
                    assert answer.status == 403, path
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{page}socket")
            assert caught.value.status == 403
            for path in ("nothing", "../driver.py", "%2e%2e/driver.py", "..%2fdriver.py", "xterm.LICENSE/"):
                async with session.get(URL(page + path, encoded=True)) as answer:
                    assert answer.status in (403, 404), path
            for verb in ("POST", "PUT", "HEAD", "OPTIONS"):
                async with session.request(verb, page) as answer:
                    assert answer.status == 405, verb
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", served.port)).close()  # bound to one address, not to all

    asyncio.run(story())


@pytest.mark.in_turn
def test_nothing_comes_from_elsewhere(served: Served) -> None:
    async def story() -> None:
        async with browser() as session:
            page = await enter(session, served)
            async with session.get(page) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; ")
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-store"
                text = await answer.text()
            names = re.findall(r'(?:src|href)="(?!data:)([^"]*)"', text)
            assert len(names) == 5
            for name in names:
                async with session.get(page + name) as answer:
                    assert answer.status == 200, name
                    assert "url(" not in await answer.text()

    asyncio.run(story())
    static = resources.files("tui.serving") / "static"
    for name in ("xterm", "addon-fit"):
        assert "Permission is hereby granted" in (static / f"{name}.LICENSE").read_text()


@pytest.mark.in_turn
def test_viewers_see_the_dashboard_and_end_with_their_tab(home: Home, served: Served) -> None:
    async def story() -> None:
        async with browser() as session:
            page = await enter(session, served)
            async with tab(session, served, page) as first, tab(session, served, page) as second:
                await first.sees("Overview")
                await second.sees("Overview")
                await first.press("2")
                await first.sees("d.small")
                await first.press("3")
                await first.sees("202001_1_1_0")
                await first.press("p")
                await first.sees("only reads")
                await second.press("4")
                await second.sees("No moves or merges yet")
                processes = served.viewers()
                assert len(processes) == 2
            await until(lambda: not any(map(alive, processes)))
            async with tab(session, served, page) as left:
                await left.sees("Overview")
                await left.press("q")
                assert await left.ends() == 1000
        await until(lambda: not served.viewers())

    asyncio.run(story())
    assert home.json("status")["pins"] == []


@pytest.mark.in_turn
def test_with_allow_actions_viewers_act(home: Home) -> None:
    async def story(served: Served) -> None:
        async with browser() as session:
            page = await enter(session, served)
            async with tab(session, served, page) as viewer:
                await viewer.sees("Overview")
                await viewer.press("3")
                await viewer.sees("202001_1_1_0")
                await viewer.press("p")
                await viewer.sees("frostline pin d.events")

    with Served(home, "--allow-actions") as served:
        asyncio.run(story(served))
    assert len(home.json("status")["pins"]) == 1


NONSENSE = (
    ("no JSON", 1008),
    ('["keys"]', 1008),
    ('["keys", 3]', 1008),
    ('["resize", "wide", 3]', 1008),
    ('["quit"]', 1008),
    ("{}", 1008),
    ('["keys", "' + "x" * 100_000 + '"]', 1009),
)
"""What no page of ours says, and the code with which its socket is closed."""


@pytest.mark.in_turn
def test_a_page_that_says_anything_else_is_left(served: Served) -> None:
    async def story() -> None:
        async with browser() as session:
            page = await enter(session, served)
            for message, code in NONSENSE:
                async with tab(session, served, page) as viewer:
                    await viewer.socket.send_json(["resize", 10**30, -5])
                    await viewer.socket.send_json(["focus"])
                    await viewer.socket.send_str(message)
                    assert await viewer.ends() == code, message[:100]
                await until(lambda: not served.viewers())

    asyncio.run(story())


@pytest.mark.in_turn
def test_viewers_do_not_outlive_their_server(served: Served) -> None:
    async def story() -> None:
        async with browser() as session:
            page = await enter(session, served)
            async with tab(session, served, page) as viewer:
                await viewer.sees("Overview")
                processes = served.viewers()
                assert len(processes) == 1
                kill(served.process.pid)
                await until(lambda: not any(map(alive, processes)))

    asyncio.run(story())


@pytest.mark.in_turn
def test_a_dashboard_that_cannot_start_says_why_in_the_page(home: Home, served: Served) -> None:
    home.configuration.write_text("disks: {ssd: {type: nonsense}}\n")

    async def story() -> None:
        async with browser() as session:
            page = await enter(session, served)
            async with tab(session, served, page) as viewer:
                await viewer.sees("nonsense")
                assert await viewer.ends() == 1000

    asyncio.run(story())


@pytest.mark.in_turn
def test_options_that_make_no_sense(home: Home, served: Served) -> None:
    home("top", "--allow-actions", code=2)
    assert "--allow-actions is for --serve" in home.error
    home("top", "--once", "--serve", "0", code=2)
    home("top", "--serve", "70000", code=2)
    home("top", "--serve", str(served.port), code=2)
    assert f"cannot serve on port {served.port}" in home.error


def test_a_token_is_good_once_and_a_pass_for_its_own_path() -> None:
    gate = Gate(80)
    token = gate.address.partition("token=")[2]
    assert gate.admit(token[:-1]) is None
    first = gate.admit(token)
    assert first is not None
    assert gate.admit(token) is None
    assert token not in gate.address
    second = gate.admit(gate.address.partition("token=")[2])
    assert second is not None
    assert gate.knows(first.path, first.cookie)
    assert not gate.knows(first.path, second.cookie)
    assert not gate.knows(first.path, "")
    assert not gate.knows("", "")
