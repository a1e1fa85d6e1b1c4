"""What another process or a file says, before it is shown: no character of it may command a
terminal.
"""

from __future__ import annotations

import re
from typing import Final

_KEPT: Final = "\t\n"
_JSON_STRING: Final = re.compile(r"[^\x20-\x7e]+")


def printable(text: str) -> str:
    r"""*text* with whatever is no character to be seen as an escape, but tabulators and ends of
    lines: ESC is `\x1b`, and so are controls of the direction of text, other ends of lines, and
    bytes of a file's name that are no text (Python's `str.isprintable`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else _escape(c) for c in text)


def printable_json(encoded: str) -> str:
    """JSON of one line, with the same characters as JSON's own escapes: it says the same."""
    return _JSON_STRING.sub(
        lambda found: "".join(c if c.isprintable() else _json_escape(c) for c in found[0]), encoded
    )


def _escape(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
    )


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
