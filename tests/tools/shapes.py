"""The JSON of verbs in `docs/scripting.md`, as their structs have it.

A row of the page's table keeps its words; the first piece of code of its second cell is replaced. A struct that another
verb shows is named by that verb: `as parts`.
"""

import re
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from backup.create.request import CreateResult
from backup.documents import BackupRow, ShownBackup
from backup.recover.contents import BackupDiff
from backup.recover.drill import DrillDocument
from backup.recover.request import RestoreDocument
from backup.retention.prune import PruneDocument, RepositoryGcDocument
from backup.verify.verify import VerifyDocument
from restore.clickhouse.export import ExportDocument
from restore.history.blame import Blame
from restore.history.documents import DiffDocument, LogRow, UndoDocument
from restore.verbs.documents import CheckDocument, GcDocument, GcSum, PartitionsDocument
from tiering.catalog.data_files import FilesDocument
from tiering.catalog.rows import DiskRow, PartRow, TableRow, UsageRow
from tiering.daemon.inbox.status import InboxRun, InboxStatus
from tiering.facts.cost import CostDocument
from tiering.facts.disk_decisions import DiskDecision, DrainDocument, RetiredLog
from tiering.facts.inserts import InsertDocument
from tiering.facts.merges import ColdMergeRow, MergesDocument
from tiering.facts.metrics.exposition import MetricRow
from tiering.facts.moves import MovesDocument, PassDocument, PlanDocument
from tiering.facts.policies import PolicyRow
from tiering.facts.sharing import SharingRow, UnknownSharing
from tiering.facts.status import CacheStatus, DaemonRow, StoreStatus
from tiering.journal.records import MoveRecord
from tiering.policy.plan import Explanation
from tui.facts.overview import TopDocument
from zerocopy.clickhouse.sharing import SharingDocument
from zerocopy.execution.synced import SyncedTable
from zerocopy.keeper.client import KeeperNode
from zerocopy.replica.status import OwnReplica, ReplicaStatus
from zerocopy.verbs.each_table import FailedTable

SHAPES: dict[str, Any] = {
    "parts": {"parts": list[PartRow]},
    "files": FilesDocument,
    "disks": {"disks": list[DiskRow]},
    "table list": {"tables": list[TableRow]},
    "policies": {"policies": list[PolicyRow]},
    "du": {"usage": list[UsageRow], "bytes": int, "shared": list[SharingRow | UnknownSharing]},
    "insert": InsertDocument,
    "plan": PlanDocument,
    "move": MovesDocument,
    "merge": MergesDocument,
    "merge --cold": ColdMergeRow,
    "gc": GcDocument,
    "gc of several disks": GcSum,
    "tick": PassDocument,
    "cost": CostDocument,
    "explain": Explanation,
    "moves list": {"moves": list[MoveRecord]},
    "disk drain": DrainDocument,
    "disk adopt": DiskDecision,
    "disk retire-log": RetiredLog,
    "log": {"disk": str, "entries": list[LogRow]},
    "diff": DiffDocument,
    "blame": Blame,
    "undo": UndoDocument,
    "partition list": PartitionsDocument,
    "fsck": CheckDocument,
    "clickhouse zero-copy inspect": SharingDocument,
    "clickhouse export": ExportDocument,
    "backup create": CreateResult,
    "backup list": {"repository": str, "backups": list[BackupRow]},
    "backup show": {"name": str, "backups": list[ShownBackup]},
    "backup verify": VerifyDocument,
    "backup drill": DrillDocument,
    "backup restore": RestoreDocument,
    "backup diff": BackupDiff,
    "backup gc": RepositoryGcDocument,
    "backup prune": PruneDocument,
    "cache stats": CacheStatus,
    "daemon status": DaemonRow,
    "status": StoreStatus,
    "top": TopDocument,
    "inbox run": InboxRun,
    "inbox status": InboxStatus,
    "metrics": {"metrics": list[MetricRow]},
    "replica list": {"replicas": list[OwnReplica]},
    "replica status": {"replicas": list[ReplicaStatus], "failed": list[FailedTable]},
    "replica sync": {"synced": list[SyncedTable], "failed": list[FailedTable]},
    "keeper ls": {"path": str, "nodes": list[KeeperNode]},
}
"""Verb -> its document: a struct, or the types of its keys."""
HIDDEN = {PartRow: {"created"}, DiskRow: {"problem"}}
"""Fields that only `system.*` asks for."""

_LEAST_FIELDS = 5
_ROW = re.compile(r"^\| (`[^|]*?) \| (.*) \|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")


def with_shapes(page: str) -> str:
    """The page with the shapes of today. Raises `KeyError` for a verb that has no row."""
    missing = set(SHAPES)

    def row(match: re.Match[str]) -> str:
        verb = match[1].replace("`", "").split(",")[0]
        if verb not in SHAPES:
            return match[0]
        missing.discard(verb)
        return f"| {match[1]} | {_CODE.sub(lambda _: f'`{shape(verb)}`', match[2], count=1)} |"

    page = _ROW.sub(row, page)
    if missing:
        raise KeyError(f"docs/scripting.md has no row for {', '.join(sorted(missing))}")
    return page


def shape(verb: str) -> str:
    """The document of a verb."""
    document = SHAPES[verb]
    return _keys(document.items(), verb) if isinstance(document, dict) else _struct(document, verb)


def fields_of(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, bool]]:
    """Name in JSON -> its type, and whether it may be left out."""
    hints = get_type_hints(struct)
    found = {}
    for field in msgspec.structs.fields(struct):
        members = _members(hints[field.name])
        if field.name not in HIDDEN.get(struct, ()):
            may_lack = msgspec.UnsetType in members or field.default is msgspec.UNSET
            lacking = may_lack or bool(struct.__struct_config__.omit_defaults and not field.required)
            found[field.encode_name] = hints[field.name], lacking
    return found


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _struct(struct: type[msgspec.Struct], verb: str) -> str:
    fields = [(f"{name}?" if lacking else name, kind) for name, (kind, lacking) in fields_of(struct).items()]
    return _keys(fields, verb)


def _keys(fields: Any, verb: str) -> str:
    texts = []
    for name, kind in fields:
        key = f'"{name.removesuffix("?")}"{"?" if name.endswith("?") else ""}'
        inside = _kind(kind, verb)
        texts.append(f"{key}: {inside}" if inside else key)
    return f"{{{', '.join(texts)}}}"


def _kind(kind: Any, verb: str) -> str:
    """Nothing for a plain value."""
    members = [member for member in _members(kind) if member not in (msgspec.UnsetType, type(None))]
    texts = [text for member in members if (text := _one(member, verb))]
    null = ["null"] if texts and type(None) in _members(kind) else []
    return " or ".join([*null, *dict.fromkeys(texts)])


def _one(kind: Any, verb: str) -> str:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _named(kind, verb) or _struct(kind, verb)
    arguments = [member for member in get_args(kind) if member is not Ellipsis]
    origin = get_origin(kind)
    if origin in (None, Literal) or not arguments:
        return ""
    if hasattr(origin, "keys"):
        inside = _kind(arguments[1], verb)
        return f"{{NAME: {inside}}}" if inside else "{…}"
    if origin in (list, tuple) or hasattr(origin, "__getitem__"):
        inside = " or ".join(dict.fromkeys(filter(None, (_kind(member, verb) for member in arguments))))
        return f"[{inside}…]" if inside else "[…]"
    return ""


def _named(struct: type[msgspec.Struct], verb: str) -> str:
    """`as VERB`, where an earlier verb has the struct, and it is worth the trip."""
    other = next((other for other, document in SHAPES.items() if struct in _structs(document)), verb)
    return f"as {other}" if other != verb and len(struct.__struct_fields__) >= _LEAST_FIELDS else ""


def _structs(kind: Any) -> set[type]:
    """Those that a document shows at any depth."""
    if isinstance(kind, dict):
        return {struct for inside in kind.values() for struct in _structs(inside)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {kind, *(struct for inside, _ in fields_of(kind).values() for struct in _structs(inside))}
    return {struct for inside in get_args(kind) for struct in _structs(inside)}
