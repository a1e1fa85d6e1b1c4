"""The names and the sealed form of the files of a cache directory."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from penstock.errors import InputError
from penstock.hal import BYTE_SIZE_OF_CACHE_TOKEN, MAX_NUMBER_OF_CACHE_FILES

Digits: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER_OF_CACHE_FILES)]
Role: TypeAlias = Literal["model", "data", "index", "lock", "lease"]

VERDICTS: Final = "placements"
"""The directory of measured placements, below the cache directory."""

DRIVER_VERDICTS: Final = "driver-verdicts"
"""The directory of verdicts on drivers, below the state directory."""

_DIGITS: Final = "0123456789abcdef"
_LETTERS: Final = "ABCDEFGHIJKLMNOP"
_TO_LETTERS: Final = str.maketrans(_DIGITS, _LETTERS)
_TO_DIGITS: Final = str.maketrans(_LETTERS, _DIGITS)
_SWAPPED_HALVES: Final = bytes((byte & 15) << 4 | byte >> 4 for byte in range(256))
_ROLES: Final[dict[str, Role]] = {
    "1": "model",
    "2": "data",
    ".json": "index",
    ".lock": "lock",
    ".lease": "lease",
}
_NAME: Final = r"([A-P]{64})(?:([12])(0|[1-9][0-9]?)|(\.json|\.lock|\.lease))(\.[0-9a-f]{16}\.tmp)?"


class ParsedName(Struct, frozen=True):
    """The parts of a file name.

    *token* is the entry's token, *role* the file's role, *number* its number among the files of its
    kind. *temporary* means not published yet.
    """

    token: bytes
    role: Role
    number: int
    temporary: bool


def letters_of(token: bytes) -> str:
    """The 64 letters at the start of every file name of *token*.

    A to P for each half byte, the low one first (NNAPI section 2.3). Raises `InputError` for a
    token that is not 32 bytes long.
    """
    if len(token) != BYTE_SIZE_OF_CACHE_TOKEN:
        raise InputError(f"a cache token has {BYTE_SIZE_OF_CACHE_TOKEN} bytes, not {len(token)}")
    return token.translate(_SWAPPED_HALVES).hex().translate(_TO_LETTERS)


def file_names(token: bytes, models: int, datas: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of an entry's model and data files (NNAPI section 2.3): letters, kind, index."""
    letters = letters_of(token)
    return (
        tuple(f"{letters}1{i}" for i in range(models)),
        tuple(f"{letters}2{i}" for i in range(datas)),
    )


def index_name(token: bytes) -> str:
    """The name of the sealed index."""
    return f"{letters_of(token)}.json"


def lock_name(token: bytes) -> str:
    """The name of the lock: readers hold it shared, publication and late writes hold it
    exclusively.
    """
    return f"{letters_of(token)}.lock"


def lease_name(token: bytes) -> str:
    """The name of the lease, which the compiling process holds exclusively."""
    return f"{letters_of(token)}.lease"


def short_name(name: str) -> str:
    """*name* for messages: 64 letters or digits are shortened to the first ones."""
    return name if len(name) < BYTE_SIZE_OF_CACHE_TOKEN * 2 else f"{name[:8]}...{name[64:]}"


def temporary_name(name: str) -> str:
    """A unique temporary name for a file that will be renamed to *name*."""
    return f"{name}.{os.urandom(8).hex()}.tmp"


def parse_name(name: str) -> ParsedName | None:
    """Parses a file name; None for a name that is not of a cache file."""
    if (found := re.fullmatch(_NAME, name)) is None:
        return None
    letters, kind, digits, suffix, temporary = found.groups()
    number = int(digits or 0)
    if number >= MAX_NUMBER_OF_CACHE_FILES:
        return None
    token = bytes.fromhex(letters.translate(_TO_DIGITS)).translate(_SWAPPED_HALVES)
    return ParsedName(token, _ROLES[kind or suffix], number, temporary is not None)


_BEFORE_SEAL: Final = b',"seal":"'
_END: Final = b'"}'
_SEAL_DIGITS: Final = 64


def sealed(name: str, record: bytes, seal: str) -> bytes:
    """The file content for the JSON value *record* under *name*. *seal* is its seal of 64
    digits.
    """
    return _beginning(name) + record + _BEFORE_SEAL + seal.encode() + _END


def unsealed(name: str, content: bytes, seal: Callable[[bytes], str]) -> bytes | None:
    """The record in *content*, if its seal equals the result of *seal*; else None.

    White space at the end is ignored.
    """
    content = content.rstrip()
    begin, end = len(_beginning(name)), len(content) - len(_END) - _SEAL_DIGITS
    record, digits = content[begin : end - len(_BEFORE_SEAL)], content[end : -len(_END)]
    if content != _beginning(name) + record + _BEFORE_SEAL + digits + _END:
        return None
    return record if hmac.compare_digest(seal(record).encode(), digits) else None


def _beginning(name: str) -> bytes:
    return b'{"' + name.encode() + b'":'
