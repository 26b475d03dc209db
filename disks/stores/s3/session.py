"""How to reach a bucket: endpoint, region, credentials and certificates, resolved once as every AWS tool does."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from disks.config import ObjectDiskConfig
from disks.stores.base import S3Connection
from disks.stores.s3.answers import KINDS, S3Request, checked
from disks.stores.s3.errors import S3Place, no_credentials
from disks.stores.s3.requests import Credentials, S3Requests
from disks.stores.s3.settings import BotoDict
from oplog.errors import AccessDenied, UsageError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_RENEWED_LATELY_SECONDS = 5.0
"""Workers that all find the same token expired renew it once."""
_renewing = threading.Lock()
_ASKED = "frostline_asked"
"""Where the context of a request of boto3 holds what was asked."""


@lru_cache(maxsize=1)
def _loader() -> Any:
    """boto3's description of S3 is a large JSON file: parsed once a process, not once a store."""
    import botocore.session

    return botocore.session.get_session().get_component("data_loader")


@dataclass(slots=True)
class _StaticCredentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)


def _remember_asked(params: BotoDict, context: BotoDict, **_: object) -> None:
    """For the check of the answer."""
    context[_ASKED] = params


def _endpoint_of_environment() -> str | None:
    """As the AWS tools read it, except where a configuration file may say that it is to be ignored."""
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not url or os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        return None
    try:
        file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
        return None if "ignore_configured_endpoint_urls" in file.read_text() else url
    except FileNotFoundError:
        return url
    except (OSError, ValueError, RuntimeError):
        return None


def without_credentials(url: str) -> str:
    """The URL without a user and a password: S3 takes none there, and every message names the server."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else url


@dataclass(frozen=True)
class S3Session:
    """The two clients of one bucket, made when first needed; nothing is sent and no file is read before that.

    Importing boto3's machinery and parsing its description of S3 takes longer than most commands: what needs neither
    (an endpoint and keys that are given, puts, gets, listings) does without.

    Credentials come from the disk's configuration, else from the standard chain (environment, profile, role, instance),
    which refreshes them. Retries are off in both: they belong to `disks.stores.wrappers.retry`.
    """

    bucket: str
    prefix: str
    place_name: str
    config: ObjectDiskConfig = field(repr=False)

    @cached_property
    def _session(self) -> Any:
        import botocore.session

        session = botocore.session.get_session()
        session.register_component("data_loader", _loader())
        if self.config.access_key_id and self.config.secret_access_key:
            session.set_credentials(self.config.access_key_id, self.config.secret_access_key, self.config.session_token)
        return session

    @cached_property
    def region(self) -> str:
        configured = self.config.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return configured or self._session.get_config_variable("region") or "us-east-1"

    @cached_property
    def endpoint_url(self) -> str:
        """The server without the bucket."""
        url = (self._given_endpoint or self._endpoint_of_client()).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"endpoint_url must begin with http:// or https://: {url}")
        return url

    @property
    def _given_endpoint(self) -> str | None:
        """What the configuration or the environment names; boto3 puts it into its errors."""
        given = self.config.endpoint_url or _endpoint_of_environment()
        return without_credentials(given) if given else None

    def _endpoint_of_client(self) -> str:
        return str(self.client.meta.endpoint_url)

    @cached_property
    def is_aws(self) -> bool:
        """AWS itself, whose promises are known and need no probe."""
        host = urlsplit(self.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    @cached_property
    def location(self) -> S3Place:
        virtual_host = self.config.addressing_style == "virtual"
        return S3Place(self.place_name, self.bucket, self.endpoint_url, virtual_host)

    @property
    def bucket_url(self) -> str:
        if self.config.addressing_style == "path":
            return f"{self.endpoint_url}/{self.bucket}"
        parts = urlsplit(self.endpoint_url)
        return f"{parts.scheme}://{self.bucket}.{parts.netloc}{parts.path}"

    @cached_property
    def _static_credentials(self) -> _StaticCredentials | None:
        """Those that need no chain: the configuration's, else the environment's, which the chain asks first too."""
        if self.config.access_key_id and self.config.secret_access_key:
            return _StaticCredentials(
                self.config.access_key_id, self.config.secret_access_key, self.config.session_token
            )
        found = os.environ
        key, secret = found.get("AWS_ACCESS_KEY_ID"), found.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret or found.get("AWS_CREDENTIAL_EXPIRATION"):
            return None
        return _StaticCredentials(key, secret, found.get("AWS_SECURITY_TOKEN") or found.get("AWS_SESSION_TOKEN"))

    @cached_property
    def _refreshing_credentials(self) -> Any:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise no_credentials(
                S3Place(self.place_name, self.bucket, without_credentials(self.config.endpoint_url or ""))
            )
        return credentials

    def credentials(self) -> Credentials:
        """Credentials that are good now."""
        if self._static_credentials is not None:
            return self._static_credentials
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
    def ca_bundle(self) -> str | None:
        """The PEM file with the authorities to trust instead of the usual ones; None: the usual ones."""
        given = self.config.ca_bundle or os.environ.get("AWS_CA_BUNDLE")
        if not given and self._static_credentials is None:
            given = self._session.get_config_variable("ca_bundle")
        return self._readable_bundle(str(Path(given).expanduser())) if given else None

    def _readable_bundle(self, path: str) -> str:
        """The path of a PEM file with certificates. Raises `UsageError` for any other file: requests that it fails
        would only say that nobody answers. Where nothing is encrypted nobody reads it."""
        hint = "name a PEM file: `ca_bundle` of the disk, or AWS_CA_BUNDLE"
        if not Path(path).is_file():
            raise UsageError(f"no such file with certificates: {path}", hint=hint)
        if not self.endpoint_url.startswith("http://"):
            import ssl  # 7 ms, and 20 ms for all authorities

            try:
                ssl.create_default_context(cafile=path)
            except OSError as error:
                raise UsageError(f"{path} has no certificates that can be read: {error}", hint=hint) from error
        return path

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
        client: S3Client = self._session.create_client(
            "s3", config=settings, endpoint_url=self._given_endpoint, verify=self.ca_bundle
        )
        client.meta.events.register("provide-client-params.s3", _remember_asked)
        client.meta.events.register("after-call.s3", self._check_answer)
        return client

    def _check_answer(self, http_response: Any, model: Any, context: BotoDict, **_: object) -> None:
        """Raises as `answers.checked` does. A setting that the server does not know is one that it does not have."""
        if http_response.status_code >= 300:
            return
        asked, kind = context[_ASKED], KINDS[model.name]
        headers = {name.lower(): value for name, value in http_response.headers.items()}
        document = checked(
            S3Request(kind, self.location, key=asked.get("Key", ""), prefix=asked.get("Prefix", "")),
            headers,
            http_response.content,
        )
        if document is not None and document.root not in kind.roots:
            from botocore.exceptions import ClientError

            raise ClientError({"Error": {"Code": "NotImplemented"}}, model.name)

    @cached_property
    def requests(self) -> S3Requests:
        """Our own signed requests, for objects and listings."""
        url = self.bucket_url
        scheme = urlsplit(url).scheme
        ca_bundle = proxy_url = None
        if scheme == "https":
            from botocore.httpsession import get_cert_path

            ca_bundle = self.ca_bundle or get_cert_path(True)
        if any(name.lower().endswith("_proxy") for name in os.environ):
            from botocore.utils import get_environ_proxies

            proxy_url = get_environ_proxies(url).get(scheme)
        return S3Requests(
            self.location,
            bucket_url=url,
            prefix=self.prefix,
            region=self.region,
            credentials=self.credentials,
            ca_bundle=ca_bundle,
            proxy_url=proxy_url,
            checksums=self.config.checksums,
        )

    @property
    def lasting_credentials(self) -> Credentials | None:
        """Credentials that another process may be given, for they need no renewal; None when they do."""
        if self._static_credentials is not None:
            return self._static_credentials
        from botocore.credentials import RefreshableCredentials

        lasting = not isinstance(self._refreshing_credentials, RefreshableCredentials)
        return self.credentials() if lasting else None

    def renew(self) -> bool:
        """Forget the credentials of the chain: the next use reads them again. False for keys that were given."""
        if self._static_credentials is not None:
            return False
        with _renewing:
            if time.monotonic() - self.__dict__.get("_renewed", -_RENEWED_LATELY_SECONDS) >= _RENEWED_LATELY_SECONDS:
                # Requests that are under way keep what they have: nothing is closed under them.
                for made in ("_session", "_refreshing_credentials", "client"):
                    self.__dict__.pop(made, None)
                self.__dict__["_renewed"] = time.monotonic()
        return True

    def close(self) -> None:
        """Close the clients that were made."""
        for made in ("requests", "client"):
            if made in self.__dict__:
                self.__dict__[made].close()

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
            ca_bundle=self.ca_bundle,
        )
