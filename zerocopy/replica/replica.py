"""`Replica`: what this machine is of a replicated table, checked against Keeper when it is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from oplog.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, ReadOnly
from tiering.catalog.context import Context
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Keeper, Witness
from zerocopy.keeper.operations import ANY_VERSION, CreateNode, DeleteNode, Operation, portions
from zerocopy.replica import history, identity, lag
from zerocopy.replica.connections import KnownTable, connections
from zerocopy.replica.nodes import ReplicaNodes, TableNodes, number_of


class Replica(msgspec.Struct):
    """An open replica. Writing needs one; reading does not."""

    context: Context
    definition: TableDefinition
    name: str
    keeper: Keeper
    table: TableNodes
    own: ReplicaNodes
    token: str
    """By which Keeper knows this machine as the replica."""
    version: int = ANY_VERSION
    """Of the node that says so."""
    kept: KnownTable = msgspec.field(default_factory=lambda: KnownTable(0))

    @classmethod
    def open(cls, context: Context, definition: TableDefinition) -> Replica:
        """Raises `ReadOnly` with the reason where this machine may not change the table, `Transient` when Keeper does
        not answer. Queries go on in both cases."""
        known = identity.read(context, definition)
        table = TableNodes(str(definition.keeper))
        name = definition.full_name
        if known is None:
            raise ReadOnly(
                f"this machine is no replica of {name}, and may only read it",
                hint=f"frostline table create {name} --replicated --keeper-path {table.path} makes it one",
            )
        keeper, kept = connections(context).keeper, connections(context).kept(table.path)
        own = table.replica(known.replica)
        if kept.own is None or kept.own.data != known.token.encode() or kept.is_old.is_set():
            kept.forget()
            kept.own = keeper.watch_node(own.path, kept.is_old.set)
        if (node := kept.own) is None:
            what = "the table" if not keeper.exists(table.metadata) else f"replica {known.replica}"
            raise ReadOnly(
                f"{name} can only be read here: Keeper knows nothing of {what} at {table.path}",
                hint="was it dropped, or another keeper.root configured? If Keeper lost its data: 'frostline replica "
                f"restore {name}' rebuilds it from the replicas' parts",
            )
        if node.data == restoring_token(known.token):
            raise ReadOnly(
                f"{name} can only be read here: its nodes are being put back into Keeper out of what the replicas have",
                hint=f"'frostline replica restore {name}' shows which replicas it waits for",
            )
        if node.data != known.token.encode():
            raise ReadOnly(
                f"{name} can only be read here: replica {known.replica} is another machine's now",
                hint="it was dropped and created again under this name; drop the table here, and "
                "join under another name",
            )
        identity.check_alone(context, definition, keeper, own, kept)
        history.check(context, definition, keeper, table)
        kept = connections(context).kept(table.path)
        return cls(context, definition, known.replica, keeper, table, own, known.token, node.version, kept)

    def parts(self) -> set[PartName]:
        """What Keeper says that this replica has."""
        return {PartName.parse(name) for name in self.keeper.children(self.own.parts)}

    def number_of(self, node: str) -> int:
        """The block number that a node of Keeper stands for."""
        return self.definition.numbers_from + number_of(node)

    def others(self) -> list[str]:
        """The other replicas, by name."""
        return [name for name in self.keeper.children(self.table.replicas) if name != self.name]

    def address_of(self, name: str) -> str:
        """Where another replica gives its parts; empty where it does not, or is none."""
        node = self.keeper.find(self.table.replica(name).host)
        return node.data.decode(errors="replace") if node is not None else ""

    def register(self, part: PartName, digest: str, covered: Iterable[PartName], queued: str | None) -> None:
        """Say that this replica has the part, and no more those that it covers; and that the queued entry is done.

        The part is durable before this is called."""
        path = self.own.part(str(part))
        lag_said = lag.told(self.own, self.kept, done=(queued or "",))
        said = [*self._word(str(part), digest, covered, queued), *lag_said]
        try:
            self.keeper.multi(said, witness=Witness(path, digest.encode()))
        except AlreadyExists:  # an earlier try got so far
            self.finish(queued)
        else:
            lag.believe(self.kept, lag_said)
        self._is_done(queued)

    def register_all(
        self, parts: Mapping[str, tuple[str, str]], covered: Mapping[str, Collection[PartName]] | None = None
    ) -> None:
        """The same of many, by name with the digest and the queued entry that is done by it; `covered`: what it has no
        more by each of them. The parts are durable before this is called."""
        covers = covered or {}
        words = [self._word(name, digest, covers.get(name, ()), queued) for name, (digest, queued) in parts.items()]
        for portion in portions(words):
            said = [one for one in portion if isinstance(one, CreateNode)]
            try:
                self.keeper.multi(portion, witness=Witness(said[-1].path, said[-1].data))
            except (AlreadyExists, NotFound, Conflict):  # an earlier try, or another process, said some of them
                for one in said:
                    name = one.path.rpartition("/")[2]
                    self.register(PartName.parse(name), parts[name][0], covers.get(name, ()), parts[name][1])
        for _, queued in parts.values():
            self._is_done(queued)

    def _word(self, part: str, digest: str, covered: Iterable[PartName], queued: str | None) -> list[Operation]:
        removed = [DeleteNode(self.own.part(str(name))) for name in sorted(covered)]
        done = [DeleteNode(queued)] if queued is not None else []
        return [CreateNode(self.own.part(part), digest.encode()), *removed, *done]

    def finish(self, queued: str | None) -> None:
        """Say that the queued entry is done, or needs not be done."""
        if queued is not None:
            self.keeper.delete(queued)
        self._is_done(queued)

    def finish_all(self, queued: Sequence[str]) -> None:
        """The same of many, in as few requests as they go into."""
        for portion in portions([DeleteNode(one)] for one in queued):
            nodes = [one.path for one in portion]
            try:
                self.keeper.multi(portion)
            except (NotFound, OutcomeUnknown):  # some are gone: by an earlier try, or another process
                for node in nodes:
                    self.finish(node)
            for node in nodes:
                self._is_done(node)

    def say_lag(self) -> None:
        """Say since when the oldest insert waits, where Keeper says something else."""
        if said := lag.told(self.own, self.kept):
            self.keeper.multi(said, witness=Witness(said[0].path, said[0].data))
            lag.believe(self.kept, said)

    def _is_done(self, queued: str | None) -> None:
        self.kept.entries.pop(queued or "", None)
        self.kept.inserted.pop(queued or "", None)


def restoring_token(token: str) -> bytes:
    """By which Keeper knows a replica while the nodes of its table are put back."""
    return f"restoring {token}".encode()
