"""What verbs say of backups."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tiering.plugins import Plug

if TYPE_CHECKING:
    from tiering.config.settings import Config
    from tiering.facts.backups import BackupsStatus


class NewestBackups(Protocol):
    """The newest backup of each table, as this machine last saw it. Asks no repository."""

    def backups_status(self, config: "Config", tables: Mapping[str, str]) -> "BackupsStatus | None":
        """What `status` says of the tables, given by uuid and name. None where no repository is configured."""

    def status_lines(self, document: "BackupsStatus") -> list[str]:
        """The same as lines of text."""


newest_backups = Plug[NewestBackups]("newest backups")
