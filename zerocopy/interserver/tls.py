"""TLS between replicas, where each shows a certificate: who has none of the authority is refused by the other."""

from __future__ import annotations

import ssl

from oplog.errors import UsageError
from tiering.config.settings import InterserverConfig


def for_server(settings: InterserverConfig) -> ssl.SSLContext | None:
    """What a replica gives parts by; None where it speaks plain HTTP. Raises `UsageError` for files that cannot be
    read."""
    return _made(settings, ssl.Purpose.CLIENT_AUTH)


def for_client(settings: InterserverConfig) -> ssl.SSLContext | None:
    """What it fetches by. The other one's certificate must name the address by which it is reached."""
    return _made(settings, ssl.Purpose.SERVER_AUTH)


def _made(settings: InterserverConfig, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    try:
        context = ssl.create_default_context(purpose, cafile=settings.ca_bundle)
        context.load_cert_chain(settings.certificate, settings.certificate_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificates of interserver cannot be used: {error}",
            hint="see interserver.certificate, certificate_key and ca_bundle of the configuration",
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
