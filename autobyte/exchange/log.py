"""Where AutoByte's log goes in a script that has not set up logging: to stderr, from rank 0."""

import logging

log = logging.getLogger("autobyte")


class Fallback(logging.Handler):
    """Writes to stderr until the script sets up handlers of its own; then it writes nothing.

    A library must not set up logging for a script, and a script that does not know of logging should still hear what
    changes its training. Optuna writes to stderr by default, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stderr = logging.StreamHandler()
        self._stderr.setFormatter(logging.Formatter("[autobyte %(asctime)s] %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless a handler of the script's does."""
        if any(handler is not self for handler in (*log.handlers, *logging.getLogger().handlers)):
            log.removeHandler(self)
            log.setLevel(logging.NOTSET)  # the script's level counts from now on
            return
        self._stderr.emit(record)


def show_log() -> None:
    """Show what is logged from the level INFO on, unless the script has handlers, or has set a level.

    To hear less, a script says `logging.getLogger("autobyte").setLevel(logging.WARNING)`.
    """
    if log.hasHandlers() or log.level != logging.NOTSET:
        return
    log.addHandler(Fallback())
    log.setLevel(logging.INFO)
