"""What `insert --replace-partitions` says of the parts that went."""

from typing import TYPE_CHECKING, Any

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from tiering.engine.write_job import WriteResult


def replaced_document(table: str, result: "WriteResult") -> dict[str, Any]:
    """The document of an insert, and what went with it."""
    return {
        "table": table,
        "rows": result.rows,
        "parts": list(result.parts),
        "duplicates": 0,
        "bytes": result.bytes,
        "replaced": list(result.replaced),
        "disk": result.disk or None,
        "revision": result.revision,
    }


def tell_replaced(session: Session, document: dict[str, Any], action: str) -> None:
    """Print it, where anything went."""
    if document.get("replaced"):
        session.output.report(
            f"{action} {counted(len(document['replaced']), 'part')}: {', '.join(document['replaced'])}"
        )
    if document.get("revision") is not None:
        session.output.note(f"'frostline undo {document['disk']} {document['revision']}' reverts this")
