"""`Marks`: what one replica says of the objects that it uses.

    create     before the first byte     set and mark, one request     nothing names the set: gc finds it by its age
    add        before the commit         the marks, one request        a mark without files: an audit finds it
    confirm    after the commit          changes nothing
    remove     after the commit          the marks, as seen before it  a mark without files: an audit finds it

The order is the caller's duty: a mark comes before what it stands for and goes after it. So a crash leaves a mark too
many, which keeps objects, and never one too few.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobReference, NewSet
from disks.object_disk.sharing.prefix import store_identity
from oplog.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown
from zerocopy.keeper.client import Keeper, Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, Set
from zerocopy.marks import changes
from zerocopy.marks.marks_keeper import PlaceCheck
from zerocopy.marks.nodes import StoreNodes

_ATTEMPTS = 10


class Gone(NotFound):
    """A set has no node in Keeper: it is being collected, or was. Its objects are no more to be relied on."""


class Marks:
    """The marks of one log on one prefix of a bucket. Thread-safe, as Keeper is."""

    def __init__(self, keeper: Keeper, store: str, log: str, check: Callable[[], None] = lambda: None) -> None:
        """`store` is the identity of the prefix (`disks`), `log` the name of the replica's log there. `check` raises
        where marks are not to be set in this Keeper (`zerocopy.marks.marks_keeper`)."""
        self.keeper = keeper
        self.nodes = StoreNodes(store)
        self.log = log
        self._check = check

    def create(self, sets: Sequence[NewSet]) -> None:
        """Make new sets, each with the mark of this replica, before anything of them is uploaded. All of a directory or
        none. Raises `AlreadyExists` where a set was made before: its name is to be a new one."""
        self._check()
        self.keeper.make_path(self.nodes.path)
        token = secrets.token_hex(8).encode()
        for request in changes.creating(self.nodes, self.log, sets, token):
            self.keeper.multi(request, witness=_witness(request))

    def add(self, references: Collection[BlobReference]) -> None:
        """Mark sets that are there already, before the commit that names them. All of a directory or none; marks that
        an earlier attempt left are as good. Raises `Gone` when a set has no node."""
        if not references:
            return
        self._check()
        there: dict[str, int] = {}
        for _ in range(_ATTEMPTS):
            token = secrets.token_hex(8).encode()
            try:
                for request in changes.adding(self.nodes, self.log, references, token, there):
                    self.keeper.multi(request, witness=_witness(request))
                return
            except (AlreadyExists, Conflict):
                there = self._there(references)
            except NotFound as error:
                if self._lacks_set(references):
                    raise Gone(
                        f"objects that {_first(references)} needs are being collected, or were",
                        hint="nothing was changed; if Keeper lost its data: 'frostline replica audit --repair'",
                    ) from error
                there = self._there(references)  # one that an earlier attempt left was tidied up meanwhile
        raise Conflict(f"the marks of {_first(references)} keep changing in Keeper", hint="run it again")

    def missing(self, references: Collection[BlobReference], log: str | None = None) -> set[BlobReference]:
        """Which of the marks are not there: of this replica, or of another one's log. One request where none is."""
        log = log or self.log
        try:
            for request in changes.checking(self.nodes, log, references):
                self.keeper.multi(request)
        except (NotFound, OutcomeUnknown):
            self.keeper.sync(self.nodes.path)
            found = self.keeper.find_all([self.nodes.mark(one, log) for one in references])
            return {one for one, node in zip(references, found, strict=True) if node is None}
        return set()

    def seen(self, references: Collection[BlobReference]) -> dict[BlobReference, int]:
        """The marks of this replica that are there, with their versions: what `remove` wants, read before the commit
        that ends what they stand for."""
        self.keeper.sync(self.nodes.path)
        found = zip(references, self.keeper.find_all([self._path(one) for one in references]), strict=True)
        return {one: node.version for one, node in found if node is not None}

    def remove(self, seen: Mapping[BlobReference, int]) -> None:
        """Remove marks whose objects are durably unused. A mark that was rewritten since it was read
        stands for something else, and stays; so does the node of every set, until it is collected."""
        for request in changes.removing(self.nodes, self.log, seen):
            try:
                self.keeper.multi(request)
            except (NotFound, Conflict, OutcomeUnknown):  # not all of them as they were seen: one by one
                for one in request:
                    self._delete(one)

    def _delete(self, operation: Operation) -> None:
        assert isinstance(operation, DeleteNode)
        with suppress(Conflict):
            self.keeper.delete(operation.path, operation.version)

    def _path(self, reference: BlobReference) -> str:
        return self.nodes.mark(reference, self.log)

    def _there(self, references: Collection[BlobReference]) -> dict[str, int]:
        return {self._path(one): version for one, version in self.seen(references).items()}

    def _lacks_set(self, references: Collection[BlobReference]) -> bool:
        self.keeper.sync(self.nodes.path)
        return None in self.keeper.find_all([self.nodes.blob_set(one.blob_set) for one in references])


def marks_of(keeper: Keeper, disk: LoggedDisk) -> Marks:
    """Those of the disk's log. The first log to use the prefix gives it an id."""
    identity = store_identity(disk)
    if identity is None:
        disk.claim()
        identity = store_identity(disk)
    assert identity is not None
    return Marks(keeper, identity, str(disk.log_name), PlaceCheck(keeper, disk))


def _witness(request: Sequence[Operation]) -> Witness:
    """The last mark of the request: its token is of this attempt."""
    last = request[-1]
    assert isinstance(last, CreateNode | Set)
    return Witness(last.path, last.data)


def _first(references: Collection[BlobReference]) -> str:
    return min(references).directory if len(references) == 1 else f"{min(references).directory} and others"
