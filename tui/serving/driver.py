"""What a dashboard draws goes to the server that started it, and ends when that has gone."""

from __future__ import annotations

from textual import messages
from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """textual's own, which goes on for ever when nobody reads it any more."""

    def run_input_thread(self) -> None:
        """Read until the server closes the pipe, orderly or by its death."""
        super().run_input_thread()
        self._app.post_message(messages.ExitApp())
