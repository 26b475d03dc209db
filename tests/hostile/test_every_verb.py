"""No verb answers input with a traceback or the word "unexpected", runs on, or ends with an exit code of its own (I24).

The verbs are those of the command line's own tree and the keys those of the configuration's own model, so that a new
one is tried as well. `make hostile-verbs` tries many more.
"""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path

import pytest

from tests.command_line import Frostline
from tests.hostile import verbs
from tests.unit.tiering.config.bounds import NUMBERS, beyond, document

SEED = int(os.environ.get("FROSTLINE_HOSTILE_SEED", "1"))
CAUSES = {
    "a device without an end": ["apply", "-n", "/dev/full"],
    "a configuration without an end": ["status", "--config", "/dev/zero"],
    "a configuration that is a pipe of nobody": ["status", "--config", "files/fifo.csv"],
    "a plan that is a pipe of nobody": ["apply", "files/fifo.csv"],
    "a deep plan": ["apply", "files/deep.json"],
    "a number of 5,000 digits": ["move", "d.t", "-j", "9" * 5000],
    "a name that is too long": ["disks", "--config", "ä" * 300],
    "a directory of the demo that is a file": ["demo", "files/good.csv"],
    "a name that is not UTF-8, in JSON": ["table", "show", os.fsdecode(b"\xff"), "--json"],
    "a size of 5,000 digits": ["disks", "--bwlimit", "9" * 5000],
    "a statement that is not UTF-8": ["query", os.fsdecode(b"select \xff")],
    "a link to itself": ["table", "create", "d.x", "--like", "files/loop.csv", "--order-by", "k"],
    "a deep sample": ["table", "create", "d.x", "--like", "files/objects.json", "--order-by", "k"],
}


@pytest.fixture
def files(frostline: Frostline) -> list[str]:
    made = verbs.hostile_files(Path("files"))
    verbs.prepare()
    return made


@pytest.mark.in_turn
@pytest.mark.parametrize("arguments", CAUSES.values(), ids=CAUSES)
def test_what_was_no_answer(files: list[str], arguments: list[str]) -> None:
    assert verbs.wrong_with(arguments) == ""


@pytest.mark.in_turn
def test_every_verb_with_hostile_arguments(files: list[str]) -> None:
    every = verbs.verbs()
    assert len(every) > 90
    for arguments in islice(verbs.examples(SEED, files), len(every)):
        assert verbs.wrong_with(arguments) == "", arguments


@pytest.mark.slow
def test_every_verb_with_many_hostile_arguments(files: list[str]) -> None:
    faults = {}
    for arguments in islice(verbs.examples(SEED + 1, files), 20 * len(verbs.verbs())):
        if wrong := verbs.wrong_with(arguments):
            faults[wrong] = arguments
    assert not faults


@pytest.mark.in_turn
def test_every_number_of_the_settings_beyond_its_bounds(files: list[str]) -> None:
    """`tests/unit/tiering/config/test_bounds.py` looks at the words."""
    import yaml

    chance = random.Random(SEED)
    for path, number, others in chance.sample(NUMBERS, 12):
        for value in [*beyond(number), 10**400, "[" * 300]:
            Path("bad.yaml").write_text(yaml.safe_dump(document(path, others, value)))
            assert verbs.wrong_with(["config", "validate", "--config", "bad.yaml"]) == "", (path, value)
