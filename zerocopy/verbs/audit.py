"""`replica audit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from zerocopy.execution.auditing import Audited

DiskName = Annotated[str | None, typer.Argument(metavar="DISK", help="default: every disk with `log:`")]
Repair = Annotated[bool, typer.Option("--repair", help="restore missing marks; remove stale marks of this machine")]


def audit(session: Session, disk: DiskName = None, repair: Repair = False) -> None:
    """Compare the marks of shared objects with all logs and the bucket. Deletes no object.

    gc on shared objects needs a clean audit. Exit 4: something differs.
    """
    from zerocopy.execution import auditing

    context = session.store().context
    chosen = list(auditing.disks(context, disk))
    found = [auditing.run(context, one, repairs=repair, dry_run=session.dry_run) for one in chosen]
    if session.options.json:
        session.output.document({"audits": [_document(one) for one in found]})
    else:
        for one in found:
            for line in one.lines():
                session.output.line(line)
        if not found:
            session.output.line("No disk here shares its objects: none has log: in the configuration.")
    if any(one.differences or one.elsewhere for one in found):
        session.found_something()


def _document(audited: "Audited") -> dict[str, object]:
    return {
        "disk": audited.disk,
        "logs": audited.logs,
        "sets": audited.sets,
        "marks": audited.marks,
        "objects": audited.objects,
        "differences": [
            {
                "kind": difference.kind,
                "log": difference.log,
                "directory": difference.reference.directory,
                "what": difference.what,
            }
            for difference in audited.differences
        ],
        "repaired": audited.repaired,
        "clean": audited.clean,
        "elsewhere": audited.elsewhere,
        "collects_from": audited.collects_from,
    }
