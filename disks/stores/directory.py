"""A directory as a bucket: the embedded default, also for NFS and spinning disks.

An object's key is its path below the root, so that a user can look at the bucket with ordinary tools. Two names at
the root are ours: `.incoming/` holds files being written and `.metadata/` the user metadata of objects that have any
(JSON, under the object's key). Neither shows in a listing. A file becomes an object by one link or rename after its
fsync; what a killed writer left in `.incoming/` is removed by the next store opened for writing.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from disks import effects
from disks.effects import op
from disks.host.locks import file_lock
from disks.host.processes import is_alive, process_start
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, StoreCapabilities, check_key
from disks.stores.checks import check_digest_length, check_metadata, check_range, wrong_sha256
from disks.stores.payload import opened
from disks.stores.wrappers.wrapped import unwrapped
from disks.system_errors import of_the_system
from oplog.bounds import check_received
from oplog.documents import Document
from oplog.errors import AccessDenied, AlreadyExists, Damaged, FrostlineError, NotFound, ReadOnly, Refused, Transient

_INCOMING = ".incoming"
_METADATA = ".metadata"
_LOCK = "put.lock"
_CHUNK_BYTES = 1024 * 1024
_metadata = Document[dict[str, str]](
    "metadata of an object in a directory bucket",
    dict[str, str],
    write=lambda metadata: json.dumps(metadata, sort_keys=True).encode(),  # names of files may be no text
    read=json.loads,
)
_FOREIGN_LEFTOVER_SECONDS = 600
_MAY_NOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)
_serial = itertools.count()
_active: set[str] = set()


class DirectoryStore(ObjectStore):
    """Objects are files below `root`. Safe for several processes; on NFS for several machines."""

    def __init__(self, root: Path, *, read_only: bool = False, conditional_put: bool = True) -> None:
        """`conditional_put=False`: machines may not rely on it between them, so that one at a time writes."""
        self._root = root.absolute()
        self._conditional_put = conditional_put
        self.name = f"file://{self._root}/"
        if not read_only:
            self._remove_leftovers()

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=self._conditional_put, checks_sha256=True)

    # ---------------------------------------------------------------------------------------------- writing

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        target = self._path(key)
        checked = check_metadata(metadata)
        with self._translated(key), op("store.put", key), self._written(key, payload, sha256) as temporary:
            # Metadata first: an object that can be seen has it. Keys are unique, so a leftover alone does no harm.
            self._write_metadata(key, checked)
            effects.make_directory(target.parent)
            effects.rename(temporary, target)
            effects.fsync_directory(target.parent)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        target = self._path(key)
        checked = check_metadata(metadata)
        with self._translated(key), op("store.put", key), self._written(key, payload, sha256) as temporary:
            effects.make_directory(target.parent)
            if not checked:
                effects.hard_link(temporary, target)
            else:
                # Metadata first here too. The loser of the race must not write over the winner's, so one at a time.
                with file_lock(self._root / _INCOMING / _LOCK):
                    if os.path.lexists(target):
                        raise AlreadyExists(f"{self.name}{key} exists already")
                    self._write_metadata(key, checked)
                    effects.hard_link(temporary, target)
            effects.fsync_directory(target.parent)

    @contextmanager
    def _written(self, key: str, payload: Payload, sha256: bytes) -> Iterator[Path]:
        """The payload in a synced temporary file, whose digest was taken from the bytes as they were written."""
        check_digest_length(sha256)
        with opened(payload) as view, self._temporary() as (temporary, file):
            digest = hashlib.sha256()
            with op("fs.write", temporary):
                for start in range(0, len(view), _CHUNK_BYTES):
                    with view[start : start + _CHUNK_BYTES] as chunk:  # a slice left open keeps the file mapped
                        digest.update(chunk)
                        _write_all(file, chunk)
            if digest.digest() != sha256:
                raise wrong_sha256(self.name, key)
            with op("fs.fsync", temporary):
                os.fsync(file.fileno())
            yield temporary

    @contextmanager
    def _temporary(self) -> Iterator[tuple[Path, IO[bytes]]]:
        effects.make_directory(self._root / _INCOMING)
        name = f"{socket.gethostname()}.{_own_mark(os.getpid())}.{next(_serial)}.tmp"
        path = self._root / _INCOMING / name
        _active.add(name)
        try:
            with op("fs.create", path):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield path, file
        finally:
            _active.discard(name)
            effects.remove_file(path, missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Remove temporary files whose writer is gone. A live writer holds a lock on its file."""
        incoming = self._root / _INCOMING
        if not incoming.is_dir():
            return
        for path in sorted(incoming.iterdir()):
            if path.name == _LOCK or not _writer_is_gone(path):
                continue
            try:
                effects.remove_file(path, missing_ok=True)
            except ReadOnly:
                return
            except OSError as error:
                if error.errno not in _MAY_NOT_WRITE:  # a process that may only read leaves them to others
                    raise

    def _write_metadata(self, key: str, metadata: Mapping[str, str]) -> None:
        path = self._root / _METADATA / key
        if not metadata:
            effects.remove_file(path, missing_ok=True)
            return
        effects.make_directory(path.parent)
        with self._temporary() as (temporary, file):
            with op("fs.write", temporary):
                file.write(_metadata.encode(dict(metadata)))
            with op("fs.fsync", temporary):
                os.fsync(file.fileno())
            effects.rename(temporary, path)
        effects.fsync_directory(path.parent)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        answers: dict[str, FrostlineError | None] = {}
        parents: set[Path] = set()
        for key in keys:
            path = self._path(key)
            try:
                with self._translated(key), op("store.delete", key):
                    effects.remove_file(path, missing_ok=True)
                    effects.remove_file(self._root / _METADATA / key, missing_ok=True)
                answers[key] = None
                parents.add(path.parent)
            except FrostlineError as error:
                answers[key] = error
        for parent in sorted(parents):
            if parent.is_dir():
                effects.fsync_directory(parent)
        return answers

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        origin = unwrapped(source) if source is not None else self
        if not isinstance(origin, DirectoryStore):
            raise Refused(
                f"cannot copy from {origin.name} to {self.name} inside one store", hint="copy through this machine"
            )
        target = self._path(target_key)
        with origin._translated(source_key), op("store.copy", source_key, target_key):
            info = origin.head(source_key)
            with origin._path(source_key).open("rb") as reader, self._temporary() as (temporary, file):
                with op("fs.write", temporary):
                    _copy_bytes(reader, file, info.size_bytes)
                with op("fs.fsync", temporary):
                    os.fsync(file.fileno())
                self._write_metadata(target_key, info.metadata)
                effects.make_directory(target.parent)
                effects.rename(temporary, target)
            effects.fsync_directory(target.parent)

    # ---------------------------------------------------------------------------------------------- reading

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        path = self._path(key)
        with self._translated(key):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would be waited for
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(f"no object {self.name}{key}: it is no plain file")
                size_bytes = status.st_size
                wanted = byte_range or ByteRange(0, size_bytes)
                check_range(self.name, key, wanted, size_bytes)
                check_received(wanted.size_bytes)
                file.seek(wanted.start)
                data = _read_exactly(file, wanted.size_bytes)
        if len(data) != wanted.size_bytes:
            raise Damaged(f"{self.name}{key} became shorter while it was read", hint="run fsck")
        return data

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._translated(key):
            status = path.lstat()
            if not path.is_file() or path.is_symlink():
                raise NotFound(f"no object {self.name}{key}")
            try:
                metadata = _metadata.decode((self._root / _METADATA / key).read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                metadata = {}
            return _info(key, status, metadata)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        place = self._place_of(prefix)
        if place is not None:
            yield from self._walk(self._root / place, place, prefix.encode(), start_after.encode())

    def _place_of(self, prefix: str) -> str | None:
        """The directory that holds every key of the prefix, with its `/`; None when there is none. It saves reading
        the names of all objects to list a few of them."""
        place, path = "", self._root
        for name in prefix.split("/")[:-1]:
            path = path / name
            hidden = not place and name in (_INCOMING, _METADATA)
            if name in ("", ".", "..") or hidden or path.is_symlink() or not path.is_dir():
                return None
            place += f"{name}/"
        return place

    def _walk(self, directory: Path, base: str, prefix: bytes, start_after: bytes) -> Iterator[ObjectInfo]:
        """Depth first; a directory sorts as its name with `/`, which makes the whole walk follow the keys' bytes."""
        for encoded, entry in _sorted_entries(directory, base, prefix, start_after):
            if encoded.endswith(b"/"):
                yield from self._walk(Path(os.fsdecode(entry.path)), os.fsdecode(encoded), prefix, start_after)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield _info(os.fsdecode(encoded), status, {})

    def url(self, key: str) -> str:
        return f"file://{self._path(key)}"

    # ---------------------------------------------------------------------------------------------- names and errors

    def _path(self, key: str) -> Path:
        check_key(key)
        if key.split("/", 1)[0] in (_INCOMING, _METADATA):
            raise ValueError(f"object key uses a name of the directory store itself: {key!r}")
        return self._root / key

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Turn what the file system says into the errors of the contract."""
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"no object {self.name}{key}") from error
        except FileExistsError as error:
            raise AlreadyExists(f"{self.name}{key} exists already") from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(
                f"no object {self.name}{key}: one of the names on its way is no directory, or it is one"
            ) from error
        except PermissionError as error:
            raise AccessDenied(
                f"no permission for {error.filename or self._root / key}",
                hint="the user that runs frostline must be able to read and write the bucket's directory",
            ) from error
        except OSError as error:
            if error.errno == errno.EROFS:
                raise AccessDenied(
                    f"{self.name}{key}: the file system is mounted read-only",
                    hint="mount it for writing; to only read the bucket, set `read_only: true` for its disk",
                ) from error
            if error.errno in (errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
                raise Transient(f"{self.name}{key}: {error.strerror}") from error
            if error.errno == errno.ELOOP:
                raise Refused(f"{self.name}{key} is a symbolic link", hint="a bucket holds plain files only") from error
            if error.errno == errno.ENAMETOOLONG:
                raise Refused(
                    f"{self.name}{key}: the name is too long for this file system", hint="use a store that takes it"
                ) from error
            raise of_the_system(error, f"{self.name}{key}") or Damaged(
                f"{self.name}{key}: {error.strerror}", hint="check the disk and its file system"
            ) from error


def _writer_is_gone(path: Path) -> bool:
    """Whether a temporary file was left behind. The lock decides; age and pid cover the moment before it is taken."""
    if path.name in _active:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            age_seconds = time.time() - os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    host, _, mark = path.name.removesuffix(".tmp").rpartition(".")[0].rpartition(".")
    pid, _, start = mark.partition("-")  # versions before 0.2 wrote no start
    if host == socket.gethostname() and pid.isdigit():
        if int(pid) == os.getpid() or age_seconds > _FOREIGN_LEFTOVER_SECONDS:  # and not active: of a run before this
            return True
        return not (is_alive(int(pid), start.replace("_", "/")) if start else process_start(int(pid)))
    return age_seconds > _FOREIGN_LEFTOVER_SECONDS


@functools.cache
def _own_mark(pid: int) -> str:
    """This process in the name of a file that it writes: a process id comes again."""
    return f"{pid}-{process_start(pid).replace('/', '_')}"


def _sorted_entries(
    directory: Path, base: str, prefix: bytes, start_after: bytes
) -> list[tuple[bytes, os.DirEntry[bytes]]]:
    """Those of a directory that are wanted, or may have something below them that is; of many others each costs little:
    a log is asked for what is new in it again and again."""
    found = []
    above, own = os.fsencode(base), {os.fsencode(name) for name in (_INCOMING, _METADATA)} if not base else ()
    try:
        with os.scandir(os.fsencode(directory)) as entries:
            for entry in entries:
                key = above + entry.name
                if entry.name in own or not (key.startswith(prefix) or prefix.startswith(key)):
                    continue
                if key > start_after and entry.is_file(follow_symlinks=False):
                    if key.startswith(prefix):
                        found.append((key, entry))
                    continue
                key += b"/"
                # Everything below shares these leading bytes: skip it when no key of it can be wanted.
                if key < start_after and not start_after.startswith(key):
                    continue
                if (key.startswith(prefix) or prefix.startswith(key)) and entry.is_dir(follow_symlinks=False):
                    found.append((key, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise AccessDenied(
            f"no permission to list {directory}", hint="the user that runs frostline must be able to read it"
        ) from error
    found.sort(key=lambda pair: pair[0])
    return found


def _info(key: str, status: os.stat_result, metadata: Mapping[str, str]) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), metadata)


def _read_exactly(file: IO[bytes], size_bytes: int) -> bytes:
    data = file.read(size_bytes)
    while len(data) < size_bytes:
        more = file.read(size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def _copy_bytes(reader: IO[bytes], writer: IO[bytes], size_bytes: int) -> None:
    """Let the kernel copy (a reflink where the file system can)."""
    done = 0
    while done < size_bytes:
        sent = os.copy_file_range(reader.fileno(), writer.fileno(), size_bytes - done)
        if sent == 0:
            raise Damaged(f"file became shorter while it was copied: {reader.name}")
        done += sent


def _write_all(file: IO[bytes], data: memoryview) -> None:
    """An unbuffered write may be short where the disk is nearly full; the rest then raises."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])
