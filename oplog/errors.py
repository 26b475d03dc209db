"""The root of every error Frostline raises on purpose.

    FrostlineError                exit 1   something failed; the message says what and the hint what to do
    |-- UsageError                exit 2   wrong arguments or configuration
    |-- PartlyDone                exit 3   some items failed, the others are done
    |-- Transient                 exit 5   trying the same again later can help; only the retry layer catches it
    |   |-- Throttled                      the store asked for fewer requests (503, 429)
    |   `-- DiskUnreachable                a disk's bucket does not answer; what needs it fails at once
    |-- OutcomeUnknown            exit 5   the request may or may not have taken effect: look before acting
    |   `-- Overslept                      it did, and may have taken the place of what another machine wrote
    |-- LimitReached              exit 8   stopped by a limit the user set
    |-- NotFound                  exit 10  a table, part, disk, object or file does not exist
    |-- Locked                    exit 11  a lock or lease is held by someone else
    |-- AccessDenied              exit 12  the store refused our credentials
    |   `-- CredentialsExpired             they were good once: getting new ones can help
    |-- Refused                   exit 13  a safety rule says no
    |   |-- Retained                       Object Lock keeps the object; later it may go
    |   `-- ReadOnly                       a directory of ours is mounted read-only
    |-- AlreadyExists             exit 1   put-if-absent found an object; a name is taken
    |-- Conflict                  exit 1   a precondition of a transaction no longer holds; plan again
    |-- Damaged                   exit 1   stored bytes are not what was written; never returned as good data
    `-- NoSpace                   exit 1   the disk is full
        `-- QuotaReached          exit 12  the store takes no more of this bucket

`kind` is the stable word scripts see in `--json` output. `retryable` says whether repeating the same call can help.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime
from typing import Self


class FrostlineError(Exception):
    """A failure with a message for the user, a hint with the next step, and an exit code."""

    kind = "failed"
    exit_code = 1
    retryable = False
    next_step = "run 'frostline doctor', which checks the configuration and every disk; -vv shows each step"
    """What to do about an error of this kind whose hint says nothing more precise."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it is, whatever its constructor asks for: errors come back from other processes."""
        return _unpickled, (type(self), self.args, self.__dict__)

    @property
    def advice(self) -> str:
        """The hint, or what to do about an error of the kind: never empty."""
        return self.hint or self.next_step

    def afresh(self) -> Self:
        """The same, never raised yet, for who keeps an error to raise it each time it is asked: every raise adds frames
        to the error that is raised, which keep all that these calls held, and who catches it may add words."""
        return copy.copy(self)


def in_a_line(error: Exception) -> str:
    """What went wrong, and the next step where it is known: for a log, or for a line that shows it."""
    return f"{error}; {error.hint}" if isinstance(error, FrostlineError) and error.hint else str(error)


def _unpickled(kind: type[FrostlineError], arguments: tuple[object, ...], state: dict[str, object]) -> FrostlineError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class UsageError(FrostlineError):
    """The arguments or the configuration are wrong; nothing was changed."""

    kind = "usage"
    exit_code = 2
    next_step = "correct the command line or the configuration, and run it again; nothing was changed"


class PartlyDone(FrostlineError):
    """Some items failed; the others are done and stay done."""

    kind = "partly_done"
    exit_code = 3
    next_step = "run it again: it retries what failed"


class Transient(FrostlineError):
    """A temporary failure: the same call may succeed later."""

    kind = "temporary"
    exit_code = 5
    retryable = True
    next_step = "try again later"
    retry_after_seconds = 0.0
    """How long the server asks to wait (`Retry-After`); 0 where it does not say."""


class Throttled(Transient):
    """The store asked us to slow down."""

    kind = "throttled"


class DiskUnreachable(Transient):
    """A disk whose bucket does not answer was needed; what needs other disks only still works."""

    kind = "unreachable"


class OutcomeUnknown(FrostlineError):
    """The answer was lost: the request may have taken effect. Read the state before acting again."""

    kind = "outcome_unknown"
    exit_code = 5
    next_step = "check whether it took effect before you run it again"


class LeaseExpired(OutcomeUnknown):
    """On a store without conditional writes: the entry was put after this machine's turn was over. It is in the log,
    and yet nothing may be taken for done."""


class LimitReached(FrostlineError):
    """Stopped by a limit that the user set."""

    kind = "limit"
    exit_code = 8
    next_step = "raise the limit, or run it again to continue"


class NotFound(FrostlineError):
    """The named thing does not exist."""

    kind = "not_found"
    exit_code = 10
    next_step = "check the name; 'frostline table list' and 'frostline config show' list the names"


class Locked(FrostlineError):
    """Somebody else holds the lock or lease."""

    kind = "locked"
    exit_code = 11
    retryable = True
    next_step = "try again when the other process is done"


class AccessDenied(FrostlineError):
    """The store refused our credentials, or a key is wrong."""

    kind = "access_denied"
    exit_code = 12
    next_step = "check the credentials and the permissions of the user that runs frostline"


class CredentialsExpired(AccessDenied):
    """The session token has run out; the store renews the credentials once before this reaches a caller."""


class Refused(FrostlineError):
    """A safety rule says no."""

    kind = "refused"
    exit_code = 13
    next_step = "nothing was changed; 'frostline doctor' shows the cause"


class Retained(Refused):
    """The store's retention (Object Lock, a legal hold) keeps the object. Nothing failed: it may go later."""

    kind = "retained"
    next_step = "it can be deleted when its retention ends, or the legal hold is removed"

    def __init__(self, message: str, *, until: datetime | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.until = until
        """When the retention ends; None where the store does not say, or for a hold without an end."""


UNDELETABLE = (Retained, AccessDenied)
"""Why an object of ours may have to stay: a lock of the store, or credentials that may not delete. What it holds is
then given back by a document beside it."""


class ReadOnly(Refused):
    """A directory that had to be written lies on a file system that is mounted read-only; nothing was changed."""

    kind = "read_only"
    next_step = "remount it for writing; nothing was changed"


class AlreadyExists(FrostlineError):
    """The name is taken; what is there was left as it is."""

    kind = "already_exists"
    next_step = "choose another name, or check what is there"


class Conflict(FrostlineError):
    """A precondition of a transaction no longer holds: somebody else changed the same paths first."""

    kind = "conflict"
    next_step = "another writer changed the same files: run it again"


class Damaged(FrostlineError):
    """Stored bytes are not what was written."""

    kind = "damaged"
    next_step = "run 'frostline fsck', which names all that is damaged; bring it back from a copy or a backup"


class NoSpace(FrostlineError):
    """The disk is full; the operation was undone."""

    kind = "no_space"
    next_step = "free space, and run it again"


class QuotaReached(NoSpace):
    """The store takes no more: its owner must allow it, as for a permission."""

    kind = "quota"
    exit_code = 12


def error_of_kinds(message: str, kinds: Iterable[str], *, hint: str = "") -> FrostlineError:
    """The error that says that nothing was done: of the kind of the items' errors where all of these have one exit
    code, so that scripts need not read the reasons."""
    errors = {_BY_KIND.get(kind, FrostlineError) for kind in kinds}
    if len({error.exit_code for error in errors}) != 1:
        return FrostlineError(message, hint=hint)
    return min(errors, key=lambda error: error.kind)(message, hint=hint)


_BY_KIND = {Retained.kind: Refused} | {
    error.kind: error
    for error in (
        *(UsageError, Transient, Throttled, DiskUnreachable, OutcomeUnknown, LimitReached, NotFound, Locked),
        *(AccessDenied, Refused, ReadOnly, QuotaReached),
    )
}
"""Those with an exit code of their own that an item may have."""
