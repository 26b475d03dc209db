"""`cost`: what storage costs a month, what moves did cost, and what a plan or another policy would."""

from typing import TYPE_CHECKING, Annotated

import typer

from tiering.catalog.freshness import Freshness
from tiering.cli.commands.data import OptionalTable
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.config.units import format_size, format_time

if TYPE_CHECKING:
    from tiering.facts.cost import CostDocument, CostEffect, PastMoves, PlanEffect, PolicyEffect
    from tiering.facts.sharing import SharingRow, UnknownSharing

_NOT_COUNTED = (
    "By the section 'prices' of the configuration. Not counted: objects that nothing names ('frostline gc'), what the"
    " retention keeps, and the requests of queries, inserts and merges."
)
_COUNTED_WHOLE = (
    "What a plan or another policy saves is by whole objects and all requests: one that other machines share is paid"
    " for while any of them names it, and what one of them has brought up is not brought up again."
)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(cost)


def cost(
    session: Session,
    table: OptionalTable = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN.json", help="estimate a plan saved by 'plan -o'; '-': stdin")
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option("--what-if", metavar="POLICY", help="estimate with every part placed by this policy"),
    ] = None,
) -> None:
    """Show monthly storage cost by table and disk, and the cost of past moves. Changes nothing."""
    from msgspec.structs import replace

    from tiering.cli.frame.saved_plan import read_plan
    from tiering.facts.cost import Bill

    if what_if is not None:
        session.config.policy(what_if)
    saved = read_plan(plan) if plan is not None else None
    store = session.store(Freshness.CHANGES)
    store.check_answer(table)
    session.tell_set_aside(store.set_aside(table))
    bill = Bill(store)
    document = replace(
        bill.document(table),
        plan=bill.of_plan(saved.moves, saved.deletes) if saved is not None else None,
        what_if=bill.of_policy(what_if) if what_if is not None else None,
    )
    if session.options.json:
        session.output.document(document)
    else:
        _print(session, document)


def _print(session: Session, document: "CostDocument") -> None:
    from tiering.facts.sharing import UnknownSharing

    currency = document.currency
    session.output.table(
        ["table", "volume", "disk", "parts", "size", "each GB", f"{currency} a month", "own share"],
        [
            (
                row.table,
                row.volume or "-",
                row.disk,
                row.parts,
                format_size(row.bytes),
                f"{row.gb_month:g}",
                _money(row.price_month),
                _money(row.share_price_month),
            )
            for row in document.storage
        ],
        empty="No parts.",
    )
    line = session.output.line
    for row in document.by_disk:
        line(f"{row.disk}: {format_size(row.bytes)}, {_money(row.price_month)} {currency} a month")
    line(f"Storage: {_money(document.price_month)} {currency} a month{_own_share(document)}{_beside_hot(document)}.")
    for item in document.shared:
        if isinstance(item, UnknownSharing) or item.bytes:
            line(_shared(item))
    _print_moves(session, document.moves, currency)
    if document.plan is not None:
        _print_plan(session, document.plan, currency)
    if document.what_if is not None:
        _print_policy(session, document.what_if, currency)
    if document.shared and (document.plan is not None or document.what_if is not None):
        line(_COUNTED_WHOLE)
    session.output.note(_NOT_COUNTED)


def _own_share(document: "CostDocument") -> str:
    share = document.share_price_month
    return "" if share == document.price_month else f", of which {_money(share)} are this machine's share"


def _beside_hot(document: "CostDocument") -> str:
    if not document.times_cheaper:
        return ""
    hot = _money(document.hot_price_month)
    return f"; all of it on the hottest volumes: {hot}, {document.times_cheaper:g} times as much"


def _shared(sharing: "SharingRow | UnknownSharing") -> str:
    from tiering.facts.sharing import UnknownSharing

    if isinstance(sharing, UnknownSharing):
        return f"{sharing.disk}: whose the objects are is unknown, so all count as this machine's: {sharing.error}"
    whole, share, currency = _money(sharing.price_month), _money(sharing.share_price_month), sharing.currency
    others = ", ".join(name for name, size in sharing.by_log.items() if size)
    if not others:
        return f"{sharing.disk}: all of its objects are this machine's alone (log {sharing.log})"
    return (
        f"{sharing.disk}: of {whole} {currency} a month {share} are this machine's share (log {sharing.log}),"
        f" the rest that of {others}; what is shared is deleted when none of them names it any more"
    )


def _print_moves(session: Session, moves: "PastMoves", currency: str) -> None:
    if moves.since is None:
        session.output.line("Moves: none recorded.")
        return
    since = format_time(moves.since.replace(microsecond=0))
    session.output.line()
    session.output.table(
        ["month", "from", "to", "tries", "failed", "size", "requests", currency],
        [
            (
                row.month,
                row.source,
                row.target,
                row.tries,
                row.failed,
                format_size(row.bytes),
                f"{row.requests:,}",
                _money(row.price),
            )
            for row in moves.by_month
        ],
    )
    session.output.line(f"Moves since {since}: {_money(moves.price)} {currency}.")


def _print_plan(session: Session, plan: "PlanEffect", currency: str) -> None:
    session.output.line()
    moves, gone = counted(plan.moves, "move"), counted(plan.deletes, "part")
    size = format_size(plan.bytes)
    session.output.line(f"The plan: {moves} of {size}, {gone} past the TTL. {_effect(plan, currency)}")


def _print_policy(session: Session, effect: "PolicyEffect", currency: str) -> None:
    session.output.line()
    session.output.table(
        [f"as {effect.policy} puts them", "parts", "size", f"{currency} a month"],
        [(row.disk, row.parts, format_size(row.bytes), _money(row.price_month)) for row in effect.by_disk],
        empty="No parts.",
    )
    for kind, parts in effect.kept.items():
        session.output.line(f"{counted(parts, 'part')} not where a rule of the table wants it ({kind})")
    if effect.expired:
        session.output.line(f"{counted(effect.expired, 'part')} past the TTL would be nowhere")
    session.output.line(
        f"Policy {effect.policy}: {counted(effect.moves, 'move')} of {format_size(effect.bytes)} away."
        f" {_effect(effect, currency)}"
    )


def _effect(effect: "CostEffect", currency: str) -> str:
    once = f"Once {_money(effect.price)} {currency} for {counted(effect.put + effect.get, 'request')};"
    was, then, days = effect.before_price_month, effect.after_price_month, effect.pays_back_days
    pays = f", which pays off in {days:g} days" if days is not None else ""
    return f"{once} storage of these changes from {_money(was)} to {_money(then)} a month{pays}."


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 100 else f"{amount:.4g}"
