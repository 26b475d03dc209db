"""A table on an SSD and in a directory bucket, whose parts are moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moving import close, configuration, create_table, open_context
from tiering.catalog.context import Context


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    opened = open_context(configuration(tmp_path))
    create_table(opened)
    yield opened
    close(opened)
