"""Where the state of a configuration lies that is broken: whoever asks a daemon finds it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiering.config.reading import state_directory_of


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("state_path: kept\ndaemon: {gc_seconds: never}", "kept"),
        ("{state_path: kept, limits: {workers: -1}}", "kept"),
        ("disks: ][\nstate_path: kept  # its place\n", "kept"),
        ("disks: ][\nstate_path: '/srv/the place'\n", "/srv/the place"),
        ('disks: ][\n  state_path: of another thing\nstate_path:\t"kept"', "kept"),
        ("limits: {workers: none}", "home/state"),
    ],
)
def test_it_is_found_in_what_is_no_configuration(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "frostline.yaml"
    file.write_text(text)
    assert state_directory_of(file, {"FROSTLINE_HOME": str(tmp_path / "home")}) == tmp_path / where


@pytest.mark.parametrize(
    "text", ["state_path: [a, b]", "disks: ][\nstate_path: |\n  kept", "state_path: 7", "- a", "]["]
)
def test_what_says_nothing_readable_is_taken_for_the_default(tmp_path: Path, text: str) -> None:
    file = tmp_path / "frostline.yaml"
    file.write_text(text)
    assert state_directory_of(file, {"FROSTLINE_HOME": str(tmp_path)}) == tmp_path / "state"


def test_the_environment_is_first_and_a_lost_file_says_nothing(tmp_path: Path) -> None:
    environment = {"FROSTLINE_CONFIG": str(tmp_path / "frostline.yaml"), "FROSTLINE_STATE_PATH": "here"}
    assert state_directory_of(None, environment) is None
    (tmp_path / "frostline.yaml").write_text("state_path: there")
    assert state_directory_of(None, environment) == tmp_path / "here"
