"""What `insert` answers."""

from typing import TYPE_CHECKING

from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from tiering.facts.inserts import InsertDocument


def tell_replaced(session: Session, document: "InsertDocument", action: str) -> None:
    """Print the parts that went, where any did."""
    if document.replaced:
        session.output.report(f"{action} {counted(len(document.replaced), 'part')}: {', '.join(document.replaced)}")
    if isinstance(document.revision, int):
        session.output.note(f"'frostline undo {document.disk} {document.revision}' reverts this")
