"""Loggers of the standard library that cost nothing until somebody listens.

Importing `logging` is a sixteenth of a warm start. A process that never imported it has set no
level, handler or filter, and what reached the null handler of the logger `penstock` there would be
dropped: so nothing is made of it.
"""

from __future__ import annotations

import sys


class Log:
    """`logging.getLogger(name)`, asked for when there is something to log and *logging* has been
    imported.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *arguments: object) -> None:
        """*message* is a format of printf's kind for *arguments*, as for all of `logging`."""
        self._pass_on("DEBUG", message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        self._pass_on("INFO", message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self._pass_on("WARNING", message, arguments)

    def _pass_on(self, level: str, message: str, arguments: tuple[object, ...]) -> None:
        if "logging" in sys.modules:
            import logging

            keep_quiet()
            number: int = getattr(logging, level)
            # The place that a record names is the caller of `debug`, `info` or `warning`.
            logging.getLogger(self._name).log(number, message, *arguments, stacklevel=3)


def keep_quiet() -> None:
    """Gives the logger `penstock` its null handler, as a library does, where `logging` has been
    imported.
    """
    if "logging" in sys.modules:
        import logging

        top = logging.getLogger("penstock")
        if not any(isinstance(handler, logging.NullHandler) for handler in top.handlers):
            top.addHandler(logging.NullHandler())
