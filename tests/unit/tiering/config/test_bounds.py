"""Every number of the configuration has a least and a greatest value, and what is beyond them is refused by name.

The keys are those of the model itself, so that a new one is tried as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec.inspect as inspect
import pytest
import yaml

from oplog.errors import UsageError
from tiering.config.reading import load
from tiering.config.settings import Config

Number = inspect.IntType | inspect.FloatType
EXAMPLES: dict[str, object] = {  # the least that a store needs
    "state_path": "/tmp/state",
    "disks": {"ssd": {"type": "local", "path": "/tmp/ssd"}},
    "policies": {"p": {"volumes": [{"name": "hot", "disks": ["ssd"]}]}},
}
NEEDED: dict[str, dict[str, object]] = {
    "VolumeConfig": {"name": "hot", "disks": ["ssd"]},
    "IngestConfig": {"table": "d.t", "files": ["a.csv"]},
}
NEEDED |= {"LocalDiskConfig": {"type": "local", "path": "/tmp/x"}}
NEEDED |= {"HookConfig": {"command": ["true"]}}
NEEDED |= {"PolicyConfig": {"volumes": [{"name": "hot", "disks": ["ssd"]}]}}
NEEDED |= {"ObjectDiskConfig": {"type": "object_disk", "url": "s3://bucket/prefix/"}}


NAMES = {"daemon.jobs": "gc", "prices.disks": "ssd"}
"""What a mapping has as keys, where not every name will do."""


def numbers(
    kind: inspect.Type, path: tuple[str, ...], needed: dict[str, object]
) -> Iterator[tuple[tuple[str, ...], Number, list[dict[str, object]]]]:
    """Each number below a type: its path, what it is, and what the mappings on the way need besides."""
    match kind:
        case inspect.StructType():
            own = NEEDED.get(kind.cls.__name__, {})
            for field in kind.fields:
                for below, number, others in numbers(field.type, (*path, field.encode_name), own):
                    yield below, number, [own, *others]
        case inspect.UnionType():
            for option in kind.types:
                yield from numbers(option, path, needed)
        case inspect.DictType():
            for below, number, others in numbers(kind.value_type, (*path, NAMES.get(".".join(path), "x")), {}):
                yield below, number, [{}, *others]
        case inspect.VarTupleType():
            for below, number, others in numbers(kind.item_type, (*path, "0"), {}):
                yield below, number, [{}, *others]
        case inspect.IntType() | inspect.FloatType():
            yield path, kind, []
        case _:
            pass


NUMBERS = list(numbers(inspect.type_info(Config), (), {}))


def document(path: tuple[str, ...], others: list[dict[str, object]], value: object) -> dict[str, object]:
    """The configuration that has this value at this path, and nothing else that is not needed."""
    inner: object = value
    for step, beside in reversed(list(zip(path, others, strict=True))):
        inner = [inner] if step == "0" else {**beside, step: inner}
    assert isinstance(inner, dict)
    both = {key: {**EXAMPLES[key], **inner[key]} for key in ("disks", "policies") if key in inner}  # type: ignore[dict-item]
    return {**EXAMPLES, **inner, **both}


def beyond(number: Number) -> Iterator[float]:
    least = number.ge if number.ge is not None else number.gt
    greatest = number.le if number.le is not None else number.lt
    assert least is not None
    assert greatest is not None
    yield least if number.gt is not None else least - 1
    yield greatest if number.lt is not None else greatest * 2 + 1
    yield from (float("nan"), float("inf"), 10**400)


@pytest.mark.parametrize(
    ("path", "number"),
    [(path, number) for path, number, _ in NUMBERS],
    ids=lambda x: ".".join(x) if isinstance(x, tuple) else "",
)
def test_a_number_has_bounds(path: tuple[str, ...], number: Number) -> None:
    assert (number.ge, number.gt) != (None, None), f"{path}: no least value"
    assert (number.le, number.lt) != (None, None), f"{path}: no greatest value"


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
    with pytest.raises(UsageError, match="too long, or has a zero byte"):
        load(tmp_path / "frostline.yaml")
