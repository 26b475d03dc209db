"""Where the captured disks lie, and their prefixes in the bucket they were taken from. Each has a README."""

from __future__ import annotations

from pathlib import Path

CLICKHOUSE = Path(__file__).parent / "clickhouse-24.8"
KEY_PREFIX = "cap312b/"
