"""Many questions to ZooKeeper that are on their way at the same time, waited for as one. Only `client` uses it.

A server since 3.6 reads many nodes for one request (`multiRead`), which kazoo does not speak. An older one answers with
nothing, or breaks the connection; the same questions are then asked one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

_IN_ONE = 100
"""Nodes that one request reads: a client takes an answer of any length, and others wait for it."""


class AtOnce:
    """What kazoo's `IAsyncResult` is for one question, as far as `Keeper` asks it."""

    def __init__(self, asked: Sequence[Any]) -> None:
        self._asked = asked

    @property
    def requests(self) -> int:
        """How many were sent for it."""
        return len(self._asked)

    def wait(self, seconds: float) -> bool:
        """Whether all are answered, or failed, within so many seconds."""
        end = time.monotonic() + seconds
        return all(one.wait(max(end - time.monotonic(), 0)) for one in self._asked)

    def get(self, *, block: bool) -> tuple[Any, ...]:
        """All answers; None for a node that is not there. Raises what the first one that failed did."""
        return tuple(self._answer(one) for one in self._asked)

    @staticmethod
    def _answer(result: Any) -> Any:
        try:
            return result.get(block=False)
        except zk.NoNodeError:
            return None


class _InFew(AtOnce):
    """The same in a request for many nodes each."""

    def __init__(self, asked: Sequence[Any], many: BatchedRequests) -> None:
        super().__init__(asked)
        self._many = many

    def get(self, *, block: bool) -> tuple[Any, ...]:
        """As of `AtOnce`. Where it is not known that the server understands such a request, one that failed counts as
        not answered."""
        try:
            answers = [one for some in self._asked for one in some.get(block=False)]
        except Exception as error:
            if self._many.are_understood:
                raise
            self._many.are_understood = False
            raise zk.ConnectionLoss from error
        self._many.are_understood = True
        return tuple(map(_told, answers))


def _told(answer: Any) -> Any:
    if isinstance(answer, zk.NoNodeError):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


class BatchedRequests:
    """How many nodes are asked for in one session."""

    def __init__(self) -> None:
        self.are_understood: bool | None = None
        """Whether the server reads many nodes for one request; None until one was sent. An answer that was lost since
        says nothing of it."""

    def ask(self, client: KazooClient, question: type[Any], paths: Sequence[str]) -> AtOnce:
        """Ask `GetData` or `GetChildren` of each of the nodes."""
        if len(paths) == 1 or self.are_understood is False:
            ask = client.get_async if question is GetData else client.get_children_async
            return AtOnce([ask(path) for path in paths])
        asked = []
        for begin in range(0, len(paths), _IN_ONE):
            answer = client.handler.async_result()
            client._call(_MultiRead(question, paths[begin : begin + _IN_ONE]), answer)
            asked.append(answer)
        return _InFew(asked, self)


class _MultiRead(msgspec.Struct, frozen=True):
    """The request, in the form in which kazoo's connection sends and reads its own."""

    question: Any
    """`GetData` or `GetChildren`."""
    paths: Sequence[str]
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        head = multiheader_struct.pack(self.question.type, False, -1)
        asked = (head + bytes(self.question(path, None).serialize()) for path in self.paths)
        return b"".join([*asked, multiheader_struct.pack(-1, True, -1)])

    def deserialize(self, data: Any, offset: int) -> list[Any]:
        """What was read of each node, or the error. Raises where that is not of as many nodes as were asked for."""
        answers = list(_answers(data, offset))
        if len(answers) != len(self.paths):
            raise ValueError(f"{len(answers)} answers of {len(self.paths)}")
        return answers


def _answers(data: Any, offset: int) -> Iterator[Any]:
    while True:
        header, offset = MultiHeader.deserialize(data, offset)
        if header.done:
            return
        if header.type == GetData.type:
            content, offset = read_buffer(data, offset)
            yield content, ZnodeStat._make(stat_struct.unpack_from(data, offset))
            offset += stat_struct.size
        elif header.type == GetChildren.type:
            (count,) = int_struct.unpack_from(data, offset)
            offset += int_struct.size
            names = []
            for _ in range(count):
                name, offset = read_string(data, offset)
                names.append(name)
            yield names
        else:
            (code,) = int_struct.unpack_from(data, offset)
            offset += int_struct.size
            yield zk.EXCEPTIONS[code]()
