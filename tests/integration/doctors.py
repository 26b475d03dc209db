"""`frostline doctor` on a home, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disks.stores.s3 import store as s3
from tests.servers import Server
from tiering.cli import main as cli


class Doctor:
    """Runs `frostline doctor` on a bucket of a server and gives back the findings of disk `s3` by their check."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, server: Server, bucket: str, *arguments: str, code: int = 0, **more: str) -> dict[str, Any]:
        settings = {"URL": f"s3://{bucket}/some/prefix/", "ENDPOINT_URL": server.endpoint_url, "RETRY_SECONDS": "1"}
        settings |= {name.upper(): value for name, value in more.items()}
        for name, value in settings.items():
            self._monkeypatch.setenv(f"FROSTLINE_DISKS__S3__{name}", value)
        self._monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        self._monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        return self.findings("s3", *arguments, code=code)

    def findings(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        self._capsys.readouterr()
        actual = cli.run(["doctor", *arguments, "--json"])
        captured = self._capsys.readouterr()
        assert actual == code, captured.out + captured.err
        document = json.loads(captured.out)
        assert document["ok"] == (code == 0)
        return {finding["check"]: finding for finding in document["findings"]}


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    monkeypatch.setattr(s3, "_probed", {})
    return Doctor(capsys, monkeypatch)


def levels(findings: dict[str, Any]) -> dict[str, str]:
    return {check: finding["level"] for check, finding in findings.items() if finding["level"] != "ok"}
