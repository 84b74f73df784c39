# SPDX-License-Identifier: Apache-2.0
"""Messages for `logging`, without importing it: the import is a tenth of `import rnic`, and few programs use
it.

    _log = Log("rnic.conn")
    _log.info("%r: %s", conn, error)

If a program has imported `logging`, before or later, its loggers get all messages. Otherwise warnings and
errors go to stderr, as with `logging.lastResort`.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["DEBUG", "ERROR", "INFO", "WARNING", "Log"]

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # logging's


class Log:
    """A logger with the name that `logging.getLogger()` would take."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Logger | None = None

    def debug(self, text: str, *values: object) -> None:
        """A message for debugging."""
        self._write(DEBUG, text, values)

    def info(self, text: str, *values: object) -> None:
        """A message about normal work."""
        self._write(INFO, text, values)

    def warning(self, text: str, *values: object) -> None:
        """A message about a problem that may need attention."""
        self._write(WARNING, text, values)

    def error(self, text: str, *values: object, error: BaseException | None = None) -> None:
        """A message about a failure, with the traceback of an exception."""
        self._write(ERROR, text, values, error)

    def log(self, level: int, text: str, *values: object, error: BaseException | None = None) -> None:
        """A message at any level."""
        self._write(level, text, values, error)

    def _write(
        self, level: int, text: str, values: tuple[object, ...], error: BaseException | None = None
    ) -> None:
        if self._logger is None and "logging" in sys.modules:
            import logging  # another thread may be about it still: this waits

            self._logger = logging.getLogger(self._name)
        if self._logger is not None:
            self._logger.log(level, text, *values, exc_info=error, stacklevel=3)
        elif level >= WARNING:
            with suppress(Exception):  # logging raises nothing either: stderr may be closed, or None
                sys.stderr.write(f"{text % values}\n")
                if error is not None:
                    sys.__excepthook__(type(error), error, error.__traceback__)
