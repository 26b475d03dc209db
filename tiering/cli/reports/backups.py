"""What verbs say of backups."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tiering.plugins import Plug

if TYPE_CHECKING:
    from tiering.config.settings import Config


class NewestBackups(Protocol):
    """The newest backup of each table, as this machine last saw it. Asks no repository."""

    def status_document(self, config: "Config", tables: Mapping[str, str]) -> dict[str, Any] | None:
        """What `status` says of the tables, given by uuid and name. None where no repository is configured."""

    def status_lines(self, document: Mapping[str, Any]) -> list[str]:
        """The same as lines of text."""


newest_backups = Plug[NewestBackups]("newest backups")
