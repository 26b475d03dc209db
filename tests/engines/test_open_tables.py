"""Published tables, read in place by five engines: the rows of each snapshot are those of `query --revision`.

`make test-engines` installs the engines, each in a Python of its own below FROSTLINE_ENGINES.

Guards I7.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engines.reading import ENGINES, plain
from tests.publishing import NAME, begin
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.iceberg.follow import publish_due
from tiering.iceberg.publication import Publication

PYTHONS = {"pyiceberg": "duckdb", "polars": "duckdb", "duckdb": "duckdb", "clickhouse": "clickhouse", "spark": "spark"}
"""Engine -> the environment that has it."""
STEPS = 25

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif("FROSTLINE_ENGINES" not in os.environ, reason="run by make test-engines"),
]


def read(engine: str, requests: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """The answers of an engine."""
    place = Path(os.environ["FROSTLINE_ENGINES"]).absolute()
    done = subprocess.run(
        [place / PYTHONS[engine] / "bin/python", Path(__file__).with_name("reading.py"), engine],
        input=json.dumps(requests),
        env={**os.environ, "TZ": "UTC", "ICEBERG_JARS": str(place / "jars"), "POLARS_ICEBERG_PLANNER": "pyiceberg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout[done.stdout.index("[{") :])
    return answers


def counted(rows: list[dict[str, Any]], engine: str) -> Counter[str]:
    return Counter(json.dumps(without_hollow(row) if engine == "clickhouse" else row, sort_keys=True) for row in rows)


def without_hollow(value: Any) -> Any:
    """ClickHouse has no null structs and no null maps: they come as structs of nulls, and as empty maps."""
    if isinstance(value, list):
        return [without_hollow(inner) for inner in value]
    if isinstance(value, dict):
        inner = {key: without_hollow(inner) for key, inner in value.items()}
        return inner if any(one not in (None, []) for one in inner.values()) else None
    return value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_an_engine_reads_what_a_query_answers(tmp_path: Path, engine: str, seed: int) -> None:
    with Store.open(embedded(tmp_path)) as store:
        history = begin(store, seed)
        for _ in range(STEPS):
            history.step()
            publish_due(store)
        publication = Publication(store, store.definition(NAME))
        newest = publication.newest()
        assert newest is not None
        url = publication.metadata_url(newest.version)
        revisions = [snapshot.snapshot_id for snapshot in newest.metadata.snapshots]
        answers = read(engine, [(url, revision) for revision in revisions])
        for revision, answer in zip(revisions, answers, strict=True):
            assert "error" not in answer, (revision, answer)
            expected = store.query(f"SELECT * FROM {NAME}", revision=revision).read_all().to_pylist()
            assert counted(answer["rows"], engine) == counted([plain(row) for row in expected], engine), revision
    assert len(revisions) > 5
