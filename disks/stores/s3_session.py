"""How to reach a bucket: endpoint, region, credentials and certificates, resolved once as every AWS tool does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from disks.config import DiskConfig
from disks.stores.base import S3Connection
from disks.stores.s3_errors import S3Place, no_credentials
from disks.stores.s3_requests import Credentials, S3Requests
from oplog.errors import AccessDenied, UsageError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from obstore.store import S3Store as ObstoreS3

_CREDENTIALS_TTL = timedelta(minutes=5)


@lru_cache(maxsize=1)
def _loader() -> Any:
    """boto3's description of S3 is a large JSON file: parsed once a process, not once a store."""
    import botocore.session

    return botocore.session.get_session().get_component("data_loader")


@dataclass(frozen=True)
class S3Session:
    """The three clients of one bucket, made when first needed; nothing is sent and no file is read before that.

    Credentials come from the disk's configuration, else from the standard chain (environment, profile, role, instance),
    which refreshes them. Retries are off in all three: they belong to `disks.stores.retry`.
    """

    bucket: str
    prefix: str
    place_name: str
    config: DiskConfig = field(repr=False)

    @cached_property
    def _session(self) -> Any:
        import botocore.session

        session = botocore.session.get_session()
        session.register_component("data_loader", _loader())
        if self.config.access_key_id and self.config.secret_access_key:
            session.set_credentials(self.config.access_key_id, self.config.secret_access_key)
        return session

    @cached_property
    def region(self) -> str:
        configured = self.config.region or os.environ.get("AWS_REGION")
        return configured or self._session.get_config_variable("region") or "us-east-1"

    @cached_property
    def endpoint_url(self) -> str:
        """The server without the bucket."""
        url = str(self.client.meta.endpoint_url).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"endpoint_url must begin with http:// or https://: {url}")
        return url

    @property
    def is_aws(self) -> bool:
        """AWS itself, whose promises are known and need no probe."""
        host = urlsplit(self.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    @cached_property
    def place(self) -> S3Place:
        return S3Place(self.place_name, self.bucket, self.endpoint_url)

    @property
    def bucket_url(self) -> str:
        if self.config.addressing_style == "path":
            return f"{self.endpoint_url}/{self.bucket}"
        parts = urlsplit(self.endpoint_url)
        return f"{parts.scheme}://{self.bucket}.{parts.netloc}{parts.path}"

    @cached_property
    def _refreshing_credentials(self) -> Any:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise no_credentials(S3Place(self.place_name, self.bucket, self.config.endpoint_url or ""))
        return credentials

    def credentials(self) -> Credentials:
        """Credentials that are good now."""
        from botocore.exceptions import BotoCoreError

        try:
            frozen: Credentials = self._refreshing_credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise AccessDenied(
                f"could not refresh the credentials for {self.place_name}: {type(error).__name__}",
                hint="log in again (for instance `aws sso login`) or check the role",
            ) from error
        return frozen

    @cached_property
    def client(self) -> S3Client:
        """boto3, for the control plane."""
        from botocore.config import Config

        settings = Config(
            region_name=self.region,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": self.config.addressing_style},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=64,
        )
        client: S3Client = self._session.create_client("s3", config=settings, endpoint_url=self.config.endpoint_url)
        return client

    @cached_property
    def requests(self) -> S3Requests:
        """Our own signed requests, for puts and listings."""
        from botocore.httpsession import get_cert_path
        from botocore.utils import get_environ_proxies

        url = self.bucket_url
        proxies = get_environ_proxies(url)
        return S3Requests(
            self.place,
            bucket_url=url,
            prefix=self.prefix,
            region=self.region,
            credentials=self.credentials,
            ca_bundle=self._session.get_config_variable("ca_bundle") or get_cert_path(True),
            proxy_url=proxies.get(urlsplit(url).scheme),
        )

    @cached_property
    def reader(self) -> ObstoreS3:
        """obstore, for gets: it releases the GIL."""
        from obstore.store import S3Store as ObstoreS3

        def provide() -> dict[str, Any]:
            now = self.credentials()
            return {
                "access_key_id": now.access_key,
                "secret_access_key": now.secret_key,
                "token": now.token,
                "expires_at": datetime.now(UTC) + _CREDENTIALS_TTL,
            }

        self.credentials()  # so that missing ones are said in our words: obstore calls `provide` out of our sight
        virtual = self.config.addressing_style == "virtual"
        return ObstoreS3(
            self.bucket,
            endpoint=self.bucket_url if virtual else self.endpoint_url,
            region=self.region,
            virtual_hosted_style_request=virtual,
            skip_signature=False,
            credential_provider=provide,  # type: ignore[arg-type]
            client_options={
                "allow_http": self.endpoint_url.startswith("http://"),
                "timeout": timedelta(hours=1),
                "read_timeout": timedelta(seconds=60),
                "connect_timeout": timedelta(seconds=10),
                "pool_max_idle_per_host": "64",
            },
            retry_config={"max_retries": 0},
        )

    @property
    def connection(self) -> S3Connection:
        credentials = self.credentials()
        return S3Connection(
            bucket=self.bucket,
            region=self.region,
            endpoint_url=None if self.is_aws else self.endpoint_url,
            access_key_id=credentials.access_key,
            secret_access_key=credentials.secret_key,
            session_token=credentials.token,
            virtual_host_style=self.config.addressing_style == "virtual",
        )
