"""`doctor` names what the network shows of replicas also while Keeper does not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.homes import Home


def test_doctor_names_exposures_while_keeper_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "a", capsys)
    home.create()
    document = yaml.safe_load(home.configuration.read_text())
    document["keeper"] = {"hosts": ["127.0.0.1:1"], "user": "u", "password": "p", "request_timeout_seconds": 0.2}
    document["interserver"] = {"secret": "s" * 20, "host": "0.0.0.0"}
    home.configuration.write_text(json.dumps(document))
    checks = {one["check"] for one in home.json("doctor", code=4)["findings"]}
    assert {"session", "keeper-password", "plain-http"} <= checks
