"""A connection of ZooKeeper's own client, as the configuration says. Only `client` uses it."""

from __future__ import annotations

import logging

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tiering.config.settings import KeeperConfig

_said = logging.getLogger(f"{__name__}.said")
_said.setLevel(logging.WARNING)  # below it are requests with what they carry


def _as_detail(record: logging.LogRecord) -> bool:
    """Log messages of kazoo are details: the error of the call says what they mean for the caller."""
    if record.levelno <= logging.WARNING:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(__name__).isEnabledFor(logging.DEBUG)
    return True


_said.addFilter(_as_detail)


def unconnected(settings: KeeperConfig) -> KazooClient:
    """A client that knows nothing of the past, not started yet."""
    return KazooClient(
        ",".join(settings.hosts),
        timeout=settings.session_timeout_seconds,
        auth_data=[("digest", f"{settings.user}:{settings.password}")] if settings.user else None,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
        use_ssl=settings.tls,
        ca=settings.ca_bundle,
        certfile=settings.certificate,
        keyfile=settings.certificate_key,
        check_hostname=settings.tls and settings.check_host,
        logger=_said,
    )
