"""A part in the bucket that says it takes the place of others, and was not made from them: no row is hidden, none goes.

| forged | what used to happen |
|---|---|
| a part whose range covers all others, with a full window of digests | they were removed from the SSD as "merged" |
| a part that `replaces` them by name | the same, and fsck was silent |
| the same with a commit that calls itself a merge of them | the same |
| the same, and a TTL or a person drops the forged part | everything that it covers went with it |
| the same, and somebody moves the forged part to the SSD | what it covers went, for there names are believed |
| a part of the name that a merge would have given which failed | its inputs went |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import FrostlineError
from tests.hostile.forge import ROWS, TABLE, Forged
from tests.hostile.kept import cached_store
from tiering.catalog import tables
from tiering.catalog.lineage import inputs_of
from tiering.config.reading import load_from
from tiering.engine.store import Store
from tiering.merge import merger
from tiering.merge.output import output_name, recorded

pytestmark = pytest.mark.in_turn

DIGESTS = [f"{number:064x}" for number in range(1_000)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged")


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forged:
    return cached_store(place, monkeypatch, capsys)


def covering(store: Forged, name: str, **fields: Any) -> None:
    """A part of this name with a full window of digests, and the 1,000 rows of the part in the bucket."""
    details = fields.pop("details", {})
    kind = fields.pop("kind", "insert")
    forged = {"digests": DIGESTS, **fields}
    store.append(*store.create_part(name, lambda part: part.update(forged)), kind=kind, details=details)


def as_merge(inputs: dict[str, tuple[int, str]]) -> dict[str, Any]:
    return {"kind": "merge", "details": {"inputs": json.dumps(inputs)}}


def brought_and_merged(store: Forged) -> None:
    """A log that tells of a part that came from the SSD, and of a merge that took it away. It is another one's."""
    part = store.create_part("all_2_2_0")
    store.append(*part, kind="move", details={"sources": json.dumps({"ssd": ["all_2_2_0"]})})
    gone = {"op": "remove", "path": part[0]["path"].rpartition("/")[0]}
    made = store.create_part("all_2000000_2000000_1", lambda part: part.update(replaces=["all_2_2_0"], digests=DIGESTS))
    store.append(*made, gone, kind="merge")


FORGERIES: dict[str, Callable[[Forged], None]] = {
    "by its range": lambda store: covering(store, "all_0_999999_9"),
    "by a higher level": lambda store: covering(store, "all_2_2_9"),
    "by a mutation": lambda store: covering(store, "all_2_2_0_9"),
    "by name": lambda store: covering(store, "all_2000000_2000000_1", replaces=["all_2_2_0", "all_3_3_0"]),
    "by what its sources say": lambda store: covering(store, "all_0_9_9", sources=["all_2_2_0", "all_3_3_0"]),
    "by a merge without inputs": lambda store: covering(store, "all_0_9_9", kind="merge"),
    "by a merge of other rows": lambda store: covering(
        store, "all_0_9_9", **as_merge({"all_2_2_0": (1_000, "0" * 64)})
    ),
    "by a merge of other counts": lambda store: covering(store, "all_0_9_9", **as_merge({"all_2_2_0": (7, "0" * 64)})),
    "by a log of its own": brought_and_merged,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_no_part_of_the_ssd_gives_way_to_one_not_made_from_it(store: Forged, forge: Callable[[Forged], None]) -> None:
    """I1, I15: what was there is answered; what the forged part adds is told. It is neither hidden nor removed."""
    before = sorted(path for path in (store.home / "ssd").rglob("*.parquet"))
    forge(store)
    for _ in range(2):
        code, out, err = store.run("query", f"SELECT count(DISTINCT id) FROM {TABLE}", "--json")
        assert code == 0, err
        assert json.loads(out)["rows"] == [[ROWS]]
        assert "nothing shows" in err
    assert sorted(path for path in (store.home / "ssd").rglob("*.parquet")) == before
    problems = [problem for problem in store.problems() if "shows that it was made from it" in problem["what"]]
    assert {problem["invariant"] for problem in problems} == {"I1"}
    store.run("tick")
    assert sorted(path for path in (store.home / "ssd").rglob("*.parquet")) == before


def test_what_is_dropped_takes_nothing_along_that_it_only_claims(store: Forged) -> None:
    """I1: a drop takes a part with its copies, and not what the part says it covers."""
    covering(store, "all_0_999999_9", replaces=["all_2_2_0", "all_3_3_0"])
    with Store.open(load_from(store.home / "frostline.yaml").config) as opened:
        to_delete = [part for part in opened.table(TABLE).parts() if part.part.name == "all_0_999999_9"]
        tables.drop_parts(opened.context, to_delete, reason="test", by_ttl=True)
    assert store.count() == ROWS


CARRIERS = (
    ["move", TABLE, "--part", "{part}", "--to-disk", "ssd"],
    ["merge", TABLE, "--final"],
    ["merge", TABLE, "--cold", "--final"],
    ["merge", TABLE, "--adopt"],
)


@pytest.mark.parametrize("carrier", CARRIERS, ids=" ".join)
@pytest.mark.parametrize("name", ["by its range", "by name", "by a log of its own"])
def test_a_forged_part_is_not_carried_where_it_would_be_believed(store: Forged, name: str, carrier: list[str]) -> None:
    """I1: names are believed on disks of this machine, so what claims others without a proof does not come there."""
    FORGERIES[name](store)
    part = "all_0_999999_9" if name == "by its range" else "all_2000000_2000000_1"
    code, out, _ = store.run(*(word.format(part=part) for word in carrier))
    if carrier[0] == "move":
        assert code != 0
        assert "on ssd its claim" in out
    for _ in range(2):
        assert store.distinct() == ROWS
    store.run("tick")
    assert store.distinct() == ROWS


def test_what_the_issue_tried(store: Forged) -> None:
    """I1, I15: 3,000 rows became 1,035 by one query, and fsck was silent. Now each row is there, and it is said."""
    covering(store, "all_0_999999_9", replaces=["all_2_2_0"])
    assert store.count() == ROWS + 1_000, "the forged part's rows are those of the part in the bucket"
    assert store.distinct() == ROWS
    code, out, _ = store.run("fsck")
    assert code == 4
    assert "all_0_999999_9" in out
    assert "neither the journal nor the log" in out
    code, out, _ = store.run("parts", TABLE, "--json")
    states = {(one["part"], one["disk"]): one["state"] for one in json.loads(out)["parts"]}
    assert states["all_2_2_0", "ssd"] == states["all_3_3_0", "ssd"] == "active"


def test_a_merge_of_more_rows_than_it_has_is_no_proof(store: Forged) -> None:
    """I1: also where the entry names the parts as they are."""
    with Store.open(load_from(store.home / "frostline.yaml").config) as opened:
        inputs = inputs_of(part.part for part in opened.table(TABLE).parts() if part.disk == "ssd")
    assert sum(rows for rows, _ in inputs.values()) == 2_000
    covering(store, "all_2_3_1", **as_merge(inputs))
    assert store.distinct() == ROWS
    assert len(list((store.home / "ssd").rglob("*.parquet"))) == 2


def lose_journal(store: Forged) -> None:
    for file in (store.home / "state").glob("journal.db*"):
        file.unlink()


def merge_everything(store: Forged, *, leaving: str) -> None:
    """All parts become one in the bucket; the SSD gets back its parts, as a crash would have left them. `leaving`: the
    part of the SSD that goes to the bucket first, empty for none. Its stamps stay: no crash sets them back."""
    shutil.copytree(store.home / "ssd/store", store.home / "before")
    if leaving:
        store.frostline("move", TABLE, "--part", leaving, "--to-disk", "cold")
    with Store.open(load_from(store.home / "frostline.yaml").config) as opened:
        parts = [part for part in opened.table(TABLE).parts() if not leaving or part.disk == "cold"]
        result = merger.merge(opened.context, opened.definition(TABLE), parts, reason="test")
        assert result.disk == "cold"
    shutil.rmtree(store.home / "ssd/store")
    (store.home / "before").rename(store.home / "ssd/store")


@pytest.mark.parametrize("old", [False, True], ids=["this version", "an older one"])
@pytest.mark.parametrize("lost", [False, True], ids=["with its journal", "without"])
@pytest.mark.parametrize("leaving", ["", "all_2_2_0"], ids=["from the SSD", "from the bucket"])
def test_a_merge_of_this_machine_still_replaces_its_inputs(store: Forged, leaving: str, lost: bool, old: bool) -> None:
    """I2, I14: copies that a crash left are outdated, by the journal, and without it by the log. Where the entry is of
    an older version, and the part was never in the bucket, nothing shows it: both are there, and it is said."""
    merge_everything(store, leaving=leaving)
    if old:
        store.without("inputs", "table_digest")
    if lost:
        lose_journal(store)
    if lost and old and not leaving:
        assert store.count() == 2 * ROWS - 1_000
        assert store.distinct() == ROWS
        assert {problem["invariant"] for problem in store.problems()} == {"I1"}
        assert len(list((store.home / "ssd").rglob("*.parquet"))) == 2
        return
    assert store.count() == ROWS
    assert store.problems() == []
    left = [path.parent.name for path in (store.home / "ssd").rglob("*.parquet")]
    assert left == (["all_3_3_0"] if leaving else [])


@pytest.mark.parametrize("lost", [False, True], ids=["with its journal", "without"])
def test_merges_that_follow_one_another_lead_to_the_last(store: Forged, lost: bool) -> None:
    """I2: the copy of a part went into what went into the part."""
    merge_everything(store, leaving="all_2_2_0")
    kept = next((store.home / "ssd").rglob("all_2_2_0"))
    shutil.copytree(kept, store.home / "kept")
    assert store.count() == ROWS
    assert not kept.exists()
    with Store.open(load_from(store.home / "frostline.yaml").config) as opened:
        merger.merge(opened.context, opened.definition(TABLE), opened.table(TABLE).parts(), reason="test")
    shutil.copytree(store.home / "kept", kept)
    if lost:
        lose_journal(store)
    assert store.count() == ROWS
    assert not kept.exists()


def test_a_merge_that_failed_is_no_proof(store: Forged) -> None:
    """I1: the journal knows the name that the merge would have given, and so may whoever forges."""
    with Store.open(load_from(store.home / "frostline.yaml").config) as opened:
        parts = [part for part in opened.table(TABLE).parts() if part.disk == "ssd"]
        with pytest.raises(FrostlineError):  # noqa: SIM117 - the record ends where the body fails
            with recorded(opened.context, opened.definition(TABLE), parts, output_name(parts), "test"):
                raise FrostlineError("stopped")
    covering(store, str(output_name(parts)))
    assert store.distinct() == ROWS
    assert len(list((store.home / "ssd").rglob("*.parquet"))) == 2
