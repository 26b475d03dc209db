"""An authority of our own and what it signs, for servers on loopback that speak TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

_NAMES = "subjectAltName={}\nbasicConstraints=CA:FALSE\n"
_HERE = "IP:127.0.0.1,DNS:localhost"


def made(place: Path, *, days: int = 2, names: str = _HERE) -> Path:
    """In the directory, the authority as `ca.pem`, and what it signed for these names as `server.pem`, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    (place / "names").write_text(_NAMES.format(names))
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-authority -keyout ca.key -out ca.pem"
        " -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
        f"x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -extfile names"
        " -out server.crt",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    (place / "server.pem").write_bytes((place / "server.crt").read_bytes() + (place / "server.key").read_bytes())
    return place


def self_signed(place: Path) -> Path:
    """One that vouches for itself, which is what most people begin with."""
    made(place)
    command = f"req -x509 -key server.key -days 2 -subj /CN=localhost -out server.crt -addext subjectAltName={_HERE}"
    subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    (place / "server.pem").write_bytes((place / "server.crt").read_bytes() + (place / "server.key").read_bytes())
    (place / "ca.pem").write_bytes((place / "server.crt").read_bytes())
    return place


def context(place: Path) -> ssl.SSLContext:
    """What a server needs that shows `server.pem`."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(place / "server.pem")
    return made
