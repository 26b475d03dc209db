"""Draws the packages and their folders from the imports: the generated half of `docs/architecture.md`.

Reads the sources and runs none of them. An arrow goes from what imports to what is imported, wherever in a file the
import stands. What a longer way of arrows says is left out; the tables name every import.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

BEGIN, END = "<!-- From here on drawn by `make generate`; do not edit. -->\n", "<!-- Drawn until here. -->\n"

Arrows = Mapping[str, set[str]]
"""Who imports -> what."""


def with_picture(text: str, root: Path) -> str:
    """The page with a new picture between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{picture(root)}\n\n{END}{after}"


def picture(root: Path) -> str:
    """The packages below `root`: one picture of all, then of each a picture and a table."""
    packages = packages_of(root)
    modules = {name: path for package in packages for name, path in modules_of(root, package)}
    imports = {name: set(imports_of(path, name, modules)) for name, path in modules.items()}
    lines = ["## The packages\n", *_flowchart(_between(imports, depth=1), packages)]
    rooms = _between(imports, depth=2)
    for package in packages:
        inside = sorted(room for room in rooms if room.startswith(f"{package}."))
        arrows = {room: {other for other in rooms[room] if other in inside} for room in inside}
        lines += [f"\n## {package}\n", f"{_summary(modules[package])}\n", *_flowchart(arrows, inside)]
        lines += ["", "| | what it is for, and what it may touch | from other packages |", "|---|---|---|"]
        for name in sorted(modules):
            if name in inside or (name.startswith(f"{package}.") and modules[name].name == "__init__.py"):
                others = {_room(other) for other in rooms.get(name, ()) if not other.startswith(f"{package}.")}
                shown = ", ".join(sorted(others))
                lines.append(f"| {_path(name, modules[name])} | {_summary(modules[name])} | {shown} |")
    return "\n".join(lines)


def packages_of(root: Path) -> list[str]:
    """From the top down, as the first contract has them."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [package.strip() for layer in contracts[0]["layers"] for package in layer.split("|")]


def modules_of(root: Path, package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path, name: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that the file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names):
                wanted = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                wanted = [
                    f"{module}.{alias.name}" if f"{module}.{alias.name}" in modules else module for alias in names
                ]
            case _:
                continue
        yield from (one for one in wanted if one in modules and one != name)


def _between(imports: Arrows, *, depth: int) -> dict[str, set[str]]:
    """The imports of the first `depth` steps of the names; those within one are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in imports.items():
        here = _cut(name, depth)
        if here is not None:
            found[here] |= {there for other in others if (there := _cut(other, depth)) not in (None, here)}
    return found


def _cut(name: str, depth: int) -> str | None:
    """None for the package's own `__init__`, where its folders are asked for."""
    steps = name.split(".")
    return ".".join(steps[:depth]) if len(steps) >= depth else None


def _flowchart(arrows: Arrows, names: Sequence[str]) -> list[str]:
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"  {_node(name)}[{name.rpartition('.')[2]}]" for name in names]
    for name in names:
        lines += [f"  {_node(name)} --> {_node(other)}" for other in sorted(_direct(arrows, name))]
    return [*lines, "```"]


def _direct(arrows: Arrows, name: str) -> set[str]:
    """What is imported and is not below something else that is imported, too."""
    near = arrows.get(name, set())
    return {other for other in near if not any(other in _below(arrows, between) for between in near - {other})}


def _below(arrows: Arrows, name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = arrows.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _node(name: str) -> str:
    """`end` and the like mean something to mermaid."""
    return name.replace(".", "_")


def _room(name: str) -> str:
    """Of the log, which everybody reads, only the package counts."""
    return "oplog" if name.startswith("oplog.") and name != "oplog.clickhouse" else name


def _path(name: str, path: Path) -> str:
    return f"`{name.replace('.', '/')}{'/' if path.name == '__init__.py' else '.py'}`"


def _summary(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")
