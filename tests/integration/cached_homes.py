"""A machine with a read cache whose bucket lies behind a proxy, so that a test sees what is asked of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.homes import Home
from tests.meddling import Exchange, meddling
from tests.servers import Server


@contextmanager
def cached_home(
    root: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    *,
    max_bytes: str,
) -> Iterator[Home]:
    """`asked` gets what is asked of the server, such as "GET /bucket/key"."""

    def note(exchange: Exchange) -> None:
        asked.append(f"{exchange.method} {exchange.path}")

    with meddling(server, answer=note) as proxy:
        for name, value in proxy.environment().items():
            monkeypatch.setenv(name, value)
        home = Home(root, "one", capsys)
        document = yaml.safe_load(home.configuration.read_text())
        document["disks"]["s3"].update(url=f"s3://{proxy.new_bucket()}/store/", look_seconds=100_000)
        document["read_cache"] = {"max_bytes": max_bytes}
        home.configuration.write_text(yaml.safe_dump(document))
        yield home


def gets(asked: list[str]) -> int:
    """Reads of files of parts since the last call."""
    found = sum(request.startswith("GET ") and "-file-" in request for request in asked)
    asked.clear()
    return found
