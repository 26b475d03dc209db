"""Names of parts: what is one, and what only looks like one (I15)."""

from __future__ import annotations

import pytest

from oplog.errors import UsageError
from tiering.table.part import PartName


@pytest.mark.parametrize("text", ["all_1_1_0", "202601_1_5_1", "202601_1_5_1_7"])
def test_a_name_is_read_and_written_alike(text: str) -> None:
    assert str(PartName.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["all_١_١_0", "all_1_1_٠", "all_¹_1_0", "all_1_1_0\n", "all_-1_1_0", "all_1_1", "…_1_1_0"]
)
def test_digits_of_other_scripts_name_no_part(text: str) -> None:
    with pytest.raises(UsageError):
        PartName.parse(text)
