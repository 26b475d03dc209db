"""`@verb(app)`: a function that takes a `Session` becomes a verb that also understands the global options."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from oplog.errors import UsageError
from tiering.cli.frame.exit_codes import Finished
from tiering.cli.frame.options import NAMES, GlobalOptions, declarations
from tiering.cli.frame.session import Session

Verb = Callable[..., None]


def new_app(help_text: str, *, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of verbs; plain help, because it starts faster than the decorated one."""
    return typer.Typer(
        cls=cls,
        help=help_text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def verb(
    app: typer.Typer, name: str | None = None, *, changes: bool = False, instead_of_dry_run: str = ""
) -> Callable[[Verb], Verb]:
    """Register the function. `changes`: it changes something, so its help lists --dry-run and --yes.
    `instead_of_dry_run`: --dry-run is refused with this hint, and not listed."""

    def register(function: Verb) -> Verb:
        own = _with_globals(function, changes=changes, instead_of_dry_run=instead_of_dry_run)
        app.command(name or function.__name__.replace("_", "-"))(own)
        return function

    return register


def root_options(**given: Any) -> GlobalOptions:
    """The options that stood before the verb."""
    return GlobalOptions(**{name: given[name] for name in NAMES if name in given})


def _with_globals(function: Verb, *, changes: bool, instead_of_dry_run: str) -> Verb:
    """A parameter whose type is a NamedTuple stands for its fields, each an option."""
    groups: dict[str, Any] = {}

    def run(context: typer.Context, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in group._fields})
        after = {name: given.pop(name) for name in NAMES}
        before = context.find_root().obj or GlobalOptions()
        with Session(before.merged(after)) as session:
            if instead_of_dry_run and session.dry_run:
                raise UsageError(f"'{context.command_path}' has no dry run", hint=instead_of_dry_run)
            try:
                function(session, **given)
            except Finished:
                if changes:
                    session.publish()
                raise
            if changes:
                session.publish()

    own: list[inspect.Parameter] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, tuple):
            groups[parameter.name] = kind
            own += inspect.signature(kind).parameters.values()
        else:
            own.append(parameter)
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *global_parameters(before_verb=False, changes=changes, dry_run=not instead_of_dry_run),
    ]
    return with_parameters(run, parameters, name=function.__name__, doc=function.__doc__)


def global_parameters(*, before_verb: bool, changes: bool, dry_run: bool = True) -> list[inspect.Parameter]:
    """The global options as parameters of a function."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in declarations(
            before_verb=before_verb, changes=changes, dry_run=dry_run
        ).items()
    ]


def with_parameters(function: Verb, parameters: list[inspect.Parameter], *, name: str, doc: str | None) -> Verb:
    """The function, looking to typer as if it had these parameters."""
    function.__name__ = name
    function.__doc__ = doc
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function
