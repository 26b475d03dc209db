"""What a server other than AWS does with our writes, asked once a process and prefix by puts of one object.

The object always holds the same bytes, so it may stay, and no listing shows it. Every answer is kept: a probe whose
connection breaks goes on with the question that has no answer yet.
"""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

from disks.stores.base import StoreCapabilities
from disks.stores.capability_checks import CHECKSUMS, Put, checks_sha256, if_none_match
from disks.stores.s3.requests import S3Requests
from oplog.errors import FrostlineError

PROBE_KEY = ".frostline-probe"
"""Ours, in every prefix that was written to on a server other than AWS."""
_BODY = b"frostline asks whether this store honours If-None-Match and checks SHA-256\n"
_log = logging.getLogger("frostline.stores.s3")


class WriteProbe(msgspec.Struct):
    """The answers so far."""

    takes_checksums: bool | None = None
    """Whether puts may carry `x-amz-checksum-sha256`; None: not asked by itself yet."""
    suspected: bool = False
    """A put with checksums was refused; what a put without them does is not known yet."""
    exists: bool = False
    """A conditional put of ours wrote the object, so the next one must be refused."""
    conditional: Literal["written", "refused", "unknown"] | None = None
    checks_sha256: bool | None = None

    def ask(self, put: Put, requests: S3Requests) -> StoreCapabilities:
        """Ask what is not known yet. Three puts; two or three more where the server does not take checksums. Raises
        what the store raises, and goes on from there when it is called again."""
        if not self.suspected:
            try:
                return self._ask(put)
            except FrostlineError as error:
                if type(error) is not FrostlineError or requests.checksums != "auto":
                    raise
                self.suspected = True
        if self.takes_checksums is None:
            requests.leave_checksums_out()
            self.checks_sha256 = checks_sha256(put, PROBE_KEY, _BODY)
            self.takes_checksums, self.conditional = False, None
            _log.warning("%s: %s", requests.name, CHECKSUMS.advice)
        return self._ask(put)

    def _ask(self, put: Put) -> StoreCapabilities:
        if self.conditional is None and not self.exists:
            done = if_none_match(put, PROBE_KEY, _BODY)
            self.exists = done == "written"
            self.conditional = None if self.exists else done
        if self.conditional is None:
            self.conditional = if_none_match(put, PROBE_KEY, _BODY)
        if self.checks_sha256 is None:
            self.checks_sha256 = checks_sha256(put, PROBE_KEY, _BODY)
        return StoreCapabilities(self.conditional == "refused", self.checks_sha256, self.takes_checksums is not False)
