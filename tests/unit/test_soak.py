"""What decides in `make soak`: the model that answers are compared with, and what proves nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.meddling import Exchange
from tests.soak import machines
from tests.soak.__main__ import WANTED_AN_HOUR, too_little
from tests.soak.faults import Fault, Faults, some
from tests.soak.model import Mode, Table
from tests.soak.rounds import Tally


def table(rows: dict[int, int] | None, mode: Mode = "rows") -> Table:
    made = Table("soak.t", mode)
    made.became(rows)
    return made


class TestModel:
    def test_what_was_acknowledged_must_be_there(self) -> None:
        made = table({1: 10})
        made.added([{2: 20}])
        assert made.look([(1, 10), (2, 20)]) is None
        assert "1 of 2 rows are missing [1]" in str(made.look([(2, 20)]))
        assert "1 are not known [3]" in str(made.look([(1, 10), (2, 20), (3, 30)]))
        assert "another value [(2, 20, 21)]" in str(made.look([(1, 10), (2, 21)]))
        assert "rows twice: [2]" in str(made.look([(1, 10), (2, 20), (2, 20)]))
        assert "is gone" in str(made.look(None))

    def test_what_was_not_is_there_whole_or_not_at_all_and_stays_so(self) -> None:
        for there in (True, False):
            made = table({1: 10})
            made.perhaps_added([{2: 20, 3: 30}])
            assert "there in part" in str(made.look([(1, 10), (3, 30)]))
            found = [(1, 10), (2, 20), (3, 30)] if there else [(1, 10)]
            other = [(1, 10)] if there else [(1, 10), (2, 20), (3, 30)]
            assert made.look(found) is None
            assert made.certain
            assert made.look(other) is not None

    def test_sums_count_an_insert_once(self) -> None:
        made = table({1: 10}, "sums")
        made.perhaps_added([{1: 5}])
        assert made.look([(1, 20)]) is not None
        assert made.look([(1, 15)]) is None
        made.added([{1: 5, 2: 1}])
        assert made.look([(1, 20), (2, 1)]) is None

    def test_the_latest_wins(self) -> None:
        made = table({1: 10}, "latest")
        made.added([{1: 5}])
        assert made.look([(1, 10)]) is None
        made.added([{1: 11}])
        assert made.look([(1, 10)]) is not None

    def test_a_drop_in_doubt(self) -> None:
        for found in (None, [(1, 10)]):
            made = table({1: 10})
            made.perhaps_became(None)
            assert not made.certain
            assert made.look([]) is not None
            assert made.look(found) is None
            assert made.may_exist is (found is not None)

    def test_passing_rows_may_go_and_no_others_come(self) -> None:
        made = table({1: 10})
        made.added([{2: 20}], passing={3: 30})
        assert made.look([(1, 10), (2, 20), (3, 30)]) is None
        assert made.look([(1, 10), (2, 20)]) is None
        assert made.look([(1, 10), (2, 20), (3, 31)]) is not None


class TestFaults:
    @pytest.mark.parametrize("kind", ["reset", "lost_answer", "slow_down", "page", "truncated", "flipped"])
    def test_each_is_counted_when_it_strikes(self, kind: str) -> None:
        faults = Faults()
        faults.plan([Fault(kind, ".", 1, 1)])
        forwarded = 0
        broken = []
        for _ in range(3):
            exchange = Exchange("GET", "/b/p/key", 0, {}, b"")

            def forward(exchange: Exchange = exchange) -> None:
                nonlocal forwarded
                forwarded += 1
                exchange.status, exchange.body = 200, b"0123456789"

            try:
                faults.around(exchange, forward)
            except ConnectionResetError:
                broken.append("reset")
                continue
            if exchange.status != 200 or exchange.cut is not None or exchange.body != b"0123456789":
                broken.append("answer")
        assert len(broken) == 1
        assert faults.fired == Counter({kind: 1})
        assert forwarded == (2 if kind in ("reset", "slow_down", "page") else 3)

    def test_what_finds_no_request_is_not_counted(self) -> None:
        faults = Faults()
        faults.plan([Fault("flipped", "PUT", 0, 5), Fault("reset", "HEAD", 0, 5)])
        faults.around(Exchange("PUT", "/b/p/key", 0, {}, b""), lambda: None)
        assert not faults.fired

    def test_a_seed_gives_the_same_faults(self) -> None:
        assert some(random.Random("1/2")) == some(random.Random("1/2"))


def test_too_little_proves_nothing() -> None:
    tally, faults = Tally(), Faults()
    assert len(too_little(tally, faults, 3600)) == len(WANTED_AN_HOUR)
    tally.kills, tally.outages["ssd"] = 999, 20
    faults.fired["reset"] = 500
    assert too_little(tally, faults, 3600) == ["999 kills, 1000 wanted"]
    assert too_little(tally, faults, 1800) == []


def test_too_little_of_three_machines_proves_nothing() -> None:
    happened, faults = machines.Happened(), Faults()
    assert len(machines.too_little(happened, faults, 60)) == len(machines.WANTED_AN_HOUR)
    happened.kills, happened.stops, happened.raced = 500, 99, 100
    faults.fired["reset"] = 300
    assert machines.too_little(happened, faults, 3600) == ["99 stops, 100 wanted"]
