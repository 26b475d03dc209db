"""Backups as operations that crash tests stop. The repository lies in the site, so it is reset with it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from backup.create.request import CreateRequest
from backup.recover.request import Renaming, RestoreRequest
from backup.repository import Repository
from backup.retention.prune import PruneRequest
from backup.retention.references import named_by
from backup.retention.rules import KeepRules
from backup.scope import Scope
from backup.verify.verify import VerifyRequest
from disks.effects import op
from disks.garbage.rules import GcRules
from oplog import pins
from oplog.errors import AlreadyExists, FrostlineError
from oplog.kinds import OtherKind
from tests.worm import ACTIVE

if TYPE_CHECKING:
    from backup.format.header import Cold
    from tests.crash.site import Site
    from tiering.engine.store import Store

COPY = "demo.copy"
TREE = "store/abc/abc00000-0000-4000-8000-000000000001"
TREE_FILES = {
    f"{TREE}/all_1_1_0/checksums.txt": b"checksums format version: 4",
    f"{TREE}/all_1_1_0/data.bin": b"rows " * 500,
    f"{TREE}/format_version.txt": b"1",
}
"""What a server would have written; its part of one file of rows."""


def opened(site: Site) -> Repository:
    return Repository.open((site.root / "repository").as_uri(), config=site.config(), workers=1)


def init(site: Site) -> None:
    Repository.init((site.root / "repository").as_uri(), config=site.config()).close()


def check_sound(repository: Repository) -> None:
    """Whatever is complete is whole, byte for byte."""
    for result in repository.verify(None, VerifyRequest(share=1.0, dry_run=True)):
        for problem in result.problems:
            raise FrostlineError(f"I12: {result.name}: {problem['text']}")


def back_up(store: Store, site: Site, cold: Cold = "copy") -> None:
    """`backup create one`: what another try left is whole before, and what there is, after."""
    with opened(site) as repository:
        check_sound(repository)
        with suppress(AlreadyExists):
            repository.create(store, CreateRequest(name="one", cold=cold))
        check_sound(repository)
        everything = repository.backups()
        (made,) = [item for item in everything if item.unfinished is None]
        assert len(everything) == 1 or ACTIVE, "the mark of another try is left only where nothing can be deleted"
        assert made.header is not None
        assert made.header.parts == len(store.parts()), "a backup that is there holds everything"
    own = [*(site.root / "state" / "backup").rglob("*"), *(site.root / "repository").rglob("*")]
    left = [path for path in own if path.name.endswith((".owner", ".tmp"))]
    assert not left, f"I14 left by a backup that was killed: {left}"


def back_up_twice(store: Store, site: Site) -> None:
    """Two backups that share some objects; each has some of its own."""
    from tests.crash.site import drop_january, insert

    back_up(store, site, cold="pin")
    drop_january(store, site)
    insert(store, 9000)
    with opened(site) as repository:
        repository.create(store, CreateRequest(name="two"))


def prune(store: Store, site: Site) -> None:
    """`backup prune --keep-last 1`, days later: what is there is whole, before and after; in the end one backup is
    there, and nothing that it does not name."""
    later = store.context.clock() + timedelta(days=3)
    request = PruneRequest(KeepRules(last=1), GcRules(delete=True, max_delete_fraction=1.0))
    with opened(site) as repository:
        check_sound(repository)
        assert repository.find("two"), "the newest backup never goes"
        done = repository.prune(request, store, now=later)
        assert done.gc is not None
        assert done.gc.refused is None, done.gc.refused
        check_sound(repository)
        assert [item.header.name for item in repository.backups() if item.header] == ["two"]
        named = named_by(repository.storage, repository.find("two")).sizes
        left = set(repository.storage.holdings().objects) - set(named)
        assert not left, f"I5 left by a prune that was killed: {sorted(left)}"
        held = [pin.name for pin in pins.list_pins(store.object_disk("s3").store) if pin.until is None]
        assert not held, f"I5 left by a prune that was killed: {held}"


def damaged(store: Store, site: Site) -> None:
    """A backup, of which a blob and a pack are not what was written."""
    back_up(store, site)
    for kind in ("blobs", "packs"):
        path = min(path for path in (site.root / "repository" / kind).rglob("*") if path.is_file())
        data = path.read_bytes()
        with op("fs.write", path):
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def verify(store: Store, site: Site) -> None:
    """`backup verify one --read-data`: it says what is damaged however often it was stopped; what it puts is readable,
    and no later backup counts on the object."""
    with opened(site) as repository:
        (result,) = repository.verify("one", VerifyRequest(share=1.0))
        named = {problem.object for problem in result.problems}
        assert [key[:6] for key in sorted(named)] == ["blobs/", "packs/"]
        (listed,) = repository.backups()
        assert listed.verified is not None, "I12 the verification is not shown"
        assert listed.verified.problem_count == len(result.problems)
        assert repository.storage.holdings().damaged == named, "I12 they are counted on again"
    left = [path for path in (site.root / "repository").rglob("*") if path.name.endswith(".tmp")]
    assert not left, f"I14 left by a verification that was killed: {left}"


def restore(store: Store, site: Site) -> None:
    """`backup restore one --map-table demo.events:demo.copy`."""
    from tests.crash.site import TABLE

    with opened(site) as repository:
        request = RestoreRequest("one", scope=Scope((TABLE,)), renamings=(Renaming(TABLE, COPY),))
        try:
            repository.restore(store, request)
        except AlreadyExists:
            return
    left = list((site.root / "state" / "backup").rglob("*.tmp"))
    assert not left, f"I14 left by a restore that was killed: {left}"


def tree_backed_up(store: Store, site: Site) -> None:
    """What ClickHouse wrote, on a disk of ours, in a backup; then the disk lost it."""
    init(site)
    disk = store.disk("s3")
    with disk.transaction(OtherKind("test")) as transaction:
        for path, data in TREE_FILES.items():
            transaction.create(path, data)
        transaction.commit()
    with opened(site) as repository:
        repository.create(store, CreateRequest(name="one"))
    with disk.transaction(OtherKind("test")) as transaction:
        transaction.remove(TREE)
        transaction.commit()


def restore_tree(store: Store, site: Site) -> None:
    """`backup restore one -t UUID`: the directory is there whole or not at all, whatever stopped another try."""
    assert tree_files(store) in ({}, TREE_FILES), "I2 a part of it is there"
    with opened(site) as repository:
        with suppress(AlreadyExists):
            repository.restore(store, RestoreRequest("one", scope=Scope((TREE.rpartition("/")[2],))))
        check_sound(repository)
    assert tree_files(store) == TREE_FILES


def tree_files(store: Store) -> dict[str, bytes]:
    """The bytes of each file of the tree."""
    disk = store.disk("s3")
    disk.refresh()
    return {info.path: disk.read(info.path) for info in disk.walk(TREE)} if disk.exists(TREE) else {}
