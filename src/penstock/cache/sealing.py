"""Small sealed files of JSON: `{"<name>":<record>,"seal":"<64 digits>"}`. The seal is checked
before anything is parsed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

_BEFORE_SEAL = b',"seal":"'
_END = b'"}'
_DIGITS = 64


def sealed(name: str, record: bytes, seal: str) -> bytes:
    """The file of the JSON value *record* under *name*; *seal* are 64 digits that authenticate it."""
    return _beginning(name) + record + _BEFORE_SEAL + seal.encode() + _END


def unsealed(name: str, content: bytes, seal: Callable[[bytes], str]) -> bytes | None:
    """The record in *content*, if its seal is what *seal* makes of it; None for anything else.

    White space at the end does not count.
    """
    content = content.rstrip()
    begin, end = len(_beginning(name)), len(content) - len(_END) - _DIGITS
    record, digits = content[begin : end - len(_BEFORE_SEAL)], content[end : -len(_END)]
    if content != _beginning(name) + record + _BEFORE_SEAL + digits + _END:
        return None
    return record if hmac.compare_digest(seal(record).encode(), digits) else None


def _beginning(name: str) -> bytes:
    return b'{"' + name.encode() + b'":'
