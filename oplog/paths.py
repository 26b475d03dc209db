"""Which paths are safe. Log entries and snapshots come from a bucket: every path in them is hostile until checked."""

from __future__ import annotations

import re

_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]{1,255}"
_SAFE = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*\Z")
_PATH_LIMIT_BYTES = 1024
_SEGMENT_LIMIT_BYTES = 255


def is_safe(path: str) -> bool:
    """Relative, no empty, `.` or `..` segment, no control character, at most 1024 bytes and 255 a segment."""
    if len(path) > _PATH_LIMIT_BYTES or not _SAFE.match(path):
        return False
    if path.isascii():
        return True
    try:
        segments = path.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    return sum(map(len, segments)) + len(segments) - 1 <= _PATH_LIMIT_BYTES and all(
        len(segment) <= _SEGMENT_LIMIT_BYTES for segment in segments
    )


def ancestors(path: str) -> list[str]:
    """The directories above the path, nearest last: `a/b/c` has `a` and `a/b`."""
    segments = path.split("/")
    return ["/".join(segments[:count]) for count in range(1, len(segments))]


def below(directory: str) -> tuple[str, str]:
    """The half-open range of paths below the directory (all paths for ""); `0` is the character after `/`."""
    return (f"{directory}/", f"{directory}0") if directory else ("", "\U0010ffff")
