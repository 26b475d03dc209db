"""`config validate` names the files of certificates and keys that cannot be read (I23)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.certificates import made
from tests.homes import Home
from tiering.config.checks import FILE_KEYS


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("certificates")) / "ca.pem"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "a", capsys)
    home.create()
    return home


def configure(home: Home, section: str, files: dict[str, Path]) -> None:
    document = yaml.safe_load(home.configuration.read_text())
    holder = document["disks"]["s3"] if section == "disks.s3" else document.setdefault(section, {})
    holder.update({key: str(file) for key, file in files.items()})
    if section == "keeper":
        holder["tls"] = True
    home.configuration.write_text(yaml.safe_dump(document))


KEYS = [(section, key) for section in ("keeper", "interserver") for key in FILE_KEYS] + [("disks.s3", "ca_bundle")]


@pytest.mark.parametrize("kind", ["missing", "directory", "no certificates"])
@pytest.mark.parametrize(("section", "key"), KEYS)
def test_a_file_that_cannot_be_read_is_named(home: Home, good: Path, section: str, key: str, kind: str) -> None:
    """With its key and the configuration. Verbs that need none of them go on."""
    bad = home.path / "bad.pem"
    if kind == "directory":
        bad.mkdir()
    elif kind == "no certificates":
        bad.write_text("nothing")
    files = dict.fromkeys(FILE_KEYS if section != "disks.s3" else ("ca_bundle",), good)
    configure(home, section, files)
    home("config", "validate")
    configure(home, section, {**files, key: bad})
    home("disks")
    if kind == "no certificates" and key != "ca_bundle":  # what such a file holds is seen where it is used
        return
    home("config", "validate", code=2)
    for named in (f"{section}.{key}", str(home.configuration), str(bad)):
        assert named in home.error
