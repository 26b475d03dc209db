"""How the blocks of an insert go into a replicated table. The order, and what a crash after each step leaves:

    number    a node of this session below block_numbers/<partition>        nothing: it goes with the session
    arrival   the part durable on this machine, where nobody looks          something to take back
    word      one multi: the number's node goes; blocks/<digest>, an
              entry of the log and parts/<part> come                        the insert counts      <- the commit point
    part      the arrival takes its place in the table                      something to finish

So no entry of the log is about a part that is not durable somewhere, and no part is in an answer that Keeper may not
know. A block whose digest is there already, from whichever replica, is counted as a duplicate, and its number stays
unused."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from disks.base import Transaction
from oplog.errors import AlreadyExists, Conflict, FrostlineError, LimitReached, NotFound, Transient, UsageError
from tiering.catalog.lineage import content_digest
from tiering.config.units import counted
from tiering.engine.replication import Quorum
from tiering.insert.insert import Inserting, NewPart
from tiering.table.part import PartName
from tiering.table.transforms import partition_rows
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CheckNode, CreateNode, DeleteNode, Operation, check_size
from zerocopy.replica import entries, history
from zerocopy.replica.inserts import quorum, staged_parts
from zerocopy.replica.nodes import number_of
from zerocopy.replica.replica import Replica

_ANY_DIGEST = "0" * 64
_WIDEST_NUMBER = 10**10 - 1
"""As many digits as a block number has at most."""


class _Arriving(msgspec.Struct):
    """A new part with its number."""

    new: NewPart
    node: str
    """That holds the number."""
    name: str
    digest: str = ""
    """Of its `part.json`."""


@dataclass(slots=True)
class ReplicatedInserting(Inserting):
    """One insert into a replicated table."""

    replica: Replica = field(kw_only=True)
    quorum: Quorum | None = None
    _needed: int = 0
    """Replicas that must have it; 0: nobody asked."""
    _waited_for: set[str] = field(default_factory=set)
    """The parts of the insert, and those of an earlier one that brought the same."""
    _blocks_begun: int = 0
    _drops: dict[str, int] = field(default_factory=dict)
    """How often each partition was dropped, as far as is known: the word counts only if that is so still."""

    def begin(self) -> None:
        if self.quorum is not None:
            self._needed = quorum.needed(self.replica, self.quorum)

    def finish(self) -> None:
        if self.quorum is not None:
            quorum.wait(self.replica, self._waited_for, self._needed, self.quorum.seconds)

    def take_number(self, claimed: ExitStack) -> int:
        """Only an order: the numbers come from Keeper, of each partition its own, when the bytes are written."""
        self._blocks_begun += 1
        return self._blocks_begun

    def doubts(self) -> Callable[[pa.Table], bool] | None:
        return self._is_wide if self.definition.partition_by else None

    def _is_wide(self, table: pa.Table) -> bool:
        """Whether Keeper may not take the block in one request; it does where enough of it is there already."""
        _, partitions = partition_rows(table, self.definition)
        for one in partitions:
            self._drops.setdefault(one.id, 0)  # counted before anything is said
        outlines = [NewPart(one, one.rows, (), Path(), "", _ANY_DIGEST) for one in partitions]
        try:
            check_size(self._largest_word(outlines))
        except LimitReached:
            return True
        return False

    def put_in(self, written: list[NewPart], transactions: dict[str, Transaction], number: int) -> None:
        fresh = self._without_duplicates(written)
        if not fresh:
            return
        self._check_word(fresh)
        with self._numbered(fresh) as arriving, self._claimed(arriving):
            by_disk: dict[str, list[_Arriving]] = defaultdict(list)
            for one in arriving:
                by_disk[one.new.disk].append(one)
            for disk, group in by_disk.items():
                for one in group:
                    part = self.described(one.name, one.new)
                    one.digest = content_digest(part)
                    staged_parts.stage(transactions[disk], self.definition, part, one.new.directory, one.node)
                transactions[disk].commit()
            taken = self._say(arriving)
            for disk, group in by_disk.items():
                chosen = [one for one in group if one in taken]
                if chosen:
                    names = [one.name for one in chosen]
                    staged_parts.take_in(self.context, self.definition, self.context.disk(disk), names)
                    self.count_in(names, [one.new for one in chosen])
                    self._waited_for.update(names)

    def _without_duplicates(self, written: list[NewPart]) -> list[NewPart]:
        """Those that no replica has inserted yet, as far as is known before the word."""
        fresh: list[NewPart] = []
        self._count_drops(written)
        for new in written:
            if self._is_known(new):
                self.count_duplicate(new)
            else:
                fresh.append(new)
        return fresh

    def _is_known(self, new: NewPart) -> bool:
        """Whether some replica has inserted it before."""
        node = self.replica.keeper.find(self._block(new)) if self._deduplicates else None
        if node is not None:
            self._waited_for.add(node.data.decode())
        return node is not None

    @property
    def _deduplicates(self) -> bool:
        return self.definition.settings.deduplication_window > 0

    def _count_drops(self, news: list[NewPart]) -> None:
        for partition in {new.partition.id for new in news}:
            node = self.replica.keeper.find(self.replica.table.numbers(partition))
            self._drops[partition] = node.version if node is not None else 0

    def _block(self, new: NewPart) -> str:
        return self.replica.table.block(new.partition.id, new.digest, self._drops[new.partition.id])

    @contextmanager
    def _numbered(self, news: list[NewPart]) -> Iterator[list[_Arriving]]:
        """The parts with their numbers. A number that was not used is given back: merges wait for those on their
        way."""
        keeper, arriving = self.replica.keeper, []
        try:
            for new in news:
                parent = self.replica.table.numbers(new.partition.id)
                keeper.make_path(parent)
                node = keeper.create_numbered(f"{parent}/block-{uuid.uuid4().hex}-", ephemeral=True)
                number = self.replica.number_of(node)
                name = str(PartName(new.partition.id, number, number, 0))
                arriving.append(_Arriving(new, node, name))
                self._check_number(name)
            yield arriving
        except BaseException:
            with suppress(FrostlineError):  # nobody answers: the nodes go with the session
                for one in arriving:
                    keeper.delete(one.node)
            raise

    def _check_number(self, name: str) -> None:
        """Raise `ReadOnly` for a number that Keeper has given before."""
        context, directory = self.context, self.definition.part_directory(name)
        for disk in map(context.disk, context.catalog.policy_disks(self.definition)):
            if not disk.capabilities.shared and disk.exists(directory):
                raise history.rolled_back(self.definition, f"it gives the number of {name}, which is here, once more")

    @contextmanager
    def _claimed(self, arriving: list[_Arriving]) -> Iterator[None]:
        """While it lasts nobody settles these arrivals as those of a dead insert."""
        names = [staged_parts.claim_of(one.name) for one in arriving]
        with self.context.journal.claim(self.definition.uuid, names, "insert"):
            yield

    def _say(self, arriving: list[_Arriving]) -> list[_Arriving]:
        """Make the parts count; returns those that do. The others were inserted by another replica meanwhile."""
        left = list(arriving)
        while left:
            try:
                witness = Witness(self.replica.own.part(left[0].name), left[0].digest.encode())
                words = [one for each in left for one in self._word(each)]
                said = self.replica.keeper.multi(
                    [CheckNode(self.replica.own.path, self.replica.version), *words], witness=witness
                )
                self._note_entry(words, said[1:])
                return left
            except (AlreadyExists, Conflict) as error:
                self.replica.keeper.sync(self.replica.table.path)
                if isinstance(error, Conflict):  # the partition was dropped meanwhile, without this insert
                    self._open_again()
                    self._count_drops([one.new for one in left])
                known = [one for one in left if self._is_known(one.new)]
                if not known and isinstance(error, AlreadyExists):
                    raise
                self._take_back(known)
                for one in known:
                    self.count_duplicate(one.new)
                left = [one for one in left if one not in known]
            except NotFound as error:
                self._take_back(left)
                raise Transient(
                    f"the insert into {self.definition.full_name} lost its session with Keeper, and does not count",
                    hint="run it again: what went in before is skipped",
                ) from error
        return []

    def _note_entry(self, words: Sequence[Operation], said: Sequence[str]) -> None:
        """Remember the newest entry of the log that this insert made, before it is acknowledged: a Keeper that is set
        back to before it is found out by that. Where Keeper's answer was lost its number is not known; then it is
        remembered when it is taken over."""
        for word, path in zip(reversed(words), reversed(said), strict=True):
            if isinstance(word, CreateNode) and word.numbered and path != word.path:
                by = [self.replica.name]
                history.note(self.context, self.definition, number_of(path), word.data, by, durable=False)
                return

    def _open_again(self) -> None:
        """Raise `ReadOnly` where this machine is not the replica any more that it was."""
        self.replica.kept.own = None
        self.replica = Replica.open(self.context, self.definition)

    def _check_word(self, news: list[NewPart]) -> None:
        """Raise `UsageError`, with no number taken and nothing staged, for a block that Keeper does not take in one
        request: in two, half of it could count."""
        try:
            check_size(self._largest_word(news))
        except LimitReached as error:
            raise UsageError(
                f"a block of {counted(len(news), 'partition')} of {self.definition.full_name} does not go in as one: "
                f"{error.message}",
                hint=f"{self._what_is_in()}, of fewer partitions at once (some 90), or give the table a coarser "
                "--partition-by",
            ) from error

    def _what_is_in(self) -> str:
        """Of an insert of which a block is refused, and what to insert now: rows that are in already would be in
        twice, since cut otherwise they are other blocks."""
        if self.rows_before:
            return f"the first {counted(self.rows_before, 'row')} went in, and none after: insert the rest"
        if self.result().parts:
            return "nothing of this block was inserted, and others were: insert the rows of this one"
        return "nothing of this block was inserted; insert rows"

    def _largest_word(self, news: Sequence[NewPart]) -> list[Operation]:
        """What is said of these parts, whatever their numbers are."""
        word: list[Operation] = [CheckNode(self.replica.own.path, self.replica.version)]
        for new in news:
            node = f"{self.replica.table.numbers(new.partition.id)}/block-{uuid.uuid4().hex}-{_WIDEST_NUMBER}"
            name = str(PartName(new.partition.id, _WIDEST_NUMBER, _WIDEST_NUMBER, 0))
            word += self._word(_Arriving(new, node, name, new.digest))
        return word

    def _word(self, arriving: _Arriving) -> list[Operation]:
        now, name = self.context.clock(), self.replica.name
        entry = entries.Get(time=now, replica=name, part=arriving.name, digest=arriving.digest, quorum=self._needed)
        partition = arriving.new.partition.id
        said: list[Operation] = [
            DeleteNode(arriving.node),
            CheckNode(self.replica.table.numbers(partition), self._drops[partition]),
        ]
        if self._deduplicates:
            said.append(CreateNode(self._block(arriving.new), arriving.name.encode()))
        said.append(CreateNode(f"{self.replica.table.log}/log-", entries.encode(entry), numbered=True))
        said.append(CreateNode(self.replica.own.part(arriving.name), arriving.digest.encode()))
        return said

    def _take_back(self, arriving: list[_Arriving]) -> None:
        for one in arriving:
            self.replica.keeper.delete(one.node)
            staged_parts.discard(self.context, self.definition, self.context.disk(one.new.disk), [one.name])
