"""Every 64th entry of the log brings the texts of the 63 before it, so that a reader far behind reads one object for
64 commits (docs/design.md, "A commit").

They are a copy and prove nothing by themselves: the entry that brings them names the digest of the last one, and each
the digest of the one before it. What does not fit, is missing or too large is read entry by entry. Pure; no I/O.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, pairwise

import zstandard

from oplog import bounds, entry
from oplog.entry import Commit
from oplog.errors import FrostlineError
from oplog.log_end import Entry

COMMITS = 64
"""Which entries bring texts: those whose revision this divides."""
MOST_TEXT_BYTES = 1 << 20
"""Of all texts together: what moves thousands of files is read by itself."""
_WINDOW_BYTES = 8 << 20


def brings(revision: int) -> bool:
    """Whether this entry brings those before it."""
    return revision % COMMITS == 0


def pack(texts: Sequence[bytes]) -> bytes:
    """The texts as they ride along; nothing where they are too large."""
    if sum(map(len, texts)) > MOST_TEXT_BYTES:
        return b""
    return zstandard.ZstdCompressor(level=3).compress(b"\n".join(texts))


def unpack(commit: Commit, *, name: str) -> Sequence[Entry]:
    """The entries that it brings, in order, the last of them the one right before it: those that the digests lead to.
    None where one does not fit."""
    texts = _texts(commit.earlier) if commit.earlier else []
    try:
        entries = [Entry(entry.decode(text, name=name), entry.digest(text)) for text in texts]
    except FrostlineError:
        return ()
    first = commit.revision - len(entries)
    numbered = all(one.commit.revision == first + place for place, one in enumerate(entries))
    linked = all(two.commit.previous == one.digest for one, two in pairwise(entries))
    return entries if entries and numbered and linked and entries[-1].digest == commit.previous else ()


def by_copy(
    revisions: Iterator[int], fetch: Callable[[Iterator[int]], Iterator[Entry]], *, name: str
) -> Iterator[Entry]:
    """The entries of these revisions, which ascend: `fetch` is asked only for those that no later one brings."""
    runs = [list(run) for _, run in groupby(revisions, key=lambda revision: (revision - 1) // COMMITS)]
    fetched = fetch(one for run in runs for one in (run[-1:] if brings(run[-1]) else run))
    for run in runs:
        if not brings(run[-1]):
            yield from islice(fetched, len(run))
            continue
        before = run[:-1]
        try:
            last = next(fetched)
        except FrostlineError:
            yield from fetch(iter(before))
            raise
        brought = unpack(last.commit, name=name)[-len(before) :] if before else ()
        if [one.commit.revision for one in brought] == before:
            yield from brought
        else:
            yield from fetch(iter(before))
        yield last


def _texts(packed: bytes) -> Sequence[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(io.BytesIO(packed)) as stream:
            data = stream.read(MOST_TEXT_BYTES + COMMITS)
            too_long = bool(stream.read(1))
    except (zstandard.ZstdError, *bounds.UNREADABLE):
        return []
    texts = data.split(b"\n")
    return [] if too_long or len(texts) >= COMMITS else texts
