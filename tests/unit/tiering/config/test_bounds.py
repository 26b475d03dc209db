"""Every number of the configuration has a least and a greatest value, and what is beyond them is refused by name.

The keys are those of the model itself, so that a new one is tried as well.
"""

from __future__ import annotations

from pathlib import Path

import msgspec.inspect as inspect
import pytest
import yaml

from oplog.errors import UsageError
from tests.unit.tiering.config.bounds import EXAMPLES, NUMBERS, Number, beyond, document
from tiering.config.reading import load


@pytest.mark.parametrize(
    ("path", "number"),
    [(path, number) for path, number, _ in NUMBERS],
    ids=lambda x: ".".join(x) if isinstance(x, tuple) else "",
)
def test_a_number_has_bounds(path: tuple[str, ...], number: Number) -> None:
    assert (number.ge, number.gt) != (None, None), f"{path}: no least value"
    assert (number.le, number.lt) != (None, None), f"{path}: no greatest value"


@pytest.mark.in_turn
@pytest.mark.parametrize(("path", "number", "others"), NUMBERS, ids=[".".join(path) for path, _, _ in NUMBERS])
def test_values_beyond_bounds_are_refused(
    path: tuple[str, ...], number: Number, others: list[dict[str, object]], tmp_path: Path
) -> None:
    for value in beyond(number):
        file = tmp_path / "frostline.yaml"
        file.write_text(yaml.safe_dump(document(path, others, value)))
        with pytest.raises(UsageError, match=path[-1] if path[-1] not in "x0" else path[0]):
            load(file, {})


def test_the_bounds_themselves_are_taken(tmp_path: Path) -> None:
    """Or the test above could pass by refusing all."""
    taken = 0
    for path, number, others in NUMBERS:
        if path[-1] in ("volume_priority", "move_until") or number.ge is None:
            continue
        least = int(number.ge) if isinstance(number, inspect.IntType) else number.ge
        file = tmp_path / "frostline.yaml"
        file.write_text(yaml.safe_dump(document(path, others, least)))
        load(file, {})
        taken += 1
    assert taken > 30


def test_there_are_numbers() -> None:
    assert len(NUMBERS) > 40


@pytest.mark.parametrize("key", ["state_path", "disk"])
@pytest.mark.parametrize("name", ["x" * 256, "x/" * 3000, "\0"], ids=["name", "path", "zero"])
def test_a_path_that_no_file_system_takes_is_refused(tmp_path: Path, key: str, name: str) -> None:
    """I23: before a verb opens the store, so `config validate` says it too."""
    raw = {**EXAMPLES, "state_path": f"/tmp/{name}"}
    if key == "disk":
        raw = {**EXAMPLES, "disks": {"ssd": {"type": "local", "path": f"/tmp/{name}"}}}
    (tmp_path / "frostline.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(UsageError, match="too long"):
        load(tmp_path / "frostline.yaml")
