"""Logs as servers of ClickHouse wrote them, and the tree that they lead to."""

from __future__ import annotations

from restore.clickhouse.bucket import ClickHouseTree, read_bucket
from tests.compat.buckets import ClickHouse


def read(server: ClickHouse, revision: int | None = None) -> ClickHouseTree:
    return read_bucket(server.store(), revision=revision)


def kinds(tree: ClickHouseTree) -> list[str]:
    return [finding.kind for finding in tree.findings]
