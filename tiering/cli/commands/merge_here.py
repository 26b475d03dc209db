"""A merge in this process, and its report: of `merge` and `table rewrite`."""

from typing import TYPE_CHECKING

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, fail_if_partly
from tiering.cli.reports.merges import report_merges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiering.merge.request import MergeRequest
    from tiering.merge.selection import FailedGroup


def merge_here(session: Session, table: str, request: "MergeRequest") -> None:
    """Merge in this process, and report."""
    from tiering.facts.merges import MergeRow, MergesDocument, failed_groups
    from tiering.facts.replicas import replica_trouble

    store, waits = session.store(), ""
    failures: list[FailedGroup] = []
    if session.dry_run:
        adoptions = store.plan_adoptions(table, request, failures) if request.adopt else []
        plans = [*adoptions, *store.plan_merges(table, request)]
        rows = [MergeRow.planned(table, plan.parts) for plan in plans]
        if failures and not rows:
            raise failures[0].error
        plans += [failure.plan for failure in failures]
    else:
        plans = []
        rows = [MergeRow.of(result) for result in store.merge(table, request, failures)]
        waits = replica_trouble(store.context.config, store.context.journal, store.definition(table)).error
        if waits:
            session.output.note(f"recorded, and waiting: {waits}; 'frostline replica queue {table}' shows all")
    note_failures(session, failures)
    stays = store.explain_merges(table, plans, request) if not waits else ()
    document = MergesDocument(merges=rows, not_merged=stays, failed=failed_groups(failures), dry_run=session.dry_run)
    report_merges(session, document, waits=bool(waits))
    fail_if_partly(len(failures), len(rows), "merges", [failure.error.kind for failure in failures])


def note_failures(session: Session, failures: "Sequence[FailedGroup]") -> None:
    """Report each merge that failed, and the next step."""
    note = session.output.note
    for failure in failures:
        what = f"{failure.plan.partition} ({counted(len(failure.plan.parts), 'part')})"
        note(f"failed: {what}: {failure.error.message}")
        note(f"  {failure.error.advice}")
