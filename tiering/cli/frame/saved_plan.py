"""The file that `plan -o` writes, and `apply` and `cost` read."""

import sys

import msgspec

from oplog.bounds import UNREADABLE
from oplog.errors import UsageError
from tiering.config.given_file import text_of
from tiering.policy.plan import Move, TtlDelete


class SavedPlan(msgspec.Struct, frozen=True):
    """What a plan would do; what else the file says is for people."""

    moves: tuple[Move, ...]
    deletes: tuple[TtlDelete, ...] = ()


def read_plan(path: str) -> SavedPlan:
    """The plan; `-` reads stdin. Raises `UsageError` for what is none."""
    try:
        text = sys.stdin.read() if path == "-" else text_of(path)
        return msgspec.json.decode(text, type=SavedPlan)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot read the plan {path}: {why}", hint="create one with: frostline plan -o PLAN.json"
        ) from error
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is not a plan: {error}", hint="create one with: frostline plan -o PLAN.json"
        ) from error
