"""Machines that share no bucket: what they ask of Keeper is what matters here."""

from __future__ import annotations

import pytest


@pytest.fixture
def shared_url() -> str:
    return ""
