"""Backups that are proved: a repository of what tables hold, made at one instant, verified, and restored anywhere."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backup.repository import Repository

__all__ = ["Repository"]


def __getattr__(name: str) -> object:
    """`backup.Repository`, loaded when it is asked for: the help of the command line needs only the verbs."""
    if name != "Repository":
        raise AttributeError(name)
    from backup.repository import Repository

    return Repository
