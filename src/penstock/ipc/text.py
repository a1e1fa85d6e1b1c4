"""What another process or a file says, before it is shown: no byte of it may command a terminal."""

from __future__ import annotations

from typing import Final

_KEPT: Final = "\t\n"

_SHOWN: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in _KEPT
}


def printable(text: str) -> str:
    r"""*text* with every control character but tabulators and ends of lines as an escape: ESC as `\x1b`."""
    return text if text.isprintable() else text.translate(_SHOWN)
