"""The options of `df.writeStream.format("frostline")`, checked, and what tells the batches of a stream apart.

A stream has a name, by default the place of its checkpoint. Spark keeps an id in the checkpoint, which it makes with
it, and counts the batches there. So a batch that comes again, after a lost answer or a restart, is known by both, and
a checkpoint that was created again is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from msgspec.structs import replace

from oplog.errors import UsageError
from spark_tiering.writing.gathering import SMALL_PARTS
from spark_tiering.writing.write_job import write_options
from tiering.engine.write_job import WriteOptions
from tiering.insert.uploaded.once import OnceABatch

_HINT = (
    "option('checkpointLocation', DIRECTORY) on a disk of the driver; elsewhere option('stream', NAME) and "
    "option('query_id', ID), an id that changes when the checkpoint is created again"
)
_OF_SPARK = ("checkpointlocation", "queryname")
"""What Spark hands on of its own options."""


def stream_options(given: Mapping[str, str]) -> WriteOptions:
    """The options as Spark hands them over, with the stream in `once`, no batch yet. Raises `UsageError` naming an
    unknown option, or what is missing to tell the stream from others."""
    options = {name.lower(): value for name, value in given.items()}
    checkpoint = options.get("checkpointlocation", "")
    name, query = options.pop("stream", checkpoint), options.pop("query_id", "")
    accepts = options.pop("new_checkpoint", "refuse")
    if accepts not in ("accept", "refuse"):
        raise UsageError(f"option new_checkpoint: expected accept or refuse, got {accepts!r}")
    gathers = _gathers(options.pop("gather", str(SMALL_PARTS)))
    if not name:
        raise UsageError("a stream without its own checkpoint cannot be identified", hint=_HINT)
    asked = write_options({name: value for name, value in options.items() if name not in _OF_SPARK})
    if asked.once is not None:
        raise UsageError("a stream counts its batches by itself", hint="leave the option job_id out")
    once = OnceABatch(name, query or _query_id(checkpoint), takes_new=accepts == "accept")
    return replace(asked, once=once, gathers=gathers)


def _gathers(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) != 1):
        raise UsageError(f"option gather: not a number of parts: {text!r}", hint="0 leaves all parts unmerged")
    return int(text)


def _query_id(checkpoint: str) -> str:
    """The id that Spark keeps in the checkpoint."""
    scheme, _, rest = checkpoint.partition(":")
    path = Path(unquote("/" + rest.lstrip("/")) if scheme == "file" else checkpoint) / "metadata"
    try:
        return str(json.loads(path.read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the id of the stream cannot be read from {path}: {error}", hint=_HINT) from error
