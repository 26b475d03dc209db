"""What takes a part's place follows from the parts that another one was made of, never from a range of numbers alone
(I1, I19, P40)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home

pytestmark = pytest.mark.in_turn


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Home, Home]:
    """Two machines; the first has created d.t."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    return a, b


def three_cold(a: Home) -> None:
    for key in (1, 2, 3):
        a.insert(key)
    a.to_bucket()


def drop_middle(a: Home, *names: str) -> None:
    """Drop parts as a rule does that deletes what is past its time."""
    from tiering.catalog import tables
    from tiering.config.reading import load
    from tiering.engine.store import Store

    with Store.open(load(a.configuration)) as store:
        to_delete = [stored for stored in store.parts("d.t") if stored.part.name in names]
        tables.drop_parts(store.context, to_delete, reason="past its time", by_ttl=True)


@pytest.mark.parametrize("cold", [False, True], ids=["on the SSD", "in the bucket"])
def test_a_merge_over_what_was_taken_away_elsewhere_hides_no_row(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """The other machine is of a version that takes foreign parts off the bucket."""
    a, b = homes
    three_cold(a)
    with monkeypatch.context() as older:
        older.setattr("tiering.catalog.blocks.why_bound", lambda *arguments: "")
        b("move", "d.t", "--part", "all_2_2_0", "--to-disk", "ssd")
    if not cold:
        for part in ("all_1_1_0", "all_3_3_0"):
            a("move", "d.t", "--part", part, "--to-disk", "ssd")
    a("merge", "d.t", "--final", *(["--cold"] if cold else []))
    assert "all_2_2_0" in a.error
    if not cold:
        a.to_bucket()
    assert b.keys() == [1, 2, 3]
    b("fsck")
    b.to_bucket()
    assert a.keys() == [1, 2, 3]


@pytest.mark.parametrize("cold", [False, True], ids=["on the SSD", "in the bucket"])
def test_a_bystander_s_fsck_names_a_merge_over_parts_taken_away(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """Both others are of a version that looks only at what it sees itself. Another machine took them away."""
    a, b = homes
    three_cold(a)
    with monkeypatch.context() as older:
        older.setattr("tiering.catalog.blocks.why_bound", lambda *arguments: "")
        b("move", "d.t", "--part", "all_2_2_0", "--to-disk", "ssd")
        if not cold:
            for part in ("all_1_1_0", "all_3_3_0"):
                a("move", "d.t", "--part", part, "--to-disk", "ssd")
        older.setattr("tiering.catalog.blocks.Vanished.between", lambda *arguments: None)
        a("merge", "d.t", "--final", *(["--cold"] if cold else []))
        if not cold:
            a.to_bucket()
    bystander = Home(a.path.parent, "c", a.capsys)
    [problem] = bystander.json("fsck", code=4)["problems"]
    assert (problem["invariant"], problem["table"], problem["part"]) == ("I19", "d.t", "all_1_3_1")
    assert "over all_2_2_0" in problem["what"]
    b.to_bucket()
    bystander("fsck")
    assert bystander.keys() == [1, 2, 3]


def test_a_part_of_another_machine_stays_in_the_bucket(homes: tuple[Home, Home]) -> None:
    a, b = homes
    three_cold(a)
    b("move", "d.t", "--part", "all_2_2_0", "--to-disk", "ssd", code=13)
    assert "merge d.t --adopt" in b.error
    b("move", "d.t", "--partition", "all", "--to-disk", "ssd", code=13)
    b("merge", "d.t", "--adopt")
    b("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    assert b.keys() == [1, 2, 3]


def test_a_single_part_of_another_machine_can_be_adopted(homes: tuple[Home, Home]) -> None:
    a, b = homes
    a.insert(1)
    a.to_bucket()
    b("merge", "d.t", "--adopt")
    b("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    assert (a.keys(), b.keys()) == ([], [1])


def test_a_restored_part_is_not_hidden_by_a_merge_without_it(homes: tuple[Home, Home]) -> None:
    a, _ = homes
    three_cold(a)
    drop_middle(a, "all_2_2_0")
    dropped = a.head()
    a("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    a("merge", "d.t", "--final")
    assert "all_2_2_0" in a.error  # the number of a part that can come back is not merged over
    a("undo", "s3", str(dropped))
    assert a.keys() == [1, 2, 3]
    a("fsck")


def test_an_older_version_s_merge_over_a_dropped_number_is_safe(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides no row."""
    a, _ = homes
    three_cold(a)
    drop_middle(a, "all_2_2_0")
    dropped = a.head()
    a("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    with monkeypatch.context() as older:
        older.setattr("tiering.catalog.blocks.Vanished.between", lambda *arguments: None)
        a("merge", "d.t", "--final")
    a("undo", "s3", str(dropped))
    assert a.keys() == [1, 2, 3]
    a("fsck")
    a("merge", "d.t", "--final")  # nothing between them is merged over
    assert a.keys() == [1, 2, 3]


def test_what_went_to_other_partitions_or_merges_is_merged_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Home(tmp_path, "a", capsys)
    a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--partition-by", "truncate(100, k)")
    for key in (1, 101, 2, 102, 3, 4):
        a.insert(key)
    a.to_bucket(part="0_3_3_0")
    a.to_bucket(part="0_5_5_0")
    a("merge", "d.t", "--cold", "--final")
    a("move", "d.t", "--part", "0_3_5_1", "--to-disk", "ssd")
    a("merge", "d.t", "--final")
    assert a.keys() == [1, 2, 3, 4, 101, 102]
    assert "0_1_6_2" in a("parts", "d.t")
