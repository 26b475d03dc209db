"""What was found about an object disk's store, as findings: what it means and what to do. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import msgspec

from disks.config import ObjectDiskConfig
from disks.stores.bucket_settings import BucketSettings, LifecycleRule, NotAnswered, ObjectLock
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
    Question,
)
from disks.stores.trial.probe_results import StoreFacts
from tiering.config.secrets import without_passwords
from tiering.config.units import format_duration, format_size
from tiering.doctor.diagnosis import Finding, Level

SKEW_NOTED = timedelta(seconds=30)
SKEW_REFUSED = timedelta(minutes=5)
"""From here on gc takes no time of the store for true, and refuses."""
_GUARD = timedelta(hours=24)
_NOT_PROMISED = (
    "what a lease cannot promise: a machine that is stopped for minutes within a commit may write over what another "
    "one wrote; it acknowledges nothing then, and the other one finds it with its next commit, or fsck does"
)


def of_store(name: str, config: ObjectDiskConfig, facts: StoreFacts, *, now: datetime) -> list[Finding]:
    """Everything about one object disk."""
    return list(_Store(name, config, facts, now).findings())


class _Store(msgspec.Struct, frozen=True):
    name: str
    config: ObjectDiskConfig
    facts: StoreFacts
    now: datetime

    def _say(self, check: str, level: Level, message: str, hint: str = "") -> Finding:
        return Finding(subject=f"disk {self.name}", check=check, level=level, what=message, hint=hint)

    def findings(self) -> Iterator[Finding]:
        facts = self.facts
        if facts.unreachable:
            yield self._say("reachable", "problem", facts.unreachable, facts.hint)
            return
        yield self._say("reachable", "ok", f"{facts.name} answers")
        yield from self._transport()
        yield from self._permissions()
        yield from self._semantics()
        yield from self._metadata()
        yield from self._clock()
        yield from self._uploads()
        if facts.settings is not None:
            yield from self._versioning(facts.settings)
            yield from self._lifecycle(facts.settings)
            yield from self._object_lock(facts.settings.object_lock)

    def _transport(self) -> Iterator[Finding]:
        url, endpoint = self.config.url, self.config.endpoint_url or ""
        host = urlsplit(endpoint).hostname or ""
        if url.startswith("s3://") and not url.removeprefix("s3://").partition("/")[2].strip("/"):
            what = "the disk is the whole bucket: gc treats every object as its own or as foreign"
            yield self._say("prefix", "note", what, "give a prefix: s3://bucket/prefix/")
        if endpoint.startswith("http://") and not host.startswith(("127.", "localhost", "::1")):
            what = f"{without_passwords(endpoint)} is not encrypted"
            yield self._say("transport", "warning", what, "use https://")

    # Each permission in turn

    def _permissions(self) -> Iterator[Finding]:
        facts = self.facts
        yield self._permission("list", "s3:ListBucket", "the log cannot be found")
        yield self._permission("get", "s3:GetObject", "parts cannot be read")
        if self.config.read_only:
            yield self._say("put", "unknown", "write tests skipped: the disk is read-only")
            return
        yield self._permission("put", "s3:PutObject", "nothing can be moved here")
        if facts.is_kept:
            until = f" until {facts.kept_until:%Y-%m-%d %H:%M}Z" if facts.kept_until else ""
            what = f"unknown: Object Lock keeps what was written for the trial{until}; gc removes it then"
            yield self._say("delete", "unknown", what)
        elif facts.of("delete").denied:
            what = f"deleting is not allowed: {facts.of('delete').said}"
            yield self._say("delete", "warning", what, "gc --delete needs s3:DeleteObject (and s3:DeleteObjectVersion)")
        else:
            yield self._permission("delete", "s3:DeleteObject", "gc cannot delete")
        if self._speaks_s3:
            needed = "s3:AbortMultipartUpload and s3:ListBucketMultipartUploads"
            yield self._permission("multipart", needed, "large files cannot be moved", "warning")

    @property
    def _speaks_s3(self) -> bool:
        return self.config.url.startswith("s3://")

    def _permission(self, check: str, needed: str, otherwise: str, level: Level = "problem") -> Finding:
        answer = self.facts.of(check)
        if answer.denied:
            return self._say(
                check, level, f"not allowed, so {otherwise}: {answer.said}", f"the credentials need {needed}"
            )
        if answer.good is None:
            return self._say(check, "unknown", f"unknown: {answer.said}")
        if not answer.good:
            return self._say(check, level, f"does not work, so {otherwise}: {answer.said}")
        return self._say(check, "ok", "allowed")

    # What the store does

    def _semantics(self) -> Iterator[Finding]:
        if self.facts.of("put").good is not True:
            return
        for question in (READ_BACK, LISTED, IN_ORDER, GONE):
            yield self._promise(question)
        yield self._conditional()
        if self.facts.of(SHA256.check).good is False:
            yield self._say(SHA256.check, SHA256.level, "the store does not check the SHA-256 of a put", SHA256.advice)
        else:
            yield self._promise(SHA256)
        if self._speaks_s3:
            yield self._checksums()

    def _checksums(self) -> Finding:
        answer = self.facts.of(CHECKSUMS.check)
        if answer.good is not False:
            return self._promise(CHECKSUMS)
        if self.config.checksums == "none":
            what = "checksums is 'none': requests carry none, and the SHA-256 in the log is the proof"
            return self._say(CHECKSUMS.check, CHECKSUMS.level, what)
        return self._say(CHECKSUMS.check, CHECKSUMS.level, CHECKSUMS.advice)

    def _conditional(self) -> Finding:
        answer = self.facts.of(ONE_WINNER.check)
        if self.config.conditional_put == "no":
            what = "conditional_put is 'no': only one machine can write at a time, with a lease"
            return self._say(ONE_WINNER.check, "note", what, _NOT_PROMISED)
        if answer.good is False:
            what = f"no conditional writes ({answer.said}): only one machine can write at a time, with a lease"
            servers = "; some servers honour it in buckets without versioning only" if self._versions_kept else ""
            return self._say(ONE_WINNER.check, "warning", what, f"{ONE_WINNER.advice}{servers}; {_NOT_PROMISED}")
        return self._promise(ONE_WINNER)

    @property
    def _versions_kept(self) -> bool:
        return self.facts.settings is not None and self.facts.settings.versioning in ("on", "suspended")

    def _promise(self, question: Question) -> Finding:
        answer, promise = self.facts.of(question.check), question.promise
        if answer.good:
            return self._say(question.check, "ok", promise)
        if answer.good is None:
            return self._say(question.check, "unknown", f"unknown whether {promise}: {answer.said}")
        what = f"not so: {promise}; {answer.said}".rstrip("; ")
        return self._say(question.check, question.level, what, question.advice)

    def _metadata(self) -> Iterator[Finding]:
        if self.facts.of("put").good is not True:
            return
        yield self._promise(METADATA)
        underscores = self.facts.of(UNDERSCORES.check)
        if underscores.good is False:
            what = f"metadata names with '_' are changed: `from_path` {underscores.said}"
            if self.config.log_format == 2:
                yield self._say(UNDERSCORES.check, "note", what, "only ClickHouse's own log format uses such names")
            else:
                hint = "Frostline writes them twice and reads its log; a ClickHouse server cannot: give it an export"
                yield self._say(UNDERSCORES.check, "warning", what, hint)
        elif self._speaks_s3:
            yield self._promise(UNDERSCORES)

    def _clock(self) -> Iterator[Finding]:
        skew = self.facts.clock_skew
        if isinstance(skew, NotAnswered):
            yield self._say("clock", "unknown", f"the store's clock is unknown: {skew.reason}")
        elif skew is None:
            if self._speaks_s3:
                yield self._say("clock", "unknown", "unknown: the store sends no Date")
        elif abs(skew) > SKEW_NOTED:
            ahead = "behind" if skew > timedelta(0) else "ahead of"
            what = f"this machine's clock is {format_duration(abs(skew))} {ahead} the store's"
            refused = abs(skew) > SKEW_REFUSED
            hint = "set the clock (NTP)" + ("; until then gc deletes nothing, and ages are wrong" if refused else "")
            yield self._say("clock", "problem" if refused else "warning", what, hint)
        else:
            yield self._say("clock", "ok", "the clocks of this machine and of the store agree")

    def _uploads(self) -> Iterator[Finding]:
        uploads = self.facts.uploads
        if isinstance(uploads, NotAnswered):
            yield self._say("uploads", "unknown", f"unfinished uploads are unknown: {uploads.reason}")
            return
        old = [upload for upload in uploads if self.now - upload.started > _GUARD]
        if old:
            what = f"{len(old)} unfinished multipart uploads older than {format_duration(_GUARD)} cost money"
            hint = f"'frostline gc {self.name} --delete' ends those with names of ours, such as {old[0].key}"
            yield self._say("uploads", "warning", what, hint)
        elif self._speaks_s3:
            yield self._say("uploads", "ok", "no old unfinished uploads")

    # What the bucket's owner has set

    def _versioning(self, settings: BucketSettings) -> Iterator[Finding]:
        facts, state = self.facts, settings.versioning
        if isinstance(state, NotAnswered):
            yield self._say("versioning", "unknown", f"unknown whether the bucket keeps old versions: {state.reason}")
            return
        if state == "off":
            yield self._say("versioning", "ok", "the bucket keeps no old versions")
            return
        if isinstance(facts.old_versions, NotAnswered):
            yield self._say("versioning", "unknown", f"old versions cannot be counted: {facts.old_versions.reason}")
            return
        size = f"{facts.old_versions:,} old versions and delete markers, {format_size(facts.old_bytes)}"
        if self.config.delete_versions:
            what = f"versioning is {state}; gc deletes the versions themselves; {size}"
            level: Level = "warning" if facts.old_bytes else "note"
            hint = "old versions were left by overwrites or other tools: the bucket's owner pays until they are deleted"
            yield self._say("versioning", level, what, hint if facts.old_bytes else "")
            return
        ended = self._rules(settings, lambda rule: rule.old_versions_days is not None)
        what = f"versioning is {state} and delete_versions is off: what gc deletes stays as an old version; {size}"
        if ended:
            days = ended[0].old_versions_days
            yield self._say("versioning", "note", f"{what}; rule {ended[0].name!r} ends them after {days} days")
        else:
            hint = "no lifecycle rule ends old versions, so their cost grows: add one, or set delete_versions: true"
            yield self._say("versioning", "warning", what, hint)

    def _lifecycle(self, settings: BucketSettings) -> Iterator[Finding]:
        if isinstance(settings.lifecycle, NotAnswered):
            yield self._say("lifecycle", "unknown", f"lifecycle rules are unknown: {settings.lifecycle.reason}")
            return
        bad = self._rules(settings, lambda rule: rule.expires is not None or rule.archives is not None)
        for rule in bad:
            done = f"deletes objects {rule.expires}" if rule.expires else f"archives objects {rule.archives}"
            where = f"below {rule.prefix!r}" if rule.prefix else "in the whole bucket"
            some = " (those with certain tags or sizes)" if rule.filtered else ""
            what = f"lifecycle rule {rule.name!r} {done} {where}{some}: it will destroy parts in use"
            hint = "take this disk's prefix out of the rule; TTL rules of tables delete what is due"
            yield self._say("lifecycle", "warning" if rule.filtered else "problem", what, hint)
        if not bad:
            yield self._say("lifecycle", "ok", "no lifecycle rule expires or archives our objects")
        if self._rules(settings, lambda rule: rule.abort_uploads_days is not None and not rule.filtered):
            yield self._say("abort-uploads-rule", "ok", "a lifecycle rule ends unfinished multipart uploads")
        else:
            hint = "add AbortIncompleteMultipartUpload after some days: gc ends leftovers too, but only when it runs"
            what = "no lifecycle rule ends unfinished multipart uploads, which no listing shows and which cost money"
            yield self._say("abort-uploads-rule", "note", what, hint)

    def _rules(self, settings: BucketSettings, matches: Callable[[LifecycleRule], bool]) -> list[LifecycleRule]:
        rules = () if isinstance(settings.lifecycle, NotAnswered) else settings.lifecycle
        prefix = self.config.url.removeprefix("s3://").partition("/")[2].strip("/")
        ours = f"{prefix}/" if prefix else ""
        return [rule for rule in rules if overlap(ours, rule.prefix) and matches(rule)]

    def _object_lock(self, lock: ObjectLock | NotAnswered) -> Iterator[Finding]:
        if isinstance(lock, NotAnswered):
            yield self._say("object-lock", "unknown", f"unknown whether Object Lock is on: {lock.reason}")
        elif not lock.enabled:
            yield self._say("object-lock", "ok", "Object Lock is off")
        elif lock.retention_days is None:
            what = "Object Lock is on without a default retention: only explicitly locked objects are kept"
            yield self._say("object-lock", "note", what)
        else:
            what = f"Object Lock keeps every object for {lock.retention_days} days ({lock.mode})"
            longer = timedelta(days=lock.retention_days) > _GUARD
            meaning = f"longer than gc's guard interval of {format_duration(_GUARD)}: " if longer else ""
            hint = f"{meaning}gc reports what the lock keeps as kept and deletes it when the lock has run out"
            yield self._say("object-lock", "note", what, hint)


def overlap(ours: str, theirs: str) -> bool:
    """Whether a rule for keys that begin with `theirs` can touch keys that begin with `ours`."""
    return ours.startswith(theirs) or theirs.startswith(ours)
