"""Retry, limiter and meter: one retry layer, back-off together, honest counts. Guards P53."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from disks.stores.base import ObjectStore
from disks.stores.checks import Truncated, Unreachable
from disks.stores.memory import MemoryStore
from disks.stores.time_budget import time_budget, time_budget_seconds
from disks.stores.wrappers.limit import Answered, LimitedStore, Limiter
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.retry import Backoff, RetryingStore
from oplog.errors import (
    AccessDenied,
    AlreadyExists,
    CredentialsExpired,
    Damaged,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from tests.faulty_store import Fault, FaultyStore, bit_flipped, lost_answer, storm, truncated

DATA = b"some bytes"
DIGEST = hashlib.sha256(DATA).digest()


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def retrying(*faults: Fault, backoff: Backoff | None = None) -> tuple[RetryingStore, FaultyStore, Clock]:
    clock = Clock()
    faulty = FaultyStore(MemoryStore(), faults)
    return RetryingStore(faulty, backoff, sleep=clock.sleep, clock=clock, chance=lambda: 1.0), faulty, clock


def write(store: ObjectStore, key: str = "key") -> None:
    store.put(key, DATA, sha256=DIGEST)


def test_temporary_errors_are_retried_with_doubling_pauses() -> None:
    store, faulty, clock = retrying(Fault("put", Transient("reset"), times=4))
    write(store)
    assert faulty.injected == 4
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert store.get("key") == DATA


def test_pauses_have_full_jitter_and_a_bound() -> None:
    backoff = Backoff(first_seconds=1.0, longest_seconds=8.0)
    assert backoff.pause_seconds(1, 0.0) == 0.0
    assert backoff.pause_seconds(3, 0.5) == 2.0
    assert backoff.pause_seconds(30, 1.0) == 8.0


def test_attempts_and_total_time_are_bounded() -> None:
    store, faulty, _ = retrying(storm(times=None), backoff=Backoff(attempts=3))
    with pytest.raises(Throttled):
        store.get("key")
    assert faulty.injected == 3
    store, faulty, clock = retrying(storm(times=None), backoff=Backoff(attempts=100, total_seconds=30.0))
    with pytest.raises(Throttled):
        store.get("key")
    assert clock.now <= 30.0
    assert faulty.injected < 20


def test_a_storm_of_a_minute_is_sat_out_and_a_dead_server_is_not() -> None:
    """503 for most of a minute is a busy store; a refused connection for 15 seconds is a server that is down."""
    slow = storm(times=None)
    store, _, clock = retrying(slow)
    with pytest.raises(Throttled):
        store.get("key")
    assert 45.0 <= clock.now <= 60.0
    store, _, clock = retrying(Fault("*", Unreachable("refused"), times=None))
    with pytest.raises(Unreachable):
        store.get("key")
    assert 5.0 <= clock.now <= 15.0
    store, _, clock = retrying(storm(times=10))
    write(store)
    assert clock.now > 40.0


def test_the_time_counts_from_the_first_failure() -> None:
    """An upload may take minutes before it fails: it is tried again all the same."""
    clock = Clock()

    class Slow(MemoryStore):
        def put(self, *arguments: object, **more: object) -> None:
            clock.now += 300.0
            super().put(*arguments, **more)  # type: ignore[arg-type]

    faulty = FaultyStore(Slow(), [Fault("put", Transient("reset"), when="after")])
    RetryingStore(faulty, sleep=clock.sleep, clock=clock, chance=lambda: 1.0).put("key", DATA, sha256=DIGEST)
    assert clock.now > 600.0


def test_a_body_that_stays_short_is_not_downloaded_for_a_minute() -> None:
    store, faulty, _ = retrying(Fault("get", Truncated("short"), times=None))
    with pytest.raises(Damaged):
        store.get("key")
    assert faulty.injected == 6


def test_long_waits_are_told_once_for_all_workers(caplog: pytest.LogCaptureFixture) -> None:
    store, _, _ = retrying(storm(times=None))
    with pytest.raises(Throttled):
        store.get("key")
    told = [record.getMessage() for record in caplog.records]
    assert 1 <= len(told) <= 2
    assert "SlowDown" in told[0]
    assert "giving up in" in told[0]


def test_expired_credentials_are_renewed_once() -> None:
    renewed = []

    class Renewable(FaultyStore):
        def renew_credentials(self) -> bool:
            renewed.append(True)
            return True

    for times, works in ((1, True), (None, False)):
        renewed.clear()
        store = RetryingStore(Renewable(MemoryStore(), [Fault("put", CredentialsExpired("expired"), times=times)]))
        if works:
            write(store)
        else:
            with pytest.raises(CredentialsExpired):
                write(store)
        assert renewed == [True]


def test_a_refused_overwrite_after_a_lost_answer_is_our_object() -> None:
    """P56: on a store that never overwrites, the second try of a put finds what the first one wrote."""
    locked = MemoryStore(keep_for=timedelta(hours=1))
    store = RetryingStore(FaultyStore(locked, [lost_answer(Transient("reset"), "put")]), sleep=lambda seconds: None)
    write(store)
    locked.put("other", b"not the same", sha256=hashlib.sha256(b"not the same").digest())
    store = RetryingStore(FaultyStore(locked, [Fault("put", Transient("reset"))]), sleep=lambda seconds: None)
    with pytest.raises(AlreadyExists):
        write(store, "other")


def test_permanent_errors_are_not_retried() -> None:
    store, faulty, clock = retrying(Fault("*", AccessDenied("no"), times=None))
    with pytest.raises(AccessDenied):
        write(store)
    assert (faulty.injected, clock.pauses) == (1, [])


def test_lost_answer_of_a_conditional_put_reaches_the_caller() -> None:
    store, faulty, _ = retrying(lost_answer(OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("key", DATA, sha256=DIGEST)
    assert faulty.inner.get("key") == DATA


def test_already_exists_after_a_failed_attempt_may_be_our_own() -> None:
    store, _, _ = retrying(lost_answer(Transient("reset")))
    with pytest.raises(OutcomeUnknown, match="may be our own"):
        store.put_if_absent("key", DATA, sha256=DIGEST)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("key", DATA, sha256=DIGEST)


def test_listing_goes_on_after_the_last_key_it_gave() -> None:
    store, faulty, _ = retrying(
        Fault("list_item", Transient("reset"), skip=3), Fault("list", Transient("reset"), skip=1)
    )
    wanted = [f"k{number}" for number in range(8)]
    for key in wanted:
        write(store, key)
    assert [info.key for info in store.list("k")] == wanted
    assert faulty.injected == 2
    assert [info.key for info in store.list("none")] == []


def test_only_the_failed_keys_of_a_batch_delete_are_sent_again() -> None:
    store, faulty, _ = retrying(
        Fault("delete_key", Throttled("slow"), key="b"),
        Fault("delete_key", AccessDenied("locked"), key="c", times=None),
    )
    for key in ("a", "b", "c"):
        write(store, key)
    answers = store.delete(["a", "b", "c"])
    assert answers["a"] is answers["b"] is None
    assert isinstance(answers["c"], AccessDenied)
    assert [info.key for info in store.list()] == ["c"]
    assert faulty.injected == 2, "only b was sent twice"


def test_body_that_stays_truncated_is_damage() -> None:
    store, _, _ = retrying(Fault("get", Truncated("short"), times=2))
    write(store)
    assert store.get("key") == DATA
    store, _, _ = retrying(Fault("get", Truncated("short"), times=2))
    write(store)
    assert store.get_with_info("key")[0] == DATA
    store, _, _ = retrying(Fault("get", Truncated("short"), times=None))
    for get in (store.get, store.get_with_info):
        with pytest.raises(Damaged):
            get("key")


@pytest.mark.parametrize("change", [truncated, bit_flipped])
def test_changed_bytes_are_refused_on_put_and_pass_on_get(change: Callable[[bytes], bytes]) -> None:
    """What a get returns must be checked by whoever knows its digest: no store does (I15)."""
    store = FaultyStore(MemoryStore(), [Fault("put", change=change)])
    with pytest.raises(Damaged):
        write(store)
    assert list(store.list()) == []
    write(store)
    store.faults.append(Fault("get", change=change))
    assert store.get("key") != DATA
    assert store.get("key") == DATA


def test_limiter_halves_once_for_a_storm_and_recovers_one_by_one() -> None:
    limiter = Limiter(max_concurrency=16)
    store = LimitedStore(FaultyStore(MemoryStore(), [storm(times=1)]), limiter)
    with pytest.raises(Throttled):
        write(store)
    assert limiter.concurrency == 8
    for number in range(9):
        write(store, f"k{number}")
    assert limiter.concurrency == 9
    for number in range(200):
        write(store, f"n{number}")
    assert limiter.concurrency == 16


def test_the_limiter_knows_what_became_of_calls() -> None:
    """Each try is counted by its kind, with its time; a key that is not there is an answer like any other."""
    now = iter(range(100))
    limiter = Limiter(max_concurrency=16, clock=lambda: float(next(now)))
    faults = [storm(times=1), Fault("get", error=AccessDenied("no"))]
    store = LimitedStore(FaultyStore(MemoryStore(), faults), limiter)
    with pytest.raises(Throttled):
        write(store)
    write(store)
    with pytest.raises(AccessDenied):
        store.get("key")
    with pytest.raises(NotFound):
        store.head("other")
    assert limiter.answered() == {"put": Answered(2, 2.0, 0, 1), "get": Answered(1, 1.0, 1), "head": Answered(1, 1.0)}


def test_requests_under_way_together_count_as_one_throttling() -> None:
    limiter = Limiter(max_concurrency=16)
    barrier = threading.Barrier(8)

    def refused() -> None:
        with pytest.raises(Throttled), limiter.slot():
            barrier.wait(10)
            raise Throttled("503")

    threads = [threading.Thread(target=refused) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert limiter.concurrency == 8


def test_limiter_never_falls_below_one() -> None:
    limiter = Limiter(max_concurrency=4)
    for _ in range(10):
        with pytest.raises(Throttled), limiter.slot():
            raise Throttled("503")
    assert limiter.concurrency == 1
    with limiter.slot():
        pass


def test_no_more_requests_run_at_once_than_allowed() -> None:
    limiter = Limiter(max_concurrency=2)
    running, most, lock = 0, 0, threading.Lock()
    release = threading.Event()

    def work() -> None:
        nonlocal running, most
        with limiter.slot():
            with lock:
                running += 1
                most = max(most, running)
            release.wait(0.02)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 2


def test_bandwidth_and_request_rates_hold() -> None:
    clock = Clock()
    limiter = Limiter(1000, None, clock=clock, sleep=clock.sleep)
    for _ in range(10):
        with limiter.slot(500):
            pass
    assert 4.0 <= clock.now <= 5.0
    clock = Clock()
    limiter = Limiter(None, 10, clock=clock, sleep=clock.sleep)
    for _ in range(31):
        with limiter.slot():
            pass
    assert 2.5 <= clock.now <= 3.1


@pytest.mark.parametrize("verb", ["get", "get_with_info"])
def test_bytes_of_a_whole_get_are_paid_by_the_next_request(verb: str) -> None:
    clock = Clock()
    limiter = Limiter(100, None, clock=clock, sleep=clock.sleep)
    store = LimitedStore(MemoryStore(), limiter)
    big = bytes(1000)
    MemoryStore.put(store.inner, "big", big, sha256=hashlib.sha256(big).digest())  # type: ignore[arg-type]
    getattr(store, verb)("big")
    assert clock.now == 0.0
    store.head("big")
    assert clock.now >= 9.0


def test_meter_counts_what_s3_would_bill() -> None:
    store = MeteredStore(MemoryStore())
    for number in range(3):
        write(store, f"k{number}")
    store.get("k0")
    store.get_with_info("k0")
    store.head("k0")
    store.copy("k0", "k9")
    assert len(list(store.list())) == 4
    store.delete([f"gone{number}" for number in range(1001)])
    assert store.counts() == {"LIST": 1, "GET": 2, "HEAD": 1, "PUT": 3, "COPY": 1, "DELETE": 2}
    assert (store.bytes_sent, store.bytes_received) == (30, 20)


def test_no_block_within_another_waits_longer_than_that_allows() -> None:
    with time_budget(3.0):
        with time_budget(4.0):
            assert time_budget_seconds() == 3.0
        with time_budget(1.0):
            assert time_budget_seconds() == 1.0
        assert time_budget_seconds() == 3.0
    assert time_budget_seconds() == math.inf
