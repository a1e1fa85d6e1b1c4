"""The names and the sealed form of the files of a cache directory."""

from __future__ import annotations

import hmac
import os
import re
import time
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from penstock.distribution import BY_THE_PROGRAM
from penstock.errors import InputError
from penstock.hal import BYTE_SIZE_OF_CACHE_TOKEN, MAX_NUMBER_OF_CACHE_FILES

Digits: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER_OF_CACHE_FILES)]
Role: TypeAlias = Literal["model", "data", "index", "lock", "lease"]

VERDICTS: Final = "placements"
"""The directory of measured placements, below the cache directory."""

DRIVER_VERDICTS: Final = "driver-verdicts"
"""The directory of verdicts on drivers, below the state directory."""

ANSWERS: Final = "support"
"""The directory of kept answers about support, below the cache directory."""

PLANS: Final = "plans"
"""The directory of kept plans, below the cache directory."""

CALIBRATIONS: Final = "calibrations"
"""The directory of measured costs of engines, below the cache directory."""

LEARNED: Final = "learned"
"""The directory of what runs of networks took, below the cache directory."""

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
    """The parts of a file name; *number* is among the files of its kind."""

    token: bytes
    role: Role
    number: int
    temporary: bool


def letters_of(token: bytes) -> str:
    """The 64 letters of *token*: A to P for each half byte, the low one first."""
    if len(token) != BYTE_SIZE_OF_CACHE_TOKEN:
        raise InputError(f"a cache token has {BYTE_SIZE_OF_CACHE_TOKEN} bytes, not {len(token)}")
    return token.translate(_SWAPPED_HALVES).hex().translate(_TO_LETTERS)


def file_names(token: bytes, models: int, datas: int) -> list[str]:
    """An entry's file names (NNAPI section 2.3), model files first: letters, kind, index."""
    letters = letters_of(token)
    return [f"{letters}{kind}{i}" for kind, n in ((1, models), (2, datas)) for i in range(n)]


def index_name(token: bytes) -> str:
    return f"{letters_of(token)}.json"


def lock_name(token: bytes) -> str:
    """The lock's name: readers hold it shared, publication and late writes exclusively."""
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


R = TypeVar("R", bound=Struct)


def sealed(name: str, record: Struct, domain: bytes, key: bytes) -> bytes:
    """A file's content: *record* as JSON under *name*, and its HMAC-SHA-256 for *domain*."""
    content = msgspec.json.encode(record)
    return _head(name) + content + _BEFORE_SEAL + _seal(content, domain, key) + _END


def unsealed(name: str, content: bytes, kind: type[R], domain: bytes, key: bytes) -> R | None:
    """The record in *content*, if it is authentic; else None. White space at the end is ignored."""
    content, head = content.rstrip(), _head(name)
    begin, end = len(head), len(content) - len(_END) - _SEAL_DIGITS
    stop, seal = end - len(_BEFORE_SEAL), content[end : -len(_END)]
    if stop < begin or not (content.startswith(head) and content.endswith(_END)):
        return None
    # A plan has hundreds of kilobytes, and each copy of them takes as long as their seal.
    record = memoryview(content)[begin:stop]
    if content[stop:end] != _BEFORE_SEAL:
        return None
    if not hmac.compare_digest(_seal(record, domain, key), seal):
        return None
    try:
        return msgspec.json.decode(record, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _head(name: str) -> bytes:
    return b'{"' + name.encode() + b'":'


def _seal(content: bytes | memoryview, domain: bytes, key: bytes) -> bytes:
    seal = hmac.new(key, domain + b"\0", "sha256")
    seal.update(content)
    return seal.hexdigest().encode()


MOST_INDEX_BYTES: Final = 1 << 20

_DOMAIN: Final = b"penstock cache index"


class IndexRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an entry.

    *token* and *binding* are 64 hexadecimal digits. *ingredients* maps name to text for every
    ingredient of the key. *models* and *datas* are the numbers of files, *created* is in seconds
    since the epoch, *compile_ns* is the duration of the compile, *penstock* the version that wrote
    it.
    """

    token: Digits
    binding: Digits
    device: str
    version: str
    ingredients: dict[str, str]
    models: Count
    datas: Count
    compile_ns: int = 0
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""

    @property
    def source(self) -> str:
        """The origin of the device (`penstock.distribution`)."""
        return self.ingredients.get("source", BY_THE_PROGRAM)


def pack_record(record: IndexRecord, key: bytes) -> bytes:
    """The bytes of an index file: the record as JSON, and its HMAC-SHA-256 under *key*."""
    return sealed("record", record, _DOMAIN, key) + b"\n"


def unpack_record(content: bytes, key: bytes, token: bytes) -> IndexRecord | None:
    """The record, if it is authentic and of *token*; else None."""
    record = unsealed("record", content, IndexRecord, _DOMAIN, key)
    return None if record is None or record.token != token.hex() else record
