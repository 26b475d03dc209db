"""Pieces of work as Spark tasks: every answer once, errors as they are, repeats after crashes, nothing left running."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from disks.workers.runner import Runner, threads
from oplog.errors import Damaged, FrostlineError, Retained, Transient
from spark_tiering.running.spark_runner import SparkRunner
from tests.spark.pieces import Attempt, Secret, length, nap, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def runner(spark: SparkSession) -> SparkRunner:
    return SparkRunner(spark)


def answers(runner: Runner, items: list[Any], function: Any = work) -> dict[int, Any]:
    """Index -> answer; an answer that comes twice is an error."""
    found: dict[int, Any] = {}

    def on_done(index: int, answer: Any) -> None:
        assert index not in found
        found[index] = answer

    runner.run(function, items, title="testing", on_done=on_done)
    return found


def test_every_item_is_answered_once_as_in_this_process(runner: SparkRunner, tmp_path: Path) -> None:
    items = [Attempt(tmp_path, number) for number in range(7)]
    here = answers(threads(), [Attempt(tmp_path / "local", number) for number in range(7)])
    assert answers(runner, items) == here == {number: (number, 1) for number in range(7)}


def test_nothing_to_do_is_no_job(runner: SparkRunner) -> None:
    assert answers(runner, []) == {}


def test_one_task_a_piece_however_many_rows_a_partition_has(runner: SparkRunner, spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    assert len(answers(runner, [0.0] * 9, nap)) == 9
    groups = _our_jobs(spark)
    assert set(tracker.getJobIdsForGroup(None)) == before  # ours are all in a group
    job = tracker.getJobInfo(max(groups))
    assert job is not None
    assert [tracker.getStageInfo(stage).numTasks for stage in job.stageIds] == [9]  # type: ignore[union-attr]


def _our_jobs(spark: SparkSession) -> list[int]:
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    return [
        jobs.apply(number).jobId()
        for number in range(jobs.size())
        if "frostline-" in str(jobs.apply(number).jobGroup())
    ]


def test_answers_come_while_the_job_runs(runner: SparkRunner) -> None:
    came: list[tuple[float, float]] = []
    began = time.monotonic()
    runner.run(nap, [3.0, 0.0, 0.0], title="naps", on_done=lambda _, slept: came.append((slept, time.monotonic())))
    assert [slept for slept, _ in came] == [0.0, 0.0, 3.0]
    assert came[-1][1] - came[1][1] > 1.5
    assert came[-1][1] - began < 30


def test_a_task_whose_process_dies_is_repeated(runner: SparkRunner, tmp_path: Path) -> None:
    items = [Attempt(tmp_path, 0), Attempt(tmp_path, 1, "die once"), Attempt(tmp_path, 2)]
    found = answers(runner, items)
    assert found[1] == (1, 2)
    assert sorted(found) == [0, 1, 2]
    assert (runner.figures.tasks, runner.figures.retried_tasks) == (3, 1)
    assert runner.figures.seconds > 0
    assert (runner.master, runner.slots) == ("local[2,2]", 2)


def test_a_transient_error_is_repeated_and_in_the_end_told(runner: SparkRunner, tmp_path: Path) -> None:
    assert answers(runner, [Attempt(tmp_path, 0, "transient once")])[0] == (0, 2)
    with pytest.raises(Transient, match="asks for patience") as caught:
        answers(runner, [Attempt(tmp_path, 1, "transient")])
    assert caught.value.hint == "try again later"
    assert len(list(tmp_path.glob("1-*"))) == 2


def test_a_final_error_comes_back_as_it_is_after_one_attempt(runner: SparkRunner, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="part 1_1_1_0") as caught:
        answers(runner, [Attempt(tmp_path, 0, "damaged")])
    assert caught.value.hint == "run 'frostline fsck'"
    assert len(list(tmp_path.glob("0-*"))) == 1
    with pytest.raises(Retained) as kept:  # its constructor wants more than a message
        answers(runner, [Attempt(tmp_path, 1, "retained")])
    assert kept.value.until is None


def test_an_error_of_on_done_ends_the_job(runner: SparkRunner) -> None:
    def refuse(index: int, answer: float) -> None:
        raise Damaged("not as planned")

    began = time.monotonic()
    with pytest.raises(Damaged, match="not as planned"):
        runner.run(nap, [0.0, 40.0, 40.0], title="naps", on_done=refuse)
    assert time.monotonic() - began < 20


@pytest.mark.in_turn
def test_mistakes_and_crashes_that_last_are_told_in_a_sentence(runner: SparkRunner, tmp_path: Path) -> None:
    with pytest.raises(FrostlineError, match="ZeroDivisionError: a mistake of ours") as caught:
        answers(runner, [Attempt(tmp_path, 0, "mistake")])
    assert "pieces.py" in caught.value.hint
    with pytest.raises(FrostlineError, match=r"testing: .* died") as died:
        answers(runner, [Attempt(tmp_path, 1, "die")])
    assert "\n" not in died.value.message


@pytest.mark.in_turn
def test_several_jobs_at_once_keep_their_answers_apart(runner: SparkRunner, tmp_path: Path) -> None:
    found: list[dict[int, Any]] = [{}, {}, {}]

    def run(job: int) -> None:
        found[job] = answers(runner, [Attempt(tmp_path / str(job), job * 10 + number) for number in range(4)])

    threads = [threading.Thread(target=run, args=(job,)) for job in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{number: (job * 10 + number, 1) for number in range(4)} for job in range(3)]


def test_a_wish_to_stop_cancels_what_runs(spark: SparkSession, tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    with pytest.raises(Transient, match="naps: stopped"):
        SparkRunner(spark).run(nap, [60.0, 60.0], title="naps", on_done=lambda index, answer: None, stop=stop)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.1)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_no_secret_of_an_item_reaches_plans_properties_or_names(spark: SparkSession, tmp_path: Path) -> None:
    word = "hunter2-hunter2"
    assert answers(SparkRunner(spark), [Secret(word)], length) == {0: len(word)}
    context = spark.sparkContext
    shown = [str(pair) for pair in context.getConf().getAll()]
    store = context._jsc.sc().statusStore()
    for jobs in (store.jobsList(None), spark._jsparkSession.sharedState().statusStore().executionsList()):
        shown += [str(jobs.apply(number).description()) for number in range(jobs.size())]
    newest = max(_our_jobs(spark))
    for stage in context.statusTracker().getJobInfo(newest).stageIds:  # type: ignore[union-attr]
        data = store.lastStageAttempt(stage)
        shown += [str(data.name()), str(data.details()), str(data.description())]
    assert any("testing" in text for text in shown)
    assert not [text for text in shown if word in text]
