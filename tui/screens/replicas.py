"""What is said of replicas: this version has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult

from tui.screens.view import View
from tui.widgets.plain import Plain

if TYPE_CHECKING:
    from tiering.engine.store import Store


class Replicas(View):
    """Replicas, once there are any."""

    name_: ClassVar[str] = "Replicas"
    about: ClassVar[str] = "Replicas of tables on several machines: their queues, how far behind, the last error."
    needs_store: ClassVar[bool] = False

    def compose(self) -> ComposeResult:
        """How to get it."""
        yield Plain(
            "Replicated tables are not part of this version.",
            "",
            "Several machines can share a bucket today: each sees in Log what the others committed.",
            id="replicas",
        )

    def question(self) -> Callable[[Store], Any]:
        """Nothing yet."""
        return lambda store: None

    def answer(self, facts: Any) -> None:
        """Nothing yet."""
