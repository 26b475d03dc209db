"""fsck: every invariant that can be checked at rest, over all disks of a store. Reads only, unless told to repair.

Quick: what the disks say about themselves, compared with what is there (one listing a bucket). With `read_data` every
byte of the parts is read and hashed as well. What cannot be read is a finding with its path; a store that cannot be
reached or refuses us is an error, for then nothing was checked.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from disks.base import Disk
from disks.contracts.bucket_disk import ClickHouseLogDisk, LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from disks.workers.progress import SILENT, Progress
from oplog.errors import Damaged
from oplog.kinds import Repaired
from oplog.replay import FileRow
from restore.check.bucket import BucketTree, check_bucket
from restore.check.clickhouse import clickhouse_files
from restore.check.copies import check_copies
from restore.check.data import read_data, readable_files, share_of
from restore.check.findings import CheckResult, FileTree, Findings, ListedTree, Problem, ShareRead
from restore.check.kept import check_kept
from restore.check.options import CheckOptions
from restore.check.parts import Survey, disks_lacking_definition, survey
from restore.check.set_aside import Claim, attachable, no_claim, set_aside
from restore.check.share_history import ShareHistory, choose
from tiering.catalog.catalog import ONE_NAME_HINT
from tiering.catalog.lineage import Lineage, Merges, no_merges
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE, encode

__all__ = ["CheckOptions", "CheckResult", "Problem", "check"]


def check(
    disks: Mapping[str, Disk],
    how: CheckOptions | None = None,
    *,
    moving: Collection[tuple[str, str]] = (),
    policies: Mapping[str, Sequence[str]] | None = None,
    claim: Claim = no_claim,
    merges: Merges = no_merges,
    progress: Progress = SILENT,
) -> CheckResult:
    """Check the disks as one store.

    `moving` names (table uuid, part) that a journal says are under way, so that two copies are no fault. `policies`
    maps a policy to its disks: each must hold `table.json`. `claim` keeps others off parts that a repair sets aside.
    `merges` are those of a table that the journal knows.
    """
    how = how or CheckOptions()
    result, findings, found = CheckResult(), Findings(), Survey()
    with ExitStack() as open_trees:
        trees: dict[str, FileTree] = {}
        for name, disk in disks.items():
            with progress.task(f"checking {name}"):
                tree = trees[name] = _tree(disk, findings, result, how, progress)
                open_trees.callback(tree.close)
                survey(tree, found, findings, result.checked)
        moving = {*moving, *_shared_by_replicas(found, disks)}
        check_copies(found, trees, findings, disks, lineage=Lineage(disks, merges, search=False), moving=moving)
        _check_definitions(disks, trees, found, findings, policies or {}, result, how)
        _check_names(found, findings)
        if how.read_data or how.subset is not None:
            for tree in trees.values():
                _read(tree, findings, result, how, progress)
    result.checked.parts_without_nested_ids = found.without_nested_ids() or UNSET
    if how.kept is not None:
        check_kept(disks, how.kept, findings, result, how)
    if how.repair:
        sentences = set_aside(
            disks, findings, seen=_seen(trees), keep=moving, claim=claim, actor=how.actor, dry_run=how.dry_run
        )
        result.repaired += sentences
    for aside in found.set_aside:
        name, _, directory = aside.partition(":")
        if (back := attachable(disks[name], directory)) is not None:
            result.attachable[aside] = back
    result.set_aside, result.held, result.unsure = list(found.set_aside), found.held, found.unsure
    result.problems = [_with_table_name(problem, found) for problem in findings.sorted()]
    return result


def _seen(trees: Mapping[str, FileTree]) -> dict[str, int]:
    """The revision that was checked, of each disk with a log."""
    return {name: tree.log.head for name, tree in trees.items() if isinstance(tree, BucketTree)}


def _with_table_name(problem: Problem, survey: Survey) -> Problem:
    return replace(problem, table=survey.table_name(problem.table)) if problem.table else problem


def _tree(disk: Disk, findings: Findings, result: CheckResult, how: CheckOptions, progress: Progress) -> FileTree:
    if how.repair and not how.dry_run:
        result.repaired += [f"disk {disk.name}: {sentence}" for sentence in disk.recover(only_here=True)]
    if (logged := as_disk(disk, LoggedDisk)) is not None:
        if how.repair and (wrong := logged.settle(actor=how.actor, dry_run=how.dry_run)) is not None:
            verb = "would commit" if how.dry_run else "committed"
            result.repaired.append(
                f"disk {disk.name}: {verb} that entry {wrong} is wrong about the file table: the log is right"
            )
        _report_leftovers(disk, findings)
        return check_bucket(logged, findings, result, how, progress)
    if (clickhouse := as_disk(disk, ClickHouseLogDisk)) is not None:
        return clickhouse_files(clickhouse, findings, result.checked)
    return _listed_tree(disk, findings)


def _read(tree: FileTree, findings: Findings, result: CheckResult, how: CheckOptions, progress: Progress) -> None:
    """Read the data of one disk, or the share of it that is due."""
    subset = how.subset
    read = partial(
        read_data, findings=findings, workers=how.workers, progress=progress, remote=how.remote.get(tree.disk)
    )
    if subset is None:
        files, size_bytes = read(tree, readable_files(tree))
    else:
        memory = ShareHistory(how.memory) if how.memory is not None else None
        wanted = list(readable_files(tree))
        sizes = [0] * subset.shares
        for expected in wanted:
            sizes[share_of(expected.row.path, subset.shares) - 1] += 1
        lately = memory.read(tree.disk, subset.shares) if memory is not None else set()
        share = choose(subset, sizes, lately, random.Random(how.seed))
        if share is None:
            return
        chosen = [expected for expected in wanted if share_of(expected.row.path, subset.shares) == share]
        files, size_bytes = read(tree, chosen)
        done = memory.remember(tree.disk, subset.shares, share, sizes) if memory is not None else 1
        filled = sum(1 for size in sizes if size)
        result.shares.append(ShareRead(tree.disk, share, subset.shares, done, filled, files, size_bytes))
    result.checked.files_read += files
    result.checked.bytes_read += size_bytes


def _shared_by_replicas(survey: Survey, disks: Mapping[str, Disk]) -> Iterator[tuple[str, str]]:
    """The parts that all replicas of a table have on one disk: any of them may have moved them there just now, and what
    is wrong with them is no single one's to repair."""
    for uuid, copies in survey.copies.items():
        newest = survey.newest(uuid)
        if newest is not None and newest.is_replicated:
            for copy in copies:
                if disks[copy.disk].capabilities.shared:
                    yield uuid, str(copy.name)


def _check_definitions(
    disks: Mapping[str, Disk],
    trees: Mapping[str, FileTree],
    survey: Survey,
    findings: Findings,
    policies: Mapping[str, Sequence[str]],
    result: CheckResult,
    how: CheckOptions,
) -> None:
    """Every disk of a table's policy, and every disk with parts of it, holds its newest `table.json`, but for what the
    next command writes there. That of a table which a restore is bringing comes last."""
    for uuid, lacking in disks_lacking_definition(survey, policies).items():
        newest = survey.newest(uuid)
        if newest is None and uuid in how.unfinished_restores:
            continue
        path = f"store/{uuid[:3]}/{uuid}/{TABLE_FILE}"
        for name in (name for name in lacking if name in disks):
            there = trees[name].find(path) is not None
            message = f"{TABLE_FILE} is {'older than on another disk' if there else 'missing'}"
            repair = how.repair and newest is not None and not disks[name].read_only
            if (not repair or how.dry_run) and not _is_behind(disks, survey, uuid, name):
                findings.add(Problem("I7", message, name, table=uuid, path=path))
            if not repair or newest is None:
                continue
            if not how.dry_run:
                with disks[name].transaction(Repaired(), reason=f"fsck: {message}", actor=how.actor) as transaction:
                    transaction.made_from(_seen(trees).get(name), [path])
                    if there:
                        transaction.remove(path)
                    transaction.create(path, encode(newest))
                    transaction.commit()
            verb = "would write" if how.dry_run else "wrote"
            result.repaired.append(f"disk {name}: {verb} {path} of {newest.full_name} again ({message})")


def _check_names(survey: Survey, findings: Findings) -> None:
    """No two tables have one name: a bucket that was set back may have a table again that was dropped since."""
    by_name: dict[str, list[str]] = {}
    for uuid in sorted(survey.definitions):
        if (newest := survey.newest(uuid)) is not None and not survey.is_dropped(uuid):
            by_name.setdefault(newest.full_name, []).append(uuid)
    for name, uuids in by_name.items():
        for uuid in uuids[1:]:
            message = f"tables {' and '.join(uuids)} are both called {name}: {ONE_NAME_HINT}"
            findings.add(Problem("I17", message, min(survey.definitions[uuid]), table=uuid))


def _is_behind(disks: Mapping[str, Disk], survey: Survey, uuid: str, name: str) -> bool:
    """Whether the disk is this machine's own and lacks what a bucket has, as after another machine made or altered the
    table. A file that is missing beside parts of the table was taken away."""
    held, newest = survey.definitions.get(uuid, {}), survey.newest(uuid)
    if disks[name].capabilities.shared or (name not in held and name in survey.holding.get(uuid, ())):
        return False
    shared = (disk for disk in held if disk in disks and disks[disk].capabilities.shared)
    return newest is not None and any(held[disk].version == newest.version for disk in shared)


def _listed_tree(disk: Disk, findings: Findings) -> ListedTree:
    """The files as the disk lists them."""
    try:
        directory = as_disk(disk, DirectoryDisk)
        files, strange = directory.inspect() if directory is not None else (list(disk.walk()), [])
    except Damaged as error:
        findings.add(Problem("I15", error.message, disk.name))
        return ListedTree(disk.name, (), disk.read)
    for path in strange:
        place = locate(path)
        table, part = (place.uuid, place.part) if place else (None, None)
        what = "neither a file nor a directory: links, devices and pipes do not belong on a disk"
        findings.add(Problem("I15", what, disk.name, table, part, path))
    _report_leftovers(disk, findings)
    rows = (FileRow(info.path, info.size_bytes, info.sha256 or "", info.key, None, None, 0) for info in files)
    return ListedTree(disk.name, rows, disk.read)


def _report_leftovers(disk: Disk, findings: Findings) -> None:
    """What a crash left of the disk on this machine."""
    for leftover in disk.leftovers():
        findings.add(Problem("I14", leftover.message, disk.name, path=str(leftover.path)))
