"""Random work on a published table: each snapshot, read in place by an engine that knows no Frostline, has the rows of
`query --revision`. The engine is PyIceberg, in this process; `make test-engines` asks others.

Guards I4, I7, I17 and I21.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.publishing import NAME, begin, rows_of
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.iceberg.follow import publish_due
from tiering.iceberg.publication import Publication, Published

STEPS = 25


def check(store: Store, published: Published, url: str) -> None:
    """Every snapshot has the rows of its revision, with filters too."""
    static = StaticTable.from_metadata(url)
    for snapshot in published.metadata.snapshots:
        revision = snapshot.snapshot_id
        expected = store.query(f"SELECT * FROM {NAME}", revision=revision).read_all()
        assert rows_of(static.scan(snapshot_id=revision).to_arrow()) == rows_of(expected), revision
    assert static.current_snapshot() is not None
    columns = {field.name for field in static.schema().fields}
    for condition in ("k > 10", "k = 5", "ts < '2025-12-31T03:00:00+00:00'", "k is null"):
        name = condition.split()[0]
        if name in columns:
            actual = static.scan(row_filter=condition).to_arrow()
            sql = condition.replace("'2025", "timestamptz '2025")
            wanted = store.query(f"SELECT * FROM {NAME} WHERE {sql}", revision=published.revision).read_all()
            assert rows_of(actual) == rows_of(wanted), condition


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(5))
def test_each_snapshot_has_the_rows_of_its_revision(tmp_path: Path, seed: int) -> None:
    snapshots = 0
    with Store.open(embedded(tmp_path)) as store:
        history = begin(store, seed)
        for _ in range(STEPS):
            history.step()
            if history.dice.random() < 0.6:
                problems = publish_due(store)
                publication = Publication(store, store.definition(NAME))
                newest = publication.newest()
                if newest is not None:
                    snapshots += 1
                    check(store, newest, publication.metadata_url(newest.version))
                    assert problems or publication.due(newest) is None
    assert snapshots > 5
