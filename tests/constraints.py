"""The versions that Frostline is tested with: `python -m tests.constraints` writes `tiering/constraints.txt` for users.

    python -m tests.constraints --check       1 when the file is not that of requirements/dev.txt
    python -m tests.constraints --advisories  asks a database of advisories about the versions: 4 when one is known,
                                              5 when nobody answers

What users install are the dependencies of pyproject.toml, those of its extras, and what these need; tools of developers
are left out. The database is one that speaks OSV's `querybatch`; FROSTLINE_ADVISORIES_URL names another one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
FILE = REPOSITORY / "tiering" / "constraints.txt"
_HEAD = "# The versions that this version of Frostline is tested with: pip install frostline -c constraints.txt\n"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)([^\\\n]*)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_URL = "https://api.osv.dev/v1/querybatch"
_PATIENCE_SECONDS = 20.0
KNOWN, UNREACHABLE = 4, 5


class Pin(NamedTuple):
    """A version of a package; of some packages another one for each Python."""

    name: str
    version: str
    marker: str

    def line(self) -> str:
        return f"{self.name}=={self.version}{self.marker}\n"


def locked(text: str) -> list[Pin]:
    """The packages of a lock file."""
    return [Pin(_plain(name), version, marker.rstrip()) for name, version, marker in _PIN.findall(text)]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(project: Mapping[str, object]) -> set[str]:
    """What users install, by what the packages that are installed here say of themselves."""
    extras = project["optional-dependencies"]
    direct = project["dependencies"]
    assert isinstance(extras, dict)
    assert isinstance(direct, list)
    waiting = [*direct, *(one for extra in extras.values() for one in extra)]
    found: set[str] = set()
    while waiting:
        match = _NAME.match(waiting.pop())
        assert match is not None
        name = _plain(match[0])
        if name in found:
            continue
        found.add(name)
        try:
            waiting += [one for one in requires(name) or () if "extra ==" not in one]
        except PackageNotFoundError:  # of an extra that is not installed here, or of another system
            continue
    return found


def constraints() -> str:
    """The file."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = needed(project)
    pins = locked((REPOSITORY / "requirements" / "dev.txt").read_text())
    return _HEAD + "".join(sorted(pin.line() for pin in pins if pin.name in names))


def advisories(pins: Sequence[Pin], url: str) -> dict[str, list[str]]:
    """Package and version -> the advisories about it. Raises `OSError` or `ValueError` when nobody answers that."""
    queries = [{"package": {"name": pin.name, "ecosystem": "PyPI"}, "version": pin.version} for pin in pins]
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
        results = json.loads(answer.read())["results"]
    if len(results) != len(pins):
        raise ValueError(f"{len(results)} answers to {len(pins)} questions")
    known = ((pin, [one["id"] for one in result.get("vulns", ())]) for pin, result in zip(pins, results, strict=True))
    return {f"{pin.name} {pin.version}": ids for pin, ids in known if ids}


def audit(url: str) -> int:
    """Print what is known of the versions in the file."""
    pins = locked(FILE.read_text())
    try:
        found = advisories(pins, url)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"audit: {url} did not answer about {len(pins)} versions: {error}", file=sys.stderr)
        print("  it needs a network; FROSTLINE_ADVISORIES_URL names a database within yours", file=sys.stderr)
        return UNREACHABLE
    for package, ids in found.items():
        print(f"{package}: {', '.join(ids)}")
    print(f"{len(pins)} versions, {len(found)} with known advisories.")
    return KNOWN if found else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constraints", description="Versions for users.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--advisories", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.advisories:
        return audit(os.environ.get("FROSTLINE_ADVISORIES_URL", _URL))
    text = constraints()
    if chosen.check:
        if FILE.read_text() != text:
            print(f"{FILE.relative_to(REPOSITORY)} is not that of requirements/dev.txt: make lock", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
