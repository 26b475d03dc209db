"""Seeded mistakes of publications, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.crash.seeding import nothing, replaced

_VERBS = "tests/integration/test_publications.py"


def _renumbered() -> None:
    """Columns get ids by their places."""
    from msgspec.structs import replace

    from tiering.iceberg import publication

    schema = publication.iceberg_schema

    def counted(*arguments: Any) -> Any:
        made = schema(*arguments)
        fields = tuple(replace(field, id=number) for number, field in enumerate(made.fields, start=1))
        return replace(made, fields=fields)

    publication.iceberg_schema = counted


def _stale_manifests() -> None:
    """A manifest is carried over for as many parts, whichever they are."""
    from msgspec.structs import replace

    from tiering.iceberg import manifests

    groups_of = manifests.groups_of

    def by_count(*arguments: Any) -> list[Any]:
        return [replace(group, digest=f"{len(group.parts):024x}") for group in groups_of(*arguments)]

    manifests.groups_of = by_count


def _hint_first() -> None:
    """The hint is put before the metadata that it names."""
    from tiering.iceberg.publication import Publication

    commit = Publication._commit

    def hinted(self: Any, version: int, data: bytes) -> None:
        self._put("metadata/version-hint.text", str(version).encode())
        commit(self, version, data)

    Publication._commit = hinted  # type: ignore[method-assign]


def _overwritten() -> None:
    """Metadata is put over what another machine has put."""
    from tiering.iceberg.publication import Publication

    def put(self: Any, version: int, data: bytes) -> None:
        self._put(f"metadata/v{version}.metadata.json", data)
        self._put("metadata/version-hint.text", str(version).encode())

    Publication._commit = put  # type: ignore[method-assign]


def _no_revisions(store: Any) -> dict[str, frozenset[int]]:
    return {}


def _no_parts(self: Any) -> Sequence[Any]:
    return []


Mistake = tuple[str, str, str, Callable[[], None]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "publication: ids renumbered",
        "columns have ids by place, not their own",
        f"{_VERBS}::test_columns_keep_their_ids",
        _renumbered,
    ),
    (
        "publication: stale manifest",
        "a manifest is kept though its parts changed",
        f"{_VERBS}::test_a_manifest_follows_its_parts",
        _stale_manifests,
    ),
    (
        "publication: defaults unknown",
        "a part older than a column with a default is published",
        f"{_VERBS}::test_a_default_is_refused_until_a_merge",
        replaced("tiering.iceberg.publication", "check_stored", nothing),
    ),
    (
        "publication: watermark ahead",
        "rows that are on the SSD only count as published",
        f"{_VERBS}::test_it_says_up_to_where_it_is_complete",
        replaced("tiering.iceberg.publication:Publication", "_on_other_disks", _no_parts),
    ),
    (
        "publication: hint first",
        "a reader is sent to metadata that is not there",
        f"{_VERBS}::test_killed_at_any_step_the_former_one_is_read[before]",
        _hint_first,
    ),
    (
        "publication: overwritten",
        "of two machines the second replaces what the first published",
        f"{_VERBS}::test_two_publish_at_once",
        _overwritten,
    ),
    (
        "publication: foreign snapshot",
        "what another program commits is taken for ours",
        f"{_VERBS}::test_what_another_program_commits_is_not_followed",
        replaced("tiering.iceberg.publication:Published", "is_ours", True),
    ),
    (
        "publication: collected",
        "garbage collection deletes what a published snapshot shows",
        f"{_VERBS}::test_what_is_shown_is_not_collected",
        replaced("disks.garbage.live_references", "published_revisions", _no_revisions),
    ),
)
