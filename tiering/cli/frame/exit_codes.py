"""The exit codes that are no error of the library; the others are `FrostlineError.exit_code`."""

NOT_RUNNING = 1
FOUND_SOMETHING = 4
NOTHING_TO_DO = 9
INTERRUPTED = 130
TERMINATED = 143


class Finished(Exception):  # not a failure: the verb is done and says more than 0
    """Ends a verb with an exit code and without a message."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Terminated(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt it passes every `except Exception` on its way out."""
