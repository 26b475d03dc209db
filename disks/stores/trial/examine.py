"""Try a store out: what it really does, asked with objects of our own below one fresh `doctor/` place.

Each question is asked by itself, so that one refusal does not hide the answers to the others. All objects made here are
deleted again; those of a run that was killed carry names that gc knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from disks.host.clean_up import clean_up_owed
from disks.stores.base import ByteRange, ObjectStore
from disks.stores.bucket_settings import BucketSettings, NotAnswered
from disks.stores.capability_checks import (
    CHECKSUMS,
    GONE,
    IN_ORDER,
    LISTED,
    METADATA,
    ONE_WINNER,
    READ_BACK,
    SHA256,
    UNDERSCORES,
    Put,
    checks_sha256,
    if_none_match,
)
from disks.stores.checks import WrongAnswer
from disks.stores.s3 import trial as s3_trial
from disks.stores.s3.session import S3Session
from disks.stores.trial.probe_results import ProbeResult, StoreFacts
from disks.stores.wrappers.wrapped import unwrapped
from oplog.errors import AccessDenied, FrostlineError, NotFound, OutcomeUnknown, Retained, Transient
from oplog.revision import DOCTOR_PREFIX, scratch_prefix

BODY = b"frostline doctor tries this store out; the object may be deleted at any time\n"
_MOST_VERSIONS = 100_000
_Value = TypeVar("_Value")


def examine(store: ObjectStore, *, read_only: bool, step: Callable[[str], None] = lambda name: None) -> StoreFacts:
    """Ask everything; never raises for what the store answers. `step` gets the name of the next question."""
    facts = StoreFacts(store.name)
    step("listing")
    try:
        first = next(store.list(), None)
        facts.answers["list"] = ProbeResult(True)
    except AccessDenied as error:
        first = None
        facts.answers["list"] = _denied(error)
        if _keys_are_wrong(error):
            facts.unreachable, facts.hint = error.message, error.hint
            return facts
    except FrostlineError as error:
        facts.unreachable, facts.hint = error.message, error.hint
        return facts
    if first is not None and first.size_bytes:
        facts.answers["get"] = _asked(lambda: bool(store.get(first.key, ByteRange(0, 1))), refusal=False)
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
        self._scratch = scratch_prefix(DOCTOR_PREFIX)
        self._names: list[str] = []
        self._session: S3Session | None = getattr(unwrapped(store), "session", None)
        self._bare_put: Put = partial(s3_trial.put, self._session) if self._session else self._put_of_store

    def run(self) -> None:
        with clean_up_owed():
            try:
                self._write_and_read()
            finally:
                self._step("deleting")
                self._delete_all()

    def _ask(
        self,
        check: str,
        question: Callable[[], bool | tuple[bool, str]],
        *,
        missing: str = "",
        refusal: bool | None = None,
    ) -> ProbeResult:
        answer = self._facts.answers[check] = _asked(question, missing=missing, refusal=refusal)
        return answer

    def _key(self, name: str) -> str:
        key = self._scratch + name
        if key not in self._names:
            self._names.append(key)
        return key

    def _put(self, name: str, metadata: dict[str, str] | None = None) -> bool:
        self._store.put(self._key(name), BODY, sha256=hashlib.sha256(BODY).digest(), metadata=metadata)
        return True

    def _put_of_store(self, key: str, body: bytes, sha256: bytes, headers: Mapping[str, str]) -> None:
        put = self._store.put_if_absent if headers else self._store.put
        put(key, body, sha256=sha256)

    def _write_and_read(self) -> None:
        self._step("writing")
        if self._ask("put", lambda: self._put("b-second"), refusal=False).good is not True:
            return
        self._step("reading back")
        read = self._ask(
            READ_BACK.check,
            lambda: self._store.get(self._key("b-second")) == BODY,
            missing="it was not there",
            refusal=False,
        )
        if read.denied or "get" not in self._facts.answers:
            self._facts.answers["get"] = read
        self._step("listing what was written")
        for name in ("c-third", "a-first"):
            self._put(name)
        self._ask(LISTED.check, self._listed)
        self._ask(IN_ORDER.check, self._in_order)
        self._step("conditional writes")
        self._ask(ONE_WINNER.check, self._conditional)
        self._step("checksums")
        self._ask(SHA256.check, lambda: checks_sha256(self._bare_put, self._key("wrong-digest"), BODY))
        self._step("metadata")
        self._ask(METADATA.check, self._dash)
        session = self._session
        if session is not None:
            key = self._key("underscore")
            self._ask(UNDERSCORES.check, lambda: s3_trial.keeps_underscores(session, key, BODY))
            self._step("multipart uploads")
            place = self._scratch
            self._ask("multipart", lambda: s3_trial.try_multipart(session, f"{place}multipart"), refusal=False)
            self._ask(CHECKSUMS.check, lambda: session.requests.checksums != "none")

    def _written(self) -> list[str]:
        return [self._scratch + name for name in ("a-first", "b-second", "c-third")]

    def _found(self, *, after: str = "") -> list[str]:
        return [info.key for info in self._store.list(self._scratch, start_after=after)]

    def _listed(self) -> tuple[bool, str]:
        lost = set(self._written()).difference(self._found())
        return not lost, f"{len(lost)} of 3 objects were missing from a listing right after their put"

    def _in_order(self) -> tuple[bool, str]:
        found, first = self._found(), self._written()[0]
        good = found == sorted(found) and self._found(after=first) == [key for key in found if key > first]
        return good, "keys are out of order, or a listing does not start after the given key"

    def _conditional(self) -> tuple[bool, str]:
        """Both ways: an existing key must be refused and a new one accepted."""
        match if_none_match(self._bare_put, self._key("b-second"), BODY):
            case "written":
                return False, "a put with If-None-Match wrote over an object"
            case "unknown":
                return False, "the store does not know If-None-Match"
        accepted = if_none_match(self._bare_put, self._key("fresh"), BODY) == "written"
        return accepted, "a put with If-None-Match was refused though there was no such object"

    def _dash(self) -> tuple[bool, str]:
        self._put("dash", {"some-name": "a value"})
        found = dict(self._store.head(self._key("dash")).metadata)
        return found.get("some-name") == "a value", f"came back as {found}"

    def _delete_all(self) -> None:
        if not self._names:
            return
        facts = self._facts
        facts.answers["delete"] = answer = _asked(self._deleted, refusal=False)
        if answer.good and facts.of("put").good:
            self._ask(GONE.check, self._gone)

    def _deleted(self) -> tuple[bool | None, str]:
        answers = self._store.delete(self._names)
        if self._facts.of(ONE_WINNER.check).good is False:  # versions below what was written over have come to light
            answers |= self._store.delete([name for name, error in answers.items() if error is None])
        errors = [error for error in answers.values() if error is not None]
        kept = [error for error in errors if isinstance(error, Retained)]
        if failed := [error for error in errors if not isinstance(error, Retained)]:
            if isinstance(failed[0], AccessDenied):
                raise failed[0]
            return False, failed[0].message
        if kept:
            self._facts.is_kept, self._facts.kept_until = True, kept[0].until
            return None, kept[0].message
        return True, ""

    def _gone(self) -> tuple[bool, str]:
        with suppress(NotFound):
            self._store.get(self._scratch + "b-second")
            return False, "an object could still be read after its delete"
        return not self._found(), "a listing still shows an object after its delete"


def _ask_about_bucket(store: ObjectStore, facts: StoreFacts) -> None:
    facts.clock_skew = _known(store.clock_skew)
    settings = _known(store.bucket_settings)
    facts.settings = BucketSettings(settings, settings, settings) if isinstance(settings, NotAnswered) else settings
    facts.uploads = _known(lambda: list(store.list_uploads()))
    if facts.settings is not None and facts.settings.versioning != "off":
        facts.old_versions = _known(lambda: _count_versions(store, facts))


def _count_versions(store: ObjectStore, facts: StoreFacts) -> int:
    sizes = [version.size_bytes for version in islice(store.old_versions(), _MOST_VERSIONS)]
    facts.old_bytes = sum(sizes)
    return len(sizes)


def _known(question: Callable[[], _Value]) -> _Value | NotAnswered:
    try:
        return question()
    except FrostlineError as error:
        return NotAnswered(error.message)


def _asked(
    question: Callable[[], bool | tuple[bool | None, str]], *, missing: str = "", refusal: bool | None = None
) -> ProbeResult:
    """The answer, or why there is none. `refusal`: what it means that the store refuses the request; a store that only
    fails for a while has not answered."""
    try:
        found: Any = question()
    except AccessDenied as error:
        return _denied(error)
    except NotFound as error:
        return ProbeResult(False, missing or error.message)
    except WrongAnswer as error:
        return ProbeResult(False, error.message)
    except FrostlineError as error:
        passing = isinstance(error, (Transient, OutcomeUnknown))
        return ProbeResult(None if passing else refusal, error.message)
    except Exception as error:  # noqa: BLE001  a trial must not end the examination, whatever a client library raises
        text = f"{type(error).__name__}: {error}"
        return ProbeResult(None, text, denied="AccessDenied" in text)
    good, said = found if isinstance(found, tuple) else (bool(found), "")
    return ProbeResult(good, "" if good else said)


def _denied(error: FrostlineError) -> ProbeResult:
    return ProbeResult(None, error.message, denied=True)
