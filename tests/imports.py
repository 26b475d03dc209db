"""What of the imports no contract of `pyproject.toml` sees: circles between modules, and modules above that are named.

An import counts wherever it stands: in a function, where it is there for a quick start, and below `TYPE_CHECKING`.
`tiering/plugins.py` names modules above, which is what it is for; nothing else does.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.tools import architecture
from tests.tools.architecture import imports_of, modules_of, packages_of

PUBLIC = "frostline"
"""The public module. It stands above all, and loads what it names when Python asks it for an attribute: by name."""
PLUGS = "tiering.plugins"
_BY_NAME = frozenset({"import_module", "__import__", "resolve_name", "run_module"})
_NAMED = re.compile(r"(\w+(?:\.\w+)+)\.?(?::[\w.]*)?", re.ASCII)

Graph = Mapping[str, set[str]]
"""Who imports -> what."""


def sources(root: Path) -> dict[str, Path]:
    """Every module of the product -> its file."""
    found = {name: path for package in packages_of(root) for name, path in modules_of(root, package)}
    return {**found, PUBLIC: root / f"{PUBLIC}.py"}


def imports(root: Path) -> dict[str, set[str]]:
    """What each module of the product imports of the others."""
    modules = sources(root)
    return {name: set(imports_of(path, name, modules)) for name, path in modules.items()}


def folders(graph: Graph) -> dict[str, set[str]]:
    """The same of packages and of their folders: the first two steps of names. What a package says of itself in its
    `__init__` is no folder's."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        for depth in (1, 2):
            here = _cut(name, depth)
            found.setdefault(here, set()).update(_cut(other, depth) for other in others)
            found[here].discard(here)
    return found


def _cut(name: str, depth: int) -> str:
    steps = name.split(".")
    return ".".join(steps[:depth]) if len(steps) >= depth else f"{name}.__init__"


def circles(graph: Graph) -> list[list[str]]:
    """Those that reach one another, each list sorted."""
    left = dict(graph)
    while ends := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in ends}
    reached = {name: architecture.reached(left, name) for name in left}
    found = {frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in left}
    return sorted(sorted(circle) for circle in found if circle)


def upward_names(root: Path) -> list[str]:
    """Where a text names a module of a layer above, as `package.module`, `package.module:function` or the start of a
    name that is put together; and where something is imported by name at all."""
    modules, layers = sources(root), list(_layers(root))
    begins = "|".join({name.partition(".")[0] for name in modules})
    may_name = re.compile(rf"""["'}}](?:{begins})\.|{"|".join(_BY_NAME)}""")  # few files do: only these are parsed
    found: list[str] = []
    for name, path in modules.items():
        text = path.read_text()
        if name == PLUGS or may_name.search(text) is None:
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            where = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Constant(value=str(value)) if (other := _named(value, modules)) is not None:
                    if any(_is_above(other, name, ranks) for ranks in layers):
                        found.append(f"{where} names {other}, which stands above")
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.alias(name=word) if (
                    word in _BY_NAME and name != PUBLIC
                ):
                    found.append(f"{where} imports by name: {word}")
    return found


def _named(text: str, modules: Mapping[str, Path]) -> str | None:
    """The module that a text names: itself, or where an attribute is that it names."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return None
    whole = match[1]
    above = whole.rpartition(".")[0]
    return whole if whole in modules else above if "." in above and above in modules else None


def _layers(root: Path) -> Iterator[dict[str, int]]:
    """Of each contract about layers: name -> how high it stands."""
    for contract in tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", [""]) if contract.get("layers") else ():
            yield {
                ".".join(filter(None, (container, one.strip()))): -depth
                for depth, layer in enumerate(contract["layers"])
                for one in layer.split("|")
            }


def _is_above(other: str, name: str, ranks: Mapping[str, int]) -> bool:
    """Whether it stands higher, or beside: neither may be imported."""
    there, here = (next((layer for layer in ranks if f"{one}.".startswith(f"{layer}.")), None) for one in (other, name))
    return there is not None and here is not None and there != here and ranks[there] >= ranks[here]
