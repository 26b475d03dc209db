"""The JSON of verbs has the fields of its struct, and no others; so has the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tests.homes import Home
from tests.tools.shapes import SHAPES, fields_of, shape, with_shapes
from tiering.cli.frame.output import Output
from tiering.facts.moves import CostedMove
from tiering.policy.cost import Cost
from tiering.policy.plan import Reason

_VERBS = {
    "parts": ("parts",),
    "disks": ("disks",),
    "table list": ("table", "list"),
    "policies": ("policies",),
    "du": ("du",),
    "plan": ("plan", "--at", "2040-01-01"),
    "move": ("move", "d.t", "--partition", "all", "--to-disk", "s3", "--dry-run"),
    "merge": ("merge", "d.t", "--dry-run"),
    "gc": ("gc", "s3"),
    "tick": ("tick", "--dry-run"),
    "cost": ("cost", "--what-if", "hot_cold"),
    "moves list": ("moves", "list"),
    "disk drain": ("disk", "drain", "s3", "--dry-run"),
    "log": ("log", "s3"),
    "diff": ("diff", "s3", "0", "1", "--files"),
    "partition list": ("partition", "list", "d.t"),
    "fsck": ("fsck",),
    "status": ("status",),
    "top": ("top",),
    "metrics": ("metrics",),
    "replica list": ("replica", "list"),
}


def differences(value: Any, kind: Any, path: str = "") -> list[str]:
    """Where the JSON has other keys than the type."""
    if isinstance(value, list):
        inside = next(iter(get_args(kind)), None)
        return [text for entry in value for text in differences(entry, inside, f"{path}[]")]
    if not isinstance(value, dict):
        return []
    if isinstance(kind, dict):
        fields = {name: (inside, False) for name, inside in kind.items()}
    else:
        structs = _structs(kind)
        if not structs:
            return []
        each = [_differences(value, fields_of(struct), path) for struct in structs]
        return min(each, key=len)
    return _differences(value, fields, path)


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for inside in get_args(kind) for struct in _structs(inside)] if "|" in str(kind) else []


def _differences(value: dict[str, Any], fields: dict[str, tuple[Any, bool]], path: str) -> list[str]:
    lacking = [f"{path}.{name} lacks" for name, (_, may_lack) in fields.items() if not may_lack and name not in value]
    more = [f"{path}.{name} is no field" for name in value if name not in fields]
    inside = [
        text
        for name, entry in value.items()
        if name in fields
        for text in differences(entry, fields[name][0], f"{path}.{name}")
    ]
    return lacking + more + inside


@pytest.mark.in_turn
def test_json_has_the_fields_of_its_struct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "a", capsys)
    home.create()
    home.insert(1, 2)
    home.to_bucket()
    home.insert(3)
    for verb, words in _VERBS.items():
        document = json.loads(home(*words, "--json"))
        assert differences(document, SHAPES[verb]) == [], verb


@pytest.mark.in_turn
def test_the_page_is_written_by_verb() -> None:
    rows = "\n".join(f"| `{verb}`{', `x`' * (verb == 'move')} | `{{before}}`; words |" for verb in SHAPES)
    page = with_shapes(rows)
    assert f"| `move`, `x` | `{shape('move')}`; words |" in page
    assert "before" not in page.replace('"before"', "").replace("before_price", "")
    with pytest.raises(KeyError, match="parts"):
        with_shapes(rows.replace("`parts`", "`pieces`"))


def test_what_is_beside_a_row_changes_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Names as JSON has them, and no field that is unset."""
    reason = Reason("ttl", "due")
    move = CostedMove(
        table="d.t", table_uuid="u", part="p", source="ssd", target="s3", bytes=1, reason=reason, cost=Cost()
    )
    output = Output(json=True)
    output.document(move)
    alone = json.loads(capsys.readouterr().out)
    output.beside["unreachable"] = ["s3"]
    output.document(move)
    assert json.loads(capsys.readouterr().out) == {**alone, "unreachable": ["s3"]}
    assert (alone["from"], alone["to"]) == ("ssd", "s3")
