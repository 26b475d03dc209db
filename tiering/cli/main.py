"""`frostline`: reads the command line, runs the verb, maps every failure to text or JSON and an exit code."""

import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from itertools import filterfalse
from typing import Any, NoReturn, cast

import typer

from disks.system_errors import allow_open_files, of_sqlite, of_the_system
from disks.workers.python_gc import collect_after_start
from oplog.errors import AccessDenied, FrostlineError, UsageError
from tiering.cli.frame import plain_values
from tiering.cli.frame.exit_codes import INTERRUPTED, TERMINATED, Finished, Terminated
from tiering.cli.frame.interruptible import has_begun
from tiering.cli.frame.options import GlobalOptions
from tiering.cli.frame.output import encode, print_error
from tiering.cli.frame.signals import STOPPED, end_in_time, raising
from tiering.cli.frame.verb import global_parameters, new_app, root_options, with_parameters
from tiering.cli.frame.verb_table import VerbGroup
from tiering.config.escaping import visible
from tiering.config.secrets import without_passwords
from tiering.daemon.log_lines import LogStream

HELP = """Tables of Parquet parts on fast disks and in S3, moved by policy, rebuilt from the bucket.

Try it: frostline demo. Help for a verb: frostline VERB --help."""
_ENGINE = "duckdb"
_NO_SUCH_PATH = frozenset(
    (
        *(errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT),
        *(errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EILSEQ, errno.ESPIPE, errno.ENOTEMPTY),
    )
)
"""Errors that are about the path somebody gave, or what is there."""


def build() -> typer.Typer:
    """The whole command line."""
    app = new_app(HELP, cls=VerbGroup)
    app.callback(invoke_without_command=True)(_root())
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: exits with the documented code."""
    collect_after_start()
    allow_open_files()
    end_in_time()
    code = run(sys.argv[1:] if arguments is None else arguments)
    if code in STOPPED or has_begun() or _ENGINE in sys.modules:
        _flush()
        # All is closed, and who stopped it does not wait for work that threads have begun. A thread that came back from
        # the engine at the end would abort the process, and the engine would list on stderr all that an error still
        # holds of it.
        os._exit(code)
    gc.freeze()  # before it ends the interpreter looks for garbage in everything once more: 40 ms, for nothing
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; output goes to the process's streams."""
    json = "--json" in arguments
    verbose = "-vv" in arguments or "-vvv" in arguments
    previous = _catch_signals()
    plain_values.install()
    try:
        code = build()(args=list(arguments), prog_name="frostline", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # the parser turns Ctrl-C into its own exit
            return _interrupted()
    except FrostlineError as error:
        _trace(verbose)
        _flush()
        print_error(error, json=json)
        return error.exit_code
    except Finished as finished:
        _flush()
        return finished.exit_code
    except Terminated:
        print(STOPPED[TERMINATED], file=sys.stderr)
        return TERMINATED
    except (KeyboardInterrupt, EOFError):
        return _interrupted()
    except BrokenPipeError:
        return _unread()
    except SystemExit as ended:  # the parser's own answer to a broken pipe
        if isinstance(ended.__context__, BrokenPipeError):
            return _unread()
        raise
    except Exception as error:  # noqa: BLE001  the one place where everything unforeseen ends
        return _foreign(error, arguments, json=json, verbose=verbose)
    finally:
        if isinstance(sys.stderr, LogStream):  # a daemon's
            sys.stderr.end()
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def _root() -> Any:
    def root(context: typer.Context, version: bool, **given: Any) -> None:
        context.obj = root_options(**given)
        if version:
            _print_version(context.obj)
            raise Finished(0)
        if context.invoked_subcommand is None:
            raise UsageError("which verb?", hint="see 'frostline --help'")

    from inspect import Parameter
    from typing import Annotated

    eager = Annotated[bool, typer.Option("--version", help="show version, log format and minimum reader")]
    parameters = [
        Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
        Parameter("version", Parameter.KEYWORD_ONLY, annotation=eager, default=False),
        *global_parameters(before_verb=True, changes=True),
    ]
    return with_parameters(root, parameters, name="root", doc=HELP)


def _print_version(options: GlobalOptions) -> None:
    from importlib.metadata import version

    about = about_version(version("frostline"))
    print(encode(about).decode() if options.json else version_text(about))


def about_version(version: str) -> dict[str, Any]:
    """What `--version --json` shows of this version."""
    from oplog.entry import MINIMUM_READER
    from oplog.mark import SCHEMA_VERSION

    return {"version": version, "log_format": int(SCHEMA_VERSION), "minimum_reader": MINIMUM_READER}


def version_text(about: dict[str, Any]) -> str:
    """The same as text."""
    return f"frostline {about['version']}\nlog format {about['log_format']}\nminimum reader {about['minimum_reader']}"


def _foreign(error: Exception, arguments: Sequence[str], *, json: bool, verbose: bool) -> int:
    """Errors that are not ours: the argument parser's, and bugs."""
    if hasattr(error, "format_message"):  # wrong arguments, in whichever module typer defines them
        context = getattr(error, "ctx", None)
        if context is not None and type(error).__name__ == "NoArgsIsHelpError":
            print(context.get_help(), file=sys.stderr)
            return 2
        where = context.command_path if context is not None else "frostline"
        print_error(UsageError(str(error.format_message()), hint=f"see '{where} --help'"), json=json)
        return 2
    if type(error).__name__ in ("Exit", "Abort"):
        return int(getattr(error, "exit_code", INTERRUPTED))
    _trace(verbose)
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name)):
        print_error(UsageError(f"{error.name} is not installed", hint=f"pip install 'frostline[{extra}]'"), json=json)
        return 2
    if isinstance(error, (OSError, MemoryError)) or type(error).__module__.startswith(("pyarrow", "duckdb")):
        refused = of_the_system(error)
    elif type(error).__module__ == "sqlite3":
        refused = of_sqlite(cast("Any", error), "")
    else:
        # No room for another thread, or for a library.
        refused = of_the_system(error) if isinstance(error, (RuntimeError, ImportError)) else None
    if refused is not None:
        print_error(refused, json=json)
        return refused.exit_code
    if isinstance(error, OSError) and error.filename is not None and (refused := _of_a_path(error)) is not None:
        print_error(refused, json=json)
        return refused.exit_code
    if isinstance(error, UnicodeEncodeError) and (other := next(filterfalse(_is_utf8, arguments), None)) is not None:
        print_error(UsageError(f"{other[:200]!r} is not UTF-8 text", hint="only paths may be non-UTF-8"), json=json)
        return 2
    text = str(error).strip().splitlines()
    problem = f"unexpected {type(error).__name__}: {text[0] if text else 'no message'}"
    print_error(FrostlineError(problem, hint="run with -vv for the traceback"), json=json)
    return 1


def _is_utf8(text: str) -> bool:
    return text.encode("utf-8", "replace") == text.encode("utf-8", "surrogatepass")


def _of_a_path(error: OSError) -> FrostlineError | None:
    """What the system says of a path that cannot be used as it is; None for what is no fault of the path."""
    said = f"{os.fsdecode(str(error.filename))[:200]}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return AccessDenied(said, hint="check its permissions, and those of the directories above")
    if error.errno == errno.ENAMETOOLONG:
        return UsageError(f"the path {str(error.filename)[:80]}… is too long", hint="use a shorter path")
    if error.errno in _NO_SUCH_PATH:
        return UsageError(said, hint="check the path")
    return None


def _extra_with(module: str | None) -> str | None:
    """The extra of Frostline that brings the package of this module; None where none does."""
    from importlib.metadata import requires

    package = (module or "").partition(".")[0]
    for requirement in requires("frostline") or ():
        needed, _, extra = requirement.partition("extra == ")
        if extra and needed.startswith(package) and not needed[len(package) :][:1].isalnum():
            return extra.strip("\"'")
    return None


def _unread() -> int:
    """The reader went away (`| head`): that is its right. Python must not complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _interrupted() -> int:
    print(STOPPED[INTERRUPTED], file=sys.stderr)
    return INTERRUPTED


def _trace(verbose: bool) -> None:
    if verbose:
        import traceback

        if isinstance(sys.stderr, LogStream):
            logging.getLogger("frostline").error("details follow", exc_info=True)
            return
        for line in without_passwords(traceback.format_exc()).rstrip("\n").split("\n"):
            print(visible(line), file=sys.stderr)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _catch_signals() -> dict[signal.Signals, Any]:
    """Ctrl-C and SIGTERM end the verb, each where no lock is left held. Returns what handled them before; a program
    that embeds the command line keeps its own Ctrl-C, and both in a thread of its own."""
    handlers = {signal.SIGTERM: raising(Terminated)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = raising(KeyboardInterrupt)
    try:
        return {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not the main thread
        return {}


if __name__ == "__main__":
    main()
