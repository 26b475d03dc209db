"""The newest backup, verification and drill of each table as this machine last saw them: `status` shows it and asks
nobody, so a repository that is away neither slows it down nor fails it.

<state>/backup/<repository>/last_seen.json   written by whatever looks at all backups; may be deleted at any time
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from backup.format.header import BackupHeader, DrillRecord, VerificationRecord
from backup.repository_location import VARIABLE, repository_config, repository_url
from disks.effects import make_directory, remove_file, replace_file
from oplog.documents import Document
from oplog.entry import now
from oplog.errors import FrostlineError
from tiering.config.secrets import without_passwords
from tiering.config.settings import Config
from tiering.config.units import counted
from tiering.facts.backups import BackupsStatus, ProofRow, TableBackup

logger = logging.getLogger(__name__)
_FILE = "last_seen.json"


class Proof(msgspec.Struct, frozen=True):
    """A verification or a drill of a backup."""

    backup: str
    time: datetime
    how: str
    """`quick`, `subset`, `data`; of a drill `whole` or `share`."""
    problems: int


class SeenTable(msgspec.Struct, frozen=True):
    """One table: its newest backup, and the newest verification and drill of any of its backups."""

    uuid: str
    table: str
    backup: str
    machine: str
    taken: datetime
    verified: Proof | None
    drilled: Proof | None


class LastSeen(msgspec.Struct, frozen=True):
    """What a look at a repository saw."""

    repository: str
    as_of: datetime
    tables: tuple[SeenTable, ...]


NONE: Mapping[str, Proof] = {}
_kept = Document("last_seen.json", LastSeen)


def remember(
    config: Config,
    repository: tuple[str, str],
    headers: Iterable[BackupHeader],
    verified: Mapping[str, Proof] = NONE,
    drilled: Mapping[str, Proof] = NONE,
    *,
    everything: bool = False,
    deleted: bool = False,
) -> None:
    """Write down what was seen in the repository (its id and URL), proofs by the id of their backup. `everything`: it
    holds nothing else; otherwise what was seen before stays. Backups of single partitions do not count. Where this
    machine has no state nothing is written; it is never an error. It warns when a table's newest
    backup that was seen here is not there any more, unless backups were just `deleted` from here."""
    if not config.state_directory.is_dir():
        return
    path = config.state_directory / "backup" / repository[0] / _FILE
    before = _read(path)
    tables = {table.uuid: table for table in before.tables} if before is not None and not everything else {}
    for header in sorted(headers, key=lambda header: header.taken):
        if any(word.startswith("partition ") for word in header.scope):
            continue
        for table in header.tables:
            known = tables.get(table.uuid)
            seen_before = known or SeenTable(table.uuid, table.name, "", "", header.taken, None, None)
            tables[table.uuid] = msgspec.structs.replace(
                seen_before,
                verified=_newer(seen_before.verified, verified.get(header.id)),
                drilled=_newer(seen_before.drilled, drilled.get(header.id)),
            )
            if header.taken >= seen_before.taken:
                tables[table.uuid] = msgspec.structs.replace(
                    tables[table.uuid],
                    table=table.name,
                    backup=header.name,
                    machine=header.machine,
                    taken=header.taken,
                )
    if before is not None and everything and not deleted:
        _tell_older(repository[1], before.tables, tables)
    seen = LastSeen(repository[1], now(), tuple(sorted(tables.values(), key=lambda table: table.uuid)))
    try:
        make_directory(path.parent)
        for torn in path.parent.glob(f".{_FILE}.*"):  # one that was being written when its process ended
            remove_file(torn, missing_ok=True)
        replace_file(path, _kept.encode(seen))
    except (FrostlineError, OSError) as error:
        logger.debug("what was seen of %s is not kept: %s", repository[1], error)


def _tell_older(repository: str, before: Iterable[SeenTable], tables: Mapping[str, SeenTable]) -> None:
    for table in before:
        newest = tables.get(table.uuid)
        if newest is None or newest.taken < table.taken:
            logger.warning(
                "%s holds no backup of %s as new as %s of %s, which this machine saw there: it was deleted from another"
                " machine, or the repository was set back to an older copy; 'frostline backup create' makes a new one",
                *(without_passwords(repository), table.table, table.backup, _text(table.taken)),
            )


def proof(name: str, record: VerificationRecord | DrillRecord) -> Proof:
    """What is kept here of a record about a backup of this name."""
    how = record.depth if isinstance(record, VerificationRecord) else ("whole" if record.whole else "share")
    return Proof(name, record.time, how, record.problem_count)


def _newer(first: Proof | None, other: Proof | None) -> Proof | None:
    return max((proof for proof in (first, other) if proof is not None), key=lambda proof: proof.time, default=None)


def backups_status(config: Config, tables: Mapping[str, str]) -> BackupsStatus | None:
    """What `status` says of the tables, given by uuid and name: as of when, and of each the newest backup, verification
    and drill. None where no repository is configured. Reads this machine's state and nothing else."""
    if not (os.environ.get(VARIABLE) or config.backup.repository):
        return None
    try:
        name = repository_config(config, repository_url(config, None)).url
    except FrostlineError as error:
        return BackupsStatus(None, None, [], without_passwords(error.message))
    seen = _last_seen(config.state_directory / "backup", name)
    by_uuid = {table.uuid: table for table in seen.tables} if seen else {}
    by_name = {table.table: table for table in seen.tables} if seen else {}
    rows = [
        _row(table, by_uuid.get(uuid) or by_name.get(table))
        for uuid, table in sorted(tables.items(), key=lambda entry: entry[1])
    ]
    return BackupsStatus(without_passwords(name), _text(seen.as_of) if seen else None, rows)


def _last_seen(state: Path, name: str) -> LastSeen | None:
    """The newest look at the repository of this name: another may have been at its place before."""
    found = [seen for path in state.glob(f"*/{_FILE}") if (seen := _read(path)) is not None]
    return max((seen for seen in found if seen.repository == name), key=lambda seen: seen.as_of, default=None)


def _read(path: Path) -> LastSeen | None:
    try:
        return _kept.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _row(table: str, seen: SeenTable | None) -> TableBackup:
    if seen is None:
        return TableBackup(table=table)
    return TableBackup(
        table=table,
        backup=seen.backup,
        machine=seen.machine,
        taken=_text(seen.taken),
        verified=_proof_row(seen.verified),
        drilled=_proof_row(seen.drilled),
    )


def _proof_row(proof: Proof | None) -> ProofRow | None:
    if proof is None:
        return None
    return ProofRow(proof.backup, _text(proof.time), proof.how, proof.problems, not proof.problems)


def status_lines(document: BackupsStatus) -> list[str]:
    """The same as lines of text."""
    if document.repository is None:
        return [str(document.what)]
    if document.as_of is None:
        return [f"{document.repository}: not looked at from here yet; 'frostline backup list' does"]
    return [
        f"as of {document.as_of}, {document.repository}",
        *(f"{item.table}: {_line(item)}" for item in document.tables),
    ]


def _line(table_status: TableBackup) -> str:
    if table_status.backup is None:
        return "NO BACKUP"
    proofs = [f"verified {_proof_text(table_status.verified)}", f"drilled {_proof_text(table_status.drilled)}"]
    return f"{table_status.backup} of {table_status.taken}, {', '.join(proofs)}"


def _proof_text(proof: ProofRow | None) -> str:
    if proof is None:
        return "never"
    how = {"data": "all data", "subset": "a share of the data", "share": "a share"}.get(proof.how, proof.how)
    what = "ok" if proof.ok else counted(proof.problems, "problem").upper()
    return f"{proof.time} ({how}: {what})"


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
