"""The options that every verb takes, before or after its name: `frostline --json parts`, `frostline parts --json`."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """What the user said that is not about one verb."""

    config: str | None = None
    store: str | None = None
    json: bool = False
    dry_run: bool = False
    yes: bool = False
    quiet: bool = False
    verbose: int = 0
    no_color: bool = False
    no_progress: bool = False
    json_progress: bool = False
    bwlimit: str | None = None
    tpslimit: float | None = None
    workers: int | None = None
    error_on_nothing: bool = False
    partial: bool = False

    def merged(self, later: dict[str, Any]) -> "GlobalOptions":
        """These options, with those given after the verb on top; counts add up."""
        changes = {name: value for name, value in later.items() if value not in (None, False, 0)}
        if "verbose" in changes:
            changes["verbose"] += self.verbose
        return replace(self, **changes)


BelieveClock = Annotated[
    bool,
    typer.Option("--believe-clock", help="trust this machine's clock, which you have checked"),
]

NAMES = tuple(item.name for item in fields(GlobalOptions))

Declaration = tuple[Any, Any]


def declarations(*, before_verb: bool, changes: bool, dry_run: bool = True) -> dict[str, Declaration]:
    """Name -> (annotation, default) of each option. After a verb the rare ones work too, but help does not repeat them.

    `changes`: the verb changes something, so its help lists --yes and, if it has a `dry_run`, --dry-run.
    """

    def option(*names: str, text: str, common: bool = False, metavar: str | None = None, **more: Any) -> Any:
        return typer.Option(*names, help=text, metavar=metavar, hidden=not (before_verb or common), **more)

    return {
        "config": (
            Annotated[str | None, option("--config", "-c", text="configuration file", metavar="FILE")],
            None,
        ),
        "store": (
            Annotated[
                str | None,
                option("--store", text="read the bucket at this URL, without a configuration", metavar="URL"),
            ],
            None,
        ),
        "json": (Annotated[bool, option("--json", text="one JSON document on stdout", common=True)], False),
        "dry_run": (
            Annotated[
                bool,
                option("--dry-run", "-n", text="show what would change; change nothing", common=changes and dry_run),
            ],
            False,
        ),
        "yes": (Annotated[bool, option("--yes", "-y", text="answer yes to every question", common=changes)], False),
        "quiet": (Annotated[bool, option("--quiet", "-q", text="only data and errors", common=True)], False),
        "verbose": (
            Annotated[
                int,
                option(
                    "--verbose",
                    "-v",
                    text="more output; -vv: debug",
                    count=True,
                    common=True,
                    metavar="",
                    show_default=False,
                ),
            ],
            0,
        ),
        "no_color": (Annotated[bool, option("--no-color", text="plain text")], False),
        "no_progress": (Annotated[bool, option("--no-progress", text="no progress bars or lines")], False),
        "json_progress": (
            Annotated[bool, option("--json-progress", text="progress as JSON lines on stderr, one per second")],
            False,
        ),
        "bwlimit": (
            Annotated[
                str | None, option("--bwlimit", text="limit of bytes per second to and from stores", metavar="50M")
            ],
            None,
        ),
        "tpslimit": (
            Annotated[float | None, option("--tpslimit", text="limit of requests per second", metavar="N", min=0.01)],
            None,
        ),
        "workers": (
            Annotated[
                int | None, option("--workers", "-j", text="parallel workers", common=changes, metavar="N", min=1)
            ],
            None,
        ),
        "error_on_nothing": (
            Annotated[bool, option("--error-on-nothing", text="exit 9 if there was nothing to do")],
            False,
        ),
        "partial": (
            Annotated[bool, option("--partial", text="skip unavailable disks; results may be incomplete")],
            False,
        ),
    }
