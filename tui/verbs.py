"""`top`, also called `dashboard`: the store at a glance, live in the terminal, or once as text or JSON."""

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import UsageError
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.session import Session, actor
from tiering.cli.frame.verb import verb

if TYPE_CHECKING:
    from disks.workers.progress import Progress
    from tiering.config.settings import Config
    from tui.source import Opener

_SWITCH_SECONDS = 0.001
"""A thread that reads the store gives way so soon: a key passes three threads until its effect is seen."""
TRY_ONCE = "--once prints the overview as text, --json as data"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line, under both of its names."""
    verb(app)(top)
    verb(app, "dashboard")(top)


def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="print the overview and exit")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="disable actions")] = False,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve", metavar="PORT", min=0, max=65535, help="serve to a browser on this machine; 0: a free port"
        ),
    ] = None,
    allow_actions: Annotated[bool, typer.Option("--allow-actions", help="with --serve: allow actions")] = False,
) -> None:
    """Show the store in the terminal: problems, disks, moves and pending work; act on it.

    Each action shows its command line. With --once or --json it prints the overview and exits. --dry-run works as
    --read-only.
    """
    if serve is None and allow_actions:
        raise UsageError("--allow-actions is for --serve", hint="in a terminal the dashboard acts, unless --read-only")
    if serve is not None and (once or session.options.json):
        raise UsageError("--serve shows the dashboard in a browser and prints nothing once", hint=TRY_ONCE)
    if once or session.options.json:
        _print_once(session)
        return
    if serve is None and not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UsageError("the dashboard needs a terminal", hint=TRY_ONCE)
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "the dashboard needs textual, which is not installed", hint=f"pip install 'frostline[tui]'; {TRY_ONCE}"
        ) from error
    read_only = read_only or session.dry_run or (serve is not None and not allow_actions)
    if serve is None:
        _run(session, read_only=read_only, ascii_only=not _has_utf_8())
    elif _is_viewed():
        _run(session, read_only=read_only, ascii_only=False)
    else:
        _serve(session, serve)


def _has_utf_8() -> bool:
    named = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    if named in ("C", "POSIX"):  # there Python writes UTF-8 all the same
        return False
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _is_viewed() -> bool:
    """Whether this process was started by `_serve`, with its command line, for one viewer."""
    from tui.serving.viewer import DRIVER

    return os.environ.get("TEXTUAL_DRIVER") == DRIVER


def _serve(session: Session, port: int) -> None:
    import asyncio

    try:
        from tui.serving.server import Server
    except ImportError as error:
        raise UsageError(
            "--serve needs aiohttp, which is not installed", hint=f"pip install 'frostline[tui,serve]'; {TRY_ONCE}"
        ) from error
    _check(session)
    command = [sys.executable, "-m", "tiering.cli.main", *sys.argv[1:]]

    def tell(line: str) -> None:
        session.output.line(line)
        sys.stdout.flush()

    asyncio.run(Server(command, tell).run(port))


def _check(session: Session) -> None:
    """What each viewer would only find in the browser."""
    from tui.app import Settings, check_settings

    dashboard = session.config.dashboard
    check_settings(Settings(session.config.state_directory, theme=dashboard.theme, keys=dashboard.keys))


def _run(session: Session, *, read_only: bool, ascii_only: bool) -> None:
    from tui.app import Dashboard, Settings, check_settings
    from tui.source import Source
    from tui.terminal import TerminalDriver, ended_by

    config = session.config
    settings = Settings(
        state_directory=config.state_directory,
        theme=config.dashboard.theme,
        keys=config.dashboard.keys,
        read_only=read_only,
        ascii=ascii_only,
    )
    check_settings(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    source = Source(_opener(session, config, recover=not read_only))
    board = Dashboard(source, settings, driver_class=None if _is_viewed() else TerminalDriver)
    has_ended = ended_by(board, source)
    logging.disable()  # a line of a log would be written over the screen
    try:
        board.run()
    finally:
        has_ended()
        logging.disable(logging.NOTSET)
        source.close()
    if running := [work.title for work in source.running]:
        session.output.note(f"waiting for a step to end: {', '.join(running)}; Ctrl-C exits immediately")
        source.wait()


def _opener(session: Session, config: "Config", *, recover: bool) -> "Opener":
    from tiering.engine.store import Store

    acting, showing, who = session.limiter(), session.new_limiter(), actor()

    def open_store(progress: "Progress | None" = None) -> Store:
        """What acts may use up the limits for minutes: what is shown does not wait for that."""
        return Store.open(
            config,
            actor=who,
            workers=session.options.workers,
            limiter=showing if progress is None else acting,
            progress=progress,
            recover=recover,
            partial=True,
            freshness=Freshness.CHANGES if progress is None else Freshness.EVERY_FILE,  # which is what acts
        )

    return open_store


def _print_once(session: Session) -> None:
    from tui.facts.overview import overview, overview_lines

    store = session.store(Freshness.CHANGES)
    session.tell_set_aside(store.set_aside())
    document = overview(store)
    if session.options.json:
        session.output.document(document)
        return
    for line in overview_lines(document):
        session.output.line(line)
