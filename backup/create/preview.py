"""What a backup would send, without sending, holding or pinning anything."""

from __future__ import annotations

import hashlib
import time

from msgspec.structs import replace

from backup.create.clickhouse import trees_of, unknown_content, with_trees
from backup.create.instant import left_out, look
from backup.create.known import known_content
from backup.create.request import (
    CreateRequest,
    CreateResult,
    begun,
    check_not_empty,
    check_tiers,
    not_held,
    ranges_of,
    table_words,
)
from backup.storage import Storage
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from tiering.catalog.context import Context
from tiering.table.part import PART_FILE


def preview(storage: Storage, context: Context, request: CreateRequest, began: float) -> CreateResult:
    """What `create` would do."""
    headers, _ = storage.headers(remembered=True)
    mark = begun(storage, context, request)
    check_tiers(context, request)
    trees = trees_of(context, request.scope)
    request = replace(request, scope=with_trees(request.scope, trees))
    known = known_content(storage, headers, table_words(context, request.scope), context.clock())
    tables = look(context, request.scope)
    check_not_empty(tables, headers, mark.machine, request)
    size_bytes = pinned_bytes = files = 0
    new: dict[tuple[str, str | int], int] = {}
    for table in tables:
        for stored in table.parts:
            data = context.disk(stored.disk).read(stored.path(PART_FILE))
            contents = [(hashlib.sha256(data).hexdigest(), len(data))]
            in_place = request.cold == "pin" and as_disk(context.disk(stored.disk), LoggedDisk) is not None
            pinned_bytes += stored.facts.size_bytes if in_place else 0
            contents += [] if in_place else [(file.sha256, file.size_bytes) for file in stored.part.files]
            new.update({content: content[1] for content in contents if content not in known.files})
            files += 1 + len(stored.part.files)
            size_bytes += stored.facts.size_bytes
    for tree in trees:
        files += len(tree.rows)
        size_bytes += sum(row.size_bytes for row in tree.rows)
        new.update(unknown_content(context, tree, known))
    return CreateResult(
        name=mark.name,
        id="",
        tables=len(tables) + len(trees),
        parts=sum(len(table.parts) for table in tables) + sum(tree.parts for tree in trees),
        files=files,
        bytes=size_bytes,
        new_bytes=sum(new.values()),
        copied_server_side=0,
        pinned=pinned_bytes,
        seconds=round(time.monotonic() - began, 3),
        verified=False,
        not_held=not_held(tables, ranges_of(context, tables)),
        left_out=left_out(context, request.scope),
        dry_run=True,
    )
