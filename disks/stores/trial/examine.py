"""Try a store out: what it really does, asked with objects of our own below one fresh `doctor/` place.

Each question is asked by itself, so that one refusal does not hide the answers to the others. All objects made here are
deleted again; those of a run that was killed carry names that gc knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from disks.stores.base import ByteRange, ObjectStore
from disks.stores.bucket_settings import BucketSettings, NotAnswered
from disks.stores.s3 import trial as s3_trial
from disks.stores.s3.session import S3Session
from disks.stores.trial.probe_results import NOT_ASKED, ProbeResult, StoreFacts
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import AccessDenied, AlreadyExists, Damaged, FrostlineError, NotFound, Retained, Transient
from oplog.revision import DOCTOR_PREFIX, scratch_prefix

BODY = b"frostline doctor tries this store out; the object may be deleted at any time\n"
_MOST_VERSIONS = 100_000


def examine(store: ObjectStore, *, read_only: bool, step: Callable[[str], None] = lambda what: None) -> StoreFacts:
    """Ask everything; never raises for what the store answers. `step` is told what is asked next."""
    facts = StoreFacts(store.name)
    step("listing")
    try:
        first = next(store.list(), None)
        facts.listing = ProbeResult(True)
    except AccessDenied as error:
        first = None
        facts.listing = _denied(error)
        if _keys_are_wrong(error):
            facts.unreachable, facts.hint = error.message, error.hint
            return facts
    except (Transient, NotFound, FrostlineError) as error:
        facts.unreachable, facts.hint = error.message, error.hint
        return facts
    if first is not None and first.size_bytes:
        facts.get = _asked(lambda: bool(store.get(first.key, ByteRange(0, 1))))
    if not read_only:
        _Trial(store, facts, step).run()
    step("settings of the bucket")
    _ask_about_bucket(store, facts)
    return facts


def _keys_are_wrong(error: AccessDenied) -> bool:
    signs = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "Expired", "TimeTooSkewed", "no credentials", "(401)")
    return any(sign in error.message for sign in signs)


class _Trial:
    """Everything that writes."""

    def __init__(self, store: ObjectStore, facts: StoreFacts, step: Callable[[str], None]) -> None:
        self._store = store
        self._facts = facts
        self._step = step
        self._place = scratch_prefix(DOCTOR_PREFIX)
        self._names: list[str] = []
        raw = unwrapped(store)
        self._session: S3Session | None = getattr(raw, "session", None)

    def run(self) -> None:
        try:
            self._write_and_read()
        finally:
            self._step("deleting")
            self._delete_all()

    def _key(self, name: str) -> str:
        key = self._place + name
        if key not in self._names:
            self._names.append(key)
        return key

    def _put(self, name: str, metadata: dict[str, str] | None = None) -> bool:
        self._store.put(self._key(name), BODY, sha256=hashlib.sha256(BODY).digest(), metadata=metadata)
        return True

    def _write_and_read(self) -> None:
        facts, store = self._facts, self._store
        self._step("writing")
        facts.put = _asked(lambda: self._put("b-second"))
        if facts.put.good is not True:
            return
        self._step("reading back")
        facts.read_own_write = _asked(lambda: store.get(self._key("b-second")) == BODY, missing="it was not there")
        if facts.get is NOT_ASKED or facts.read_own_write.denied:
            facts.get = facts.read_own_write
        self._step("listing what was written")
        for name in ("c-third", "a-first"):
            self._put(name)
        facts.list_after_write, facts.list_order = self._listings()
        self._step("conditional writes")
        facts.conditional_put = _asked(self._conditional)
        self._step("checksums")
        facts.checks_sha256 = _asked(self._wrong_digest)
        self._step("metadata")
        facts.metadata_dash = _asked(self._dash)
        session = self._session
        if session is not None:
            key = self._key("underscore")
            facts.metadata_underscore = _asked(lambda: s3_trial.keeps_underscores(session, key, BODY))
            self._step("multipart uploads")
            facts.multipart = _asked(lambda: s3_trial.try_multipart(session, self._place + "multipart"))

    def _listings(self) -> tuple[ProbeResult, ProbeResult]:
        wanted = [self._place + name for name in ("a-first", "b-second", "c-third")]

        def complete() -> tuple[bool, str]:
            found = [info.key for info in self._store.list(self._place)]
            lost = [key for key in wanted if key not in found]
            return not lost, f"{len(lost)} of {len(wanted)} objects were missing from a listing right after their put"

        def ordered() -> tuple[bool, str]:
            found = [info.key for info in self._store.list(self._place)]
            after = [info.key for info in self._store.list(self._place, start_after=wanted[0])]
            good = found == sorted(found) and after == [key for key in found if key > wanted[0]]
            return good, "keys do not come in their order, or a listing does not begin after the key it was given"

        return _asked(complete), _asked(ordered)

    def _conditional(self) -> tuple[bool, str]:
        if self._session is not None:
            existing, fresh = self._key("b-second"), self._key("fresh")
            return s3_trial.honours_if_none_match(self._session, existing, fresh, BODY)
        digest = hashlib.sha256(BODY).digest()
        self._store.put_if_absent(self._key("fresh"), BODY, sha256=digest)
        try:
            self._store.put_if_absent(self._key("fresh"), BODY, sha256=digest)
        except AlreadyExists:
            return True, ""
        return False, "a put of what existed already was accepted"

    def _wrong_digest(self) -> bool:
        key = self._key("wrong-digest")
        if self._session is not None:
            return s3_trial.refuses_wrong_sha256(self._session, key, BODY)
        try:
            self._store.put(key, BODY, sha256=hashlib.sha256(b"other").digest())
        except Damaged:
            return True
        return False

    def _dash(self) -> tuple[bool, str]:
        self._put("dash", {"some-name": "a value"})
        found = dict(self._store.head(self._key("dash")).metadata)
        return found.get("some-name") == "a value", f"came back as {found}"

    def _delete_all(self) -> None:
        facts = self._facts
        if not self._names:
            return
        try:
            answers = self._store.delete(self._names)
            if self._overwrote():  # the versions below what was written over have come to light
                answers |= self._store.delete([name for name, error in answers.items() if error is None])
        except AccessDenied as error:
            facts.delete = _denied(error)
            return
        except FrostlineError as error:
            facts.delete = ProbeResult(None, error.message)
            return
        kept = [error for error in answers.values() if isinstance(error, Retained)]
        failed = [error for error in answers.values() if error is not None and not isinstance(error, Retained)]
        if failed:
            facts.delete = (
                _denied(failed[0]) if isinstance(failed[0], AccessDenied) else ProbeResult(False, failed[0].message)
            )
            return
        if kept:
            facts.is_kept, facts.kept_until = True, kept[0].until
            facts.delete = ProbeResult(None, kept[0].message)
            return
        facts.delete = ProbeResult(True)
        if facts.put.good:
            facts.gone_after_delete = _asked(self._gone)

    def _overwrote(self) -> bool:
        return self._facts.conditional_put.good is False

    def _gone(self) -> tuple[bool, str]:
        with suppress(NotFound):
            self._store.get(self._place + "b-second")
            return False, "an object could still be read after its delete"
        left = [info.key for info in self._store.list(self._place)]
        return not left, "a listing still shows an object after its delete"


def _ask_about_bucket(store: ObjectStore, facts: StoreFacts) -> None:
    try:
        facts.clock_skew = store.clock_skew()
    except FrostlineError as error:
        facts.clock_skew = NotAnswered(error.message)
    try:
        facts.settings = store.bucket_settings()
    except FrostlineError as error:
        unknown = NotAnswered(error.message)
        facts.settings = BucketSettings(unknown, unknown, unknown)
    try:
        facts.uploads = list(store.list_uploads())
    except FrostlineError as error:
        facts.uploads = NotAnswered(error.message)
    if facts.settings is None or facts.settings.versioning == "off":
        return
    try:
        count = 0
        for count, version in enumerate(store.old_versions(), 1):
            facts.old_bytes += version.size_bytes
            if count >= _MOST_VERSIONS:
                break
        facts.old_versions = count
    except FrostlineError as error:
        facts.old_versions = NotAnswered(error.message)


def _asked(question: Callable[[], bool | tuple[bool, str]], *, missing: str = "") -> ProbeResult:
    """The answer, or why there is none. boto3's errors come up raw from `s3_trial`."""
    try:
        found: Any = question()
    except AccessDenied as error:
        return _denied(error)
    except NotFound as error:
        return ProbeResult(False, missing or error.message)
    except FrostlineError as error:
        return ProbeResult(None, error.message)
    except Exception as error:  # noqa: BLE001  a trial must not end the examination, whatever a client library raises
        text = f"{type(error).__name__}: {error}"
        return ProbeResult(None, text, denied="AccessDenied" in text)
    good, said = found if isinstance(found, tuple) else (bool(found), "")
    return ProbeResult(good, "" if good else said)


def _denied(error: FrostlineError) -> ProbeResult:
    return ProbeResult(None, error.message, denied=True)
