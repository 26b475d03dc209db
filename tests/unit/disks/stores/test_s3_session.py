"""What is said of an S3 endpoint holds no password, wherever it came from."""

from __future__ import annotations

import pytest

from disks.config import ObjectDiskConfig
from disks.stores.s3.session import S3Session, without_credentials

WITH_PASSWORD = "http://user:pw123@127.0.0.1:1/base/"


def session(endpoint_url: str | None) -> S3Session:
    config = ObjectDiskConfig(url="s3://b/", endpoint_url=endpoint_url)
    return S3Session("b", "", "s3://b/", config)


@pytest.mark.parametrize("by_environment", [False, True])
def test_no_password_of_an_endpoint_is_ever_said(by_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", WITH_PASSWORD)
    known = session(None if by_environment else WITH_PASSWORD)
    assert known.endpoint_url == "http://127.0.0.1:1/base"
    assert "pw123" not in f"{known.location} {known.bucket_url} {known} {known.client.meta.endpoint_url}"


@pytest.mark.parametrize("url", ["http://host:1/", "https://h/@x", "http://[::1]:9000"])
def test_other_urls_stay(url: str) -> None:
    assert without_credentials(url) == url
