"""Seeded mistakes of the daemon's jobs, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.crash.seeding import nothing, replaced

_UNITS = "tests/unit/tiering/daemon/test_jobs.py"
_PACING = "tests/unit/tiering/policy/test_pacing.py"
_LATE = "tests/unit/tiering/policy/test_late.py"
_NEXT_DUE = "tests/unit/tiering/policy/test_policy.py::test_a_rule_that_wants_a_part_where_it_is_has_no_next_time"
_HOOKS = "tests/crash/test_hooks.py::test_killed_at_every_effect"
_SPANS = "tests/unit/tiering/daemon/test_spans.py"
_KILLED = "tests/crash/test_jobs.py::test_killed_at_every_effect"


def _all_told_again() -> None:
    """Until when moves and merges are told is not kept."""
    from tiering.daemon.telemetry.spans import Spans

    original = Spans.journal

    def journal(self: Any, journal: Any) -> None:
        original(self, journal)
        self._told = datetime(2000, 1, 1, tzinfo=UTC)

    Spans.journal = journal  # type: ignore[method-assign]


def _lost_on_coalesce() -> None:
    """What is asked for while the job runs is taken for the run that is under way."""
    from tiering.daemon.jobs.jobs import DaemonJobs

    original = DaemonJobs._note_end

    def note_end(self: Any, name: str, report: Any) -> None:
        original(self, name, report)
        self.records.note(name, wanted=False)

    DaemonJobs._note_end = note_end  # type: ignore[method-assign]


def _ended_before_it_ran() -> None:
    """The record says that a run is done before it has begun."""
    from tiering.daemon.jobs.jobs import DaemonJobs
    from tiering.daemon.jobs.runs import RunReport

    original = DaemonJobs._may_begin

    def may_begin(self: Any, name: str) -> bool:
        begins = original(self, name)
        if begins:
            run = self._run

            def run_late(kind: Any, text: str) -> Any:
                self._note_end(name, RunReport(run=text, result="done"))
                return run(kind, text)

            self._run = run_late
        return begins

    DaemonJobs._may_begin = may_begin  # type: ignore[method-assign]


def _asked_for_in_memory() -> None:
    """Who asks for a run hears that it comes before that is on the disk."""
    from tiering.daemon.jobs.jobs import DaemonJobs

    def trigger(self: Any, name: str) -> None:
        self.records.note(name, durably=False, wanted=True)
        self.plan(name)

    DaemonJobs.trigger = trigger  # type: ignore[method-assign]


def _paused_in_memory() -> None:
    """A pause is forgotten with the daemon."""
    from tiering.daemon.jobs.jobs import DaemonJobs

    def set_paused(self: Any, names: list[str], *, paused: bool) -> None:
        for name in names:
            self.records.note(name, durably=False, paused=paused)
            self.plan(name)

    DaemonJobs._set_paused = set_paused  # type: ignore[method-assign]


def _beginning_not_on_record() -> None:
    """That a run begins is not on the disk: whoever comes after a crash does not know which run a report is of."""
    from tiering.daemon.jobs.record import JobRecords

    original = JobRecords.note

    def note(self: Any, job: str, *, durably: bool = True, **changes: Any) -> Any:
        begins = changes.get("begun") is not None and "ended" in changes
        return original(self, job, durably=durably and not begins, **changes)

    JobRecords.note = note  # type: ignore[method-assign]


def _hooks_in_memory() -> None:
    """Who tells an event goes on before it is on the disk."""
    from tiering.daemon.hooks.outbox import Outbox

    original = Outbox.tell

    def tell(self: Any, *arguments: Any) -> None:
        write, self._write = self._write, lambda: None
        original(self, *arguments)
        self._write = write

    Outbox.tell = tell  # type: ignore[method-assign]


def _struck_out_first() -> None:
    """An event is struck out when a hook begins to be told of it."""
    from tiering.daemon.hooks.outbox import Outbox

    original = Outbox._try

    def attempt(self: Any, hook: Any, event: Any) -> Any:
        for waiting in self._kept.waiting.values():
            if event in waiting:
                waiting.remove(event)
                self._write()
                break
        return original(self, hook, event)

    Outbox._try = attempt  # type: ignore[method-assign]


def _open_in_memory() -> None:
    """Which trouble was told is not kept."""
    from tiering.daemon.hooks.outbox import Outbox

    original = Outbox._read

    def read(self: Any) -> Any:
        kept = original(self)
        kept.open = {}
        return kept

    Outbox._read = read  # type: ignore[method-assign]


def _late_for_ever() -> None:
    """The wait of late rows has no end of its own."""
    from datetime import timedelta

    from tiering.policy.late import LateParts

    original = LateParts.gives_up
    LateParts.gives_up = lambda self: original(self) + timedelta(days=36500)  # type: ignore[method-assign]


def _merged_late_rows_wait() -> None:
    """A part that late rows were merged into is taken for one of late rows."""
    from tiering.policy import late

    original = late.came_late

    def came_late(name: Any, *arguments: Any) -> bool:
        return original(type(name)(name.partition, name.min_block, name.max_block, 0), *arguments)

    late.came_late = came_late


def _full_disks_wait_for_the_window() -> None:
    """Whatever moves, also what makes room, waits for the window."""
    from tiering.policy.pacing import Pacing

    original = Pacing.hold

    def hold(self: Any, item: Any, due: Any) -> Any:
        return original(self, item, due) or self._window(self._paced[item.table.policy])

    Pacing.hold = hold  # type: ignore[method-assign]


def _held_for_ever() -> None:
    """What holds a part back does not end."""
    from tiering.policy.pacing import Pacing
    from tiering.policy.plan import Reason

    def until(self: Any, end: Any, kind: str, detail: str) -> Any:
        return Reason(kind, detail), end

    Pacing._until = until  # type: ignore[method-assign]


def _interval_from_now() -> None:
    """An interval of a budget begins when it is asked for: it never ends, and each daemon has one of its own."""
    from datetime import timedelta

    replaced(
        "tiering.policy.pacing", "interval_of", lambda pacing, now: (now, now + timedelta(seconds=pacing.every_seconds))
    )()


def _one_failure_ends_all() -> None:
    from tiering.engine import maintenance

    def merge(context: Any, definition: Any, request: Any, failures: Any = None) -> list[Any]:
        plans = maintenance.plan_merges(context, definition, request)
        return [maintenance._merge(context, definition, plan, request) for plan in plans]

    maintenance.merge = merge


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    ("jobs: lost on coalesce", "a run that is asked for while the job runs never comes", _KILLED, _lost_on_coalesce),
    ("jobs: ended before it ran", "a run that was killed is not made again", _KILLED, _ended_before_it_ran),
    ("jobs: asked for in memory", "what was promised dies with the daemon", _KILLED, _asked_for_in_memory),
    ("jobs: paused in memory", "a pause dies with the daemon", _KILLED, _paused_in_memory),
    ("jobs: beginning not on record", "a run that ended is made twice", _KILLED, _beginning_not_on_record),
    (
        "jobs: the report is not read",
        "a run that ended while its daemon was gone is made twice",
        _KILLED,
        replaced("tiering.daemon.jobs.runs:JobFiles", "report", lambda self, run: None),
    ),
    (
        "pacing: a budget is reset by a restart",
        "a daemon that begins again spends the money of the interval once more",
        f"{_PACING}::test_a_budget_outlives_the_process_and_counts_failed_tries",
        replaced("tiering.journal.work:WorkRecords", "paid_moves", lambda self, since, until: []),
    ),
    (
        "pacing: what is planned costs nothing",
        "one pass moves all that is due, however small the budget",
        f"{_PACING}::test_a_byte_budget_serves_the_longest_wait_and_begins_again",
        replaced("tiering.policy.pacing:Pacing", "take", nothing),
    ),
    (
        "pacing: a batch moves at one time",
        "what became due at once is moved at once",
        f"{_PACING}::test_a_batch_that_became_due_at_once_is_spread_evenly",
        replaced("tiering.policy.pacing", "_GOLDEN", 0.0),
    ),
    (
        "pacing: the window is always open",
        "what is due by day moves by day",
        f"{_PACING}::test_a_window_holds_ttl_moves_until_it_opens",
        replaced("tiering.policy.pacing:Pacing", "_window", nothing),
    ),
    (
        "pacing: a full disk waits for the window",
        "inserts fail until the night",
        f"{_PACING}::test_a_full_disk_and_a_pin_wait_for_no_window",
        _full_disks_wait_for_the_window,
    ),
    (
        "pacing: no cool-down",
        "a part that has just come is moved on",
        f"{_PACING}::test_what_was_moved_lately_stays_where_it_came_to",
        replaced("tiering.policy.pacing:Pacing", "_cool_down", nothing),
    ),
    (
        "pacing: moves do not wait for merges",
        "a bucket gets each small part",
        f"{_PACING}::test_parts_merge_before_they_move_but_not_for_ever",
        replaced("tiering.policy.pacing:Pacing", "_merge_first", nothing),
    ),
    (
        "pacing: held for ever",
        "parts that do not merge never move",
        f"{_PACING}::test_parts_merge_before_they_move_but_not_for_ever",
        _held_for_ever,
    ),
    (
        "pacing: late rows waiting for ever",
        "late rows that no merge takes never leave the hot volume",
        f"{_LATE}::test_what_waited_is_kept_for_the_merge_but_not_for_ever",
        _late_for_ever,
    ),
    (
        "pacing: what late rows became waits as they do",
        "each merge of late rows begins their wait anew",
        f"{_LATE}::test_late_rows_are_merged_once_and_moved_in_the_same_pass",
        _merged_late_rows_wait,
    ),
    (
        "pacing: late rows are merged with the first that come",
        "late rows leave a part in the bucket for every six",
        f"{_LATE}::test_late_rows_are_merged_once_and_moved_in_the_same_pass",
        replaced("tiering.merge.planning", "_late_parts", lambda context, definition, parts: {}),
    ),
    (
        "pacing: an interval from now on",
        "each daemon that begins has a budget of its own",
        f"{_PACING}::test_an_interval_is_the_same_after_a_restart",
        _interval_from_now,
    ),
    (
        "watermark: moves end where they begin",
        "each insert begins a move again",
        f"{_PACING}::test_moves_begin_at_the_high_watermark_and_end_at_the_low",
        replaced("tiering.policy.placement", "move_until", lambda policy: policy.move_factor or 0.0),
    ),
    (
        "next due: rules that were obeyed count",
        "the next pass is awaited for a part that is where it should be",
        _NEXT_DUE,
        replaced("tiering.policy.items", "is_told", lambda due, disk, policy: True),
    ),
    (
        "cold merges: nothing is too much",
        "late rows leave a part each time, for ever",
        "tests/integration/test_cold_schedule.py::test_very_many_small_parts_are_merged_without_being_asked",
        replaced("tiering.daemon.jobs.own", "crowded", lambda store, most_parts: []),
    ),
    (
        "lanes: all sizes in the passes",
        "small moves wait for one giant file",
        "tests/unit/tiering/daemon/test_lanes.py::test_a_small_move_does_not_wait_for_a_large_one",
        replaced("tiering.engine.maintenance:Sizes", "take", lambda self, size_bytes: self.above is None),
    ),
    (
        "merge: one failure ends all (I15)",
        "a partition that cannot be merged keeps all others from it",
        "tests/unit/tiering/cli/test_cli_verbs.py::TestTiering::test_a_damaged_part_keeps_no_other_from_merging",
        _one_failure_ends_all,
    ),
    (
        "hooks: told before it is written",
        "an event dies with the daemon",
        _HOOKS,
        _hooks_in_memory,
    ),
    (
        "hooks: struck out before it is heard",
        "an event whose hook was being told when the daemon died is lost",
        _HOOKS,
        _struck_out_first,
    ),
    (
        "hooks: trouble is forgotten by a restart",
        "what goes on is told again by each daemon that begins",
        _HOOKS,
        _open_in_memory,
    ),
    (
        "jobs: what waits is forgotten",
        "a job that waited for another one is not planned when that ends",
        f"{_UNITS}::test_a_run_due_while_another_has_its_needs_comes_after_it",
        replaced("tiering.daemon.jobs.jobs:DaemonJobs", "plan", lambda self, name: None),
    ),
    (
        "daemon: well again between two tries",
        "a part that fails for ever is told as mended whenever it is not tried",
        "tests/unit/tiering/daemon/test_daemon.py::test_a_part_that_fails_is_trouble_until_it_is_mended",
        replaced("tiering.engine.maintenance", "_failing", lambda context, plan: []),
    ),
    (
        "log: passwords in a field",
        "what collects logs gets the password of a URL, and who reads them has it",
        "tests/unit/tiering/daemon/test_log_lines.py::test_a_traceback_is_in_its_object_and_covers_secrets",
        replaced("tiering.daemon.log_lines", "without_passwords", lambda text: text),
    ),
    (
        "spans: told from the beginning each time",
        "each pass tells every merge that the journal remembers",
        f"{_SPANS}::test_a_merge_is_told_once",
        _all_told_again,
    ),
    (
        "spans: what is lost is not shown",
        "a collector that takes nothing looks like a daemon that does nothing",
        f"{_SPANS}::test_a_collector_that_takes_none_is_shown_but_harmless",
        replaced("tiering.daemon.telemetry.spans:_Sender", "_note", lambda self, problem: None),
    ),
)
