"""Every number of the configuration, with values beyond its bounds."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec.inspect as inspect

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
