"""Loggers that cost nothing until logging is used, and safe display of foreign text.

Importing `logging` takes a sixteenth of a warm start. A process that never imported it has no
level, handler or filter, so the null handler of the logger `penstock` would drop every record.
Therefore no record is made. Text of other processes and files is escaped, so that its characters
cannot control a terminal.
"""

from __future__ import annotations

import re
import sys
from typing import Final

_KEPT: Final = "\t\n"
_JSON_STRING: Final = r"[^\x20-\x7e]+"


class Log:
    """`logging.getLogger(name)`, used only once *logging* has been imported."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *arguments: object) -> None:
        """Logs *message*, a printf-style format for *arguments*, as in `logging`."""
        self._log("DEBUG", message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        self._log("INFO", message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self._log("WARNING", message, arguments)

    def _log(self, level: str, message: str, arguments: tuple[object, ...]) -> None:
        if "logging" in sys.modules:
            import logging

            keep_quiet()
            number: int = getattr(logging, level)
            # The stack level makes the record name the caller of `debug`, `info` or `warning`.
            logging.getLogger(self._name).log(number, message, *arguments, stacklevel=3)


def keep_quiet() -> None:
    """Gives the logger `penstock` a null handler, as libraries do, if `logging` is imported."""
    if "logging" in sys.modules:
        import logging

        top = logging.getLogger("penstock")
        if not any(isinstance(handler, logging.NullHandler) for handler in top.handlers):
            top.addHandler(logging.NullHandler())


def printable(text: str) -> str:
    r"""*text* with unprintable characters escaped, except tabs and newlines.

    ESC becomes `\x1b`. Text direction controls, other line endings and undecodable bytes of file
    names are escaped too (Python's `str.isprintable`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else _escape(c) for c in text)


def printable_json(encoded: str) -> str:
    """One line of JSON with unprintable characters as JSON escapes. The content is the same."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(c if c.isprintable() else _json_escape(c) for c in found[0])

    return re.sub(_JSON_STRING, escaped, encoded)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
