"""Numbers of things in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def there_are(names: Sequence[str]) -> str:
    """`there are 'a', 'b'`; of one `there is only 'a'`, of none `there are none`."""
    shown = ", ".join(map(repr, names)) or "none"
    return f"there is only {shown}" if len(names) == 1 else f"there are {shown}"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """`1 step`, `2 steps`; *nouns* is a plural that has more to it than an s."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
