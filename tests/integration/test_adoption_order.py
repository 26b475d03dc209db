"""Adoption keeps the order of inserts (I13): the row that was inserted last stays, or nothing is merged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from oplog.errors import Conflict, Damaged, Locked, Refused
from oplog.kinds import Merged
from restore.history.undo import undo
from tests.command_line import Frostline
from tiering.catalog import blocks
from tiering.catalog.new_parts import INSERT_CLAIM
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.merge import merger
from tiering.merge.cold.job import Workers
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.table import part as part_format
from tiering.table.definitions import define_table

REPOSITORY = Path(__file__).parents[2]
COLUMNS = ["k:int64", "v:int64", "gone:bool", "mail:string"]
MODES = {
    "replacing": "new",
    "replacing:v": "new",
    "replacing:v,gone": "new",
    "aggregating:mail=anyLast": "new",
    "aggregating:mail=any": "old",
    "summing:v": "old",
}
FINAL = MergeRequest(final=True)
ADOPT = MergeRequest(final=True, adopt=True)


class Machine:
    """A machine of its own at the bucket of all."""

    def __init__(self, root: Path, name: str, mode: str = "replacing", *settings: str) -> None:
        config = embedded(root / name)
        bucket = ObjectDiskConfig(url=(root / "bucket").as_uri() + "/")
        hot, cold = config.policies["hot_cold"].volumes
        volumes = (hot, msgspec.structs.replace(cold, prefer_not_to_merge=False))
        policies = {"hot_cold": msgspec.structs.replace(config.policies["hot_cold"], volumes=volumes)}
        self.home = root / name
        self.config = msgspec.structs.replace(config, disks={**config.disks, "s3": bucket}, policies=policies)
        self.open()
        if not self.store.definitions():
            made = define_table(
                "d.t", columns=COLUMNS, order_by="k", policy="hot_cold", merge_mode=mode, settings=settings
            )
            self.store.create_table(made)

    def open(self) -> None:
        self.store = Store.open(self.config, workers=1)

    def insert(self, mail: str, *, key: int = 1, cold: bool = False, gone: bool = False) -> None:
        row = {"k": [key], "v": [7], "gone": [gone], "mail": [mail]}
        self.store.table("d.t").insert(pa.table(row).to_batches())
        if cold:
            self.cold()

    def cold(self) -> None:
        report = self.store.apply(self.store.plan_manual_move("d.t", partition="all", to_disk="s3"))
        assert not report.failed
        self.store.refresh()

    def lose(self) -> None:
        self.store.close()
        shutil.rmtree(self.home)

    def merge(self, request: MergeRequest = FINAL) -> None:
        self.store.refresh()
        self.store.merge("d.t", request)

    @property
    def mails(self) -> list[str]:
        self.store.refresh()
        found: list[str] = self.store.query("SELECT mail FROM d.t ORDER BY k, mail").read_all()["mail"].to_pylist()
        return found

    @property
    def names(self) -> list[str]:
        self.store.refresh()
        return [stored.part.name for stored in self.store.parts("d.t")]


class Machines:
    """Those of a test, closed at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.all: list[Machine] = []

    def __call__(self, name: str, mode: str = "replacing", *settings: str) -> Machine:
        self.all.append(Machine(self.root, name, mode, *settings))
        return self.all[-1]

    def lost(self, mail: str, mode: str = "replacing", *settings: str) -> None:
        """A machine inserted this row and brought it to the bucket; then it was lost."""
        one = self("a", mode, *settings)
        one.insert(mail, cold=True)
        one.lose()


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    monkeypatch.chdir(tmp_path)
    return Frostline(capsys)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    for one in machines.all:
        one.store.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hot", [False, True], ids=["cold", "hot"])
def test_the_newer_row_stays(machine: Machines, mode: str, hot: bool) -> None:
    """The lost machine's row is in the bucket, the newer one there too, or still on the SSD."""
    machine.lost("old", mode)
    b = machine("b", mode)
    b.insert("new", cold=not hot, gone=True)
    b.insert("else", key=2, cold=not hot)
    b.merge(ADOPT)
    if hot:
        b.cold()
        assert b.mails == ["new", "old", "else"]
        b.store.merge_cold(
            "d.t", Workers.of_this_process(b.store.context), msgspec.structs.replace(FINAL, cold=ColdOptions())
        )
    assert b.mails == [MODES[mode], "else"]
    assert len(b.names) == 1
    b.insert("newest")
    b.cold()
    b.merge()
    assert b.mails[0] == ("newest" if MODES[mode] == "new" else "old")


def test_where_order_does_not_count_own_parts_stay(machine: Machines) -> None:
    """Sums of all columns are the same in any order: nothing is rewritten but what another machine inserted."""
    machine.lost("b", "aggregating:v=sum,gone=max,mail=min")
    b = machine("b")
    b.insert("a")
    own = b.names[-1]
    b.merge(MergeRequest(adopt=True))
    assert own in b.names
    b.cold()
    b.merge()
    assert b.mails == ["a"]


@pytest.mark.parametrize(("counts_as", "stays"), [("older", "b"), ("newer", "a")])
def test_what_nobody_can_order_is_refused(machine: Machines, counts_as: Any, stays: str) -> None:
    """Both machines inserted side by side: no log says which row came first. A person does."""
    a = machine("a")
    b = machine("b")
    b.insert("b")
    a.insert("a", cold=True)
    a.lose()
    before = b.names
    with pytest.raises(Refused, match="unknown whether rows of all_1_1_0 on s3") as refused:
        b.merge(ADOPT)
    assert "frostline merge d.t --partition all --adopt --adopt-as older" in str(refused.value.hint)
    with pytest.raises(Refused):
        b.store.plan_adoptions("d.t", ADOPT)
    assert b.names == before
    assert b.mails == ["a", "b"]
    b.merge(msgspec.structs.replace(ADOPT, adopt_as=counts_as))
    b.cold()
    b.merge()
    assert b.mails == [stays]
    b.insert("last", cold=True)
    b.merge()
    assert b.mails == ["last"]


@pytest.mark.parametrize("counts_as", ["older", "newer"])
def test_a_word_never_overrides_the_log(machine: Machines, counts_as: Any) -> None:
    """The log knows that the lost machine replaced a row; what this machine inserted side by side is in doubt (I13)."""
    b = machine("b")
    b.insert("first", cold=True)
    a = machine("a")
    a.insert("second", cold=True)
    a.lose()
    b.insert("beside", key=2)
    with pytest.raises(Refused):
        b.merge(ADOPT)
    b.merge(msgspec.structs.replace(ADOPT, adopt_as=counts_as))
    b.cold()
    b.merge()
    assert b.mails == ["second", "beside"]
    assert len(b.names) == 1


@pytest.mark.parametrize("counts_as", ["older", "newer"])
def test_a_word_orders_no_two_foreign_machines(machine: Machines, counts_as: Any) -> None:
    """It says what their rows are next to this machine's, not next to one another (I13)."""
    b, c, d = machine("b"), machine("c"), machine("d")
    b.insert("else", key=2, cold=True)
    c.insert("c")
    b.insert("b", cold=True)
    c.cold()
    before = d.mails
    with pytest.raises(Refused, match="which another machine inserted too") as refused:
        d.merge(msgspec.structs.replace(ADOPT, adopt_as=counts_as))
    assert "--adopt-as does not apply to them" in str(refused.value.hint)
    assert d.mails == before


def test_between_two_inserts_it_becomes_one_with_the_older(machine: Machines) -> None:
    """No number is free between them; on another disk, or in portions, it is refused, and nothing changes (I13)."""
    b = machine("b", "replacing", "max_merge_size_bytes=1")
    b.insert("first", cold=True)
    a = machine("a")
    a.insert("second", cold=True)
    a.lose()
    b.insert("beside", key=2)
    before = b.mails
    with pytest.raises(Refused, match="have to become one part"):
        b.merge(msgspec.structs.replace(ADOPT, adopt_as="older"))
    assert b.mails == before
    b.merge(msgspec.structs.replace(ADOPT, adopt_as="newer"))
    assert sorted(b.mails) == sorted(before)


def test_what_lay_in_the_bucket_is_older(machine: Machines) -> None:
    """The other way round: this machine's part was in the bucket when the lost machine took its numbers."""
    b = machine("b")
    b.insert("first", cold=True)
    machine.lost("second")
    b.merge(ADOPT)
    assert b.mails == ["second"]


def test_what_is_inserted_after_an_adoption_is_newer(machine: Machines) -> None:
    """The lost machine's range is above this one's: what is inserted next must not come before it."""
    b = machine("b")
    b.insert("first", cold=True)
    machine.lost("second")
    b.merge(MergeRequest(adopt=True))
    b.insert("third", cold=True)
    b.merge()
    assert b.mails == ["third"]
    assert len(b.names) == 1


def test_a_second_adoption_goes_by_what_is_in_the_first(machine: Machines) -> None:
    machine.lost("first")
    c = machine("c")
    c.insert("second", cold=True)
    c.lose()
    b = machine("b")
    b.insert("third", cold=True)
    b.merge(ADOPT)
    assert b.mails == ["third"]
    d = machine("d")
    d.insert("fourth", cold=True)
    d.lose()
    b.merge(ADOPT)
    assert b.mails == ["fourth"]


def test_a_machine_that_comes_back_fills_no_gap(machine: Machines) -> None:
    """What it had on its SSD was inserted between parts that are one by now: it stays apart, as does what it inserts,
    until a person says what it is. Nobody loses a row."""
    a = machine("a")
    for mail, key in (("1", 1), ("2", 2), ("3", 1)):
        a.insert(mail, key=key)
    for number in (1, 3):
        a.store.apply(a.store.plan_manual_move("d.t", part=f"all_{number}_{number}_0", to_disk="s3"))
    a.store.close()
    b = machine("b")
    b.merge(ADOPT)
    assert b.mails == ["3"]
    a.open()
    assert a.mails == ["3", "2"]
    a.insert("4", cold=True)
    assert a.mails == b.mails == ["3", "4", "2"]
    with pytest.raises(Refused, match="it is unknown whether"):
        b.merge(ADOPT)
    assert a.mails == b.mails == ["3", "4", "2"]
    b.merge(msgspec.structs.replace(ADOPT, adopt_as="newer"))
    assert a.mails == b.mails == ["4", "2"]


def undone(store: Store, output: str) -> None:
    """The commit that made the part, taken back."""
    disk, directory = store.object_disk("s3"), store.definition("d.t").part_directory(output)
    (made,) = [found.commit for found in disk.commits().touching(directory) if isinstance(found.commit.kind, Merged)]
    undo(store.context, disk, made.revision)
    store.refresh()


def test_after_an_undo_parts_stay_apart_until_they_are_in_line(machine: Machines) -> None:
    """The newer part has its old, lower number again: merges go by when rows were inserted, not by the number."""
    machine.lost("old", "replacing", "max_merge_size_bytes=1")
    b = machine("b")
    b.insert("new", cold=True)
    own = b.names[-1]
    b.merge(MergeRequest(adopt=True))
    older, newer = b.names
    undone(b.store, newer)
    assert b.names == [own, older]
    b.merge()
    b.store.merge_cold(
        "d.t", Workers.of_this_process(b.store.context), msgspec.structs.replace(FINAL, cold=ColdOptions())
    )
    assert b.mails == ["new", "old"]
    (stay,) = b.store.explain_merges("d.t", [], FINAL)
    assert stay.reason.kind == "order"
    with pytest.raises(Refused, match="the order of inserts"):
        merger.merge(b.store.context, b.store.definition("d.t"), b.store.parts("d.t"), reason="test")
    b.merge(ADOPT)
    assert b.mails == ["new"]


def test_an_undone_adoption_is_made_again(machine: Machines) -> None:
    """The part is as old as ever, though it came back by a later commit; it may lie on the SSD meanwhile."""
    machine.lost("old", "replacing", "max_merge_size_bytes=1")
    b = machine("b")
    b.insert("new")
    b.merge(MergeRequest(adopt=True))
    older = next(name for name in b.names if b.store.context.catalog.part(b.store.definition("d.t"), name).disk == "s3")
    b.store.apply(b.store.plan_manual_move("d.t", part=older, to_disk="ssd"))
    b.store.apply(b.store.plan_manual_move("d.t", part=older, to_disk="s3"))
    b.store.refresh()
    undone(b.store, older)
    assert "all_1_1_0" in b.names
    b.merge(ADOPT)
    b.cold()
    b.merge()
    assert b.mails == ["new"]


def test_a_part_that_came_meanwhile_is_a_conflict(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lost("1")
    b = machine("b")
    b.insert("2", cold=True)
    original = merger._first_after

    def meanwhile(*arguments: Any) -> int:
        monkeypatch.undo()
        b.insert("3")
        return original(*arguments)

    monkeypatch.setattr(merger, "_first_after", meanwhile)
    with pytest.raises(Conflict, match="came meanwhile"):
        b.merge(ADOPT)
    b.merge(ADOPT)
    b.cold()
    b.merge()
    assert b.mails == ["3"]


def test_an_insert_on_its_way_is_waited_for(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a number below that of what is adopted, and began after that was inserted."""
    b = machine("b")
    b.insert("first", cold=True)
    machine.lost("second")
    b.store.refresh()
    before, original = b.names, merger._first_after
    uuid = b.store.definition("d.t").uuid
    claim = partial(b.store.context.journal.claim, uuid, [f"{INSERT_CLAIM}2-x"], "insert")
    with claim():
        b.merge(ADOPT)
    assert b.names == before
    with ExitStack() as stack:

        def meanwhile(*arguments: Any) -> int:
            stack.enter_context(claim())
            return original(*arguments)

        monkeypatch.setattr(merger, "_first_after", meanwhile)
        with pytest.raises(Locked, match=r"an insert into .* is running"):
            b.merge(ADOPT)
    monkeypatch.undo()
    assert b.names == before
    b.merge(ADOPT)
    assert b.mails == ["second"]


def test_marks_of_older_versions_are_read_by_the_log(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not say what their machine had seen: their entry in the log does, while it is kept."""
    monkeypatch.setattr(blocks, "_seen", lambda context, definition: {})
    machine.lost("old")
    b = machine("b")
    b.insert("new", cold=True)
    said = blocks.read_mark(b.store.disk("s3"), b.store.definition("d.t"), 1)
    assert said is not None
    assert (said.first_block, said.owner, said.seen) == (1_000_000, b.store.context.actor, {})
    b.merge(ADOPT)
    assert b.mails == ["new"]


def test_marks_that_a_copy_brought_say_nothing(
    machine: Machines, monkeypatch: pytest.MonkeyPatch, frostline: Frostline, tmp_path: Path
) -> None:
    """In the log of another bucket they came with the parts, whatever was inserted first."""
    monkeypatch.setattr(blocks, "_seen", lambda context, definition: {})
    monkeypatch.setattr(blocks, "prove_own", lambda context, definition: [])  # the range below is not this machine's
    a = machine("a")
    b = machine("b")
    b.insert("first", cold=True)
    a.insert("second", cold=True)
    config = embedded(tmp_path / "c")
    (tmp_path / "c").mkdir()
    (tmp_path / "c.json").write_bytes(msgspec.json.encode(config))
    c = ("-c", str(tmp_path / "c.json"))
    frostline(*c, "restore", "s3", "--from", (tmp_path / "bucket").as_uri() + "/", "--table", "d.t", "--apply")
    with Store.open(config) as store:
        store.context.journal.add_block_range(store.definition("d.t").uuid, 1)
    frostline(*c, "merge", "d.t", "--adopt", code=13)
    frostline(*c, "merge", "d.t", "--adopt", "--adopt-as", "newer")
    frostline(*c, "merge", "d.t", "--final", "--cold")
    with Store.open(config) as store:
        assert store.query("SELECT mail FROM d.t").read_all()["mail"].to_pylist() == ["second"]


def test_parts_without_it_say_it_by_their_names(machine: Machines) -> None:
    """What older versions wrote, and what was never adopted: no byte more than before."""
    a = machine("a")
    a.insert("1")
    a.insert("2")
    a.merge()
    (stored,) = a.store.parts("d.t")
    assert stored.inserted == (1, 2)
    data = part_format.encode(stored.part)
    assert b"inserted" not in data
    assert part_format.inserted_blocks(part_format.decode(data, path="part.json")) == (1, 2)


def test_what_is_known_of_a_part_outlives_the_process(machine: Machines) -> None:
    """Also by what is kept of parts, and after a move."""
    machine.lost("old", "replacing", "max_merge_size_bytes=1")
    b = machine("b")
    b.insert("new")
    b.merge(MergeRequest(adopt=True))
    for disk in ("ssd", "s3"):
        older = min(b.store.parts("d.t"), key=lambda stored: stored.inserted)
        if older.disk != disk:
            b.store.apply(b.store.plan_manual_move("d.t", part=older.part.name, to_disk=disk))
        b.store.close()
        b.open()
        assert [stored.inserted for stored in b.store.parts("d.t")] == [(1, 1), (1_000_001, 1_000_001)]


@pytest.mark.parametrize("text", ['"inserted":[5,1]', '"inserted":[1,1000000000000000000]', '"inserted":"x"'])
def test_an_order_that_cannot_be_is_damage(machine: Machines, text: str) -> None:
    a = machine("a")
    a.insert("1")
    (stored,) = a.store.parts("d.t")
    data = part_format.encode(stored.part).removesuffix(b"}") + b"," + text.encode() + b"}"
    with pytest.raises(Damaged):
        part_format.decode(data, path="part.json")


def test_a_backup_of_several_machines_gives_no_order(machine: Machines, frostline: Frostline, tmp_path: Path) -> None:
    """Under another name nobody else ever had a range; the parts of two machines are in no order all the same."""
    a = machine("a")
    b = machine("b")
    b.insert("first")
    a.insert("second")
    to = ("--to", (tmp_path / "repository").as_uri())
    frostline("backup", "init", to[1])
    homes = {}
    for name, config in {"a": a.config, "b": b.config, "c": embedded(tmp_path / "c")}.items():
        homes[name] = ("-c", str(tmp_path / f"{name}.json"))
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(config))
    for name, one in {"a": a, "b": b}.items():
        one.store.close()
        frostline(*homes[name], "backup", "create", "one", *to)
    frostline(*homes["c"], "backup", "restore", "one", "--map-table", "d.t:d.copy", *to)
    frostline(*homes["c"], "move", "d.copy", "--partition", "all", "--to-disk", "s3")
    frostline(*homes["c"], "merge", "d.copy", "--cold", "--final")
    assert len(frostline.json(*homes["c"], "parts", "d.copy")["parts"]) == 2
    frostline(*homes["c"], "merge", "d.copy", "--adopt", code=13)
    frostline(*homes["c"], "merge", "d.copy", "--adopt", "--adopt-as", "older", code=13)
    assert len(frostline.json(*homes["c"], "parts", "d.copy")["parts"]) == 2


def test_the_page_on_disasters_names_one_command(frostline: Frostline, tmp_path: Path) -> None:
    """With the default policy, whose cold volume prefers not to merge: cold parts of a lost machine meet new ones."""
    text = (REPOSITORY / "docs" / "disasters.md").read_text()
    (command,) = {*re.findall(r"`frostline (merge DB\.TABLE --adopt --cold --final)`", text)}
    configuration = tmp_path / "frostline.json"
    configuration.write_bytes(msgspec.json.encode(embedded(tmp_path / "home")))
    (tmp_path / "home").mkdir()
    home = ("-c", str(configuration))
    columns = [word for column in COLUMNS for word in ("--column", column)]
    frostline(*home, "table", "create", "d.t", *columns, "--order-by", "k", "--merge-mode", "replacing")
    for mail in ("old", "new"):
        (tmp_path / "rows.csv").write_text(f"k,v,gone,mail\n1,7,false,{mail}\n2,7,false,{mail}{mail}\n")
        frostline(*home, "insert", "d.t", str(tmp_path / "rows.csv"))
        frostline(*home, "move", "d.t", "--partition", "all", "--to-disk", "s3")
        if mail == "old":
            shutil.rmtree(tmp_path / "home" / "ssd")
            shutil.rmtree(tmp_path / "home" / "state")
    said = frostline(*home, *command.replace("DB.TABLE", "d.t").split(), "-n")
    assert "all" in said
    frostline(*home, *command.replace("DB.TABLE", "d.t").split())
    with Store.open(embedded(tmp_path / "home")) as store:
        assert len(store.parts("d.t")) == 1
        assert store.query("SELECT mail FROM d.t ORDER BY k").read_all()["mail"].to_pylist() == ["new", "newnew"]
