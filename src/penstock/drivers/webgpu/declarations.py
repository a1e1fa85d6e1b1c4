"""The C declarations of wgpu's library, parsed: otherwise cffi parses them in each process, and
much of them again for each type that wgpu names first, which takes a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

PARSED: Final = "declarations.json"
"""What cffi makes of them. tools/generate_webgpu_declarations.py writes it."""

_Name: TypeAlias = str
"""Bytes, as characters of Latin-1."""


class Parsed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of cffi's `FFI` for declarations whose text has the SHA-256 digest *text*.

    *version* is the oldest form of them that cffi has to understand.
    """

    text: str
    version: int
    types: _Name
    globals: tuple[_Name | int, ...]
    struct_unions: tuple[tuple[_Name, ...], ...]
    enums: tuple[_Name, ...]
    typenames: tuple[_Name, ...]

    def made(self) -> Any:
        """The object of cffi that has these declarations."""
        # The part of cffi that is written in C.
        made: Any = import_module("_cffi_backend").FFI
        return made(
            "wgpu_native",
            _version=self.version,
            _types=_bytes(self.types),
            _globals=tuple(x if isinstance(x, int) else _bytes(x) for x in self.globals),
            _struct_unions=tuple(tuple(map(_bytes, each)) for each in self.struct_unions),
            _enums=tuple(map(_bytes, self.enums)),
            _typenames=tuple(map(_bytes, self.typenames)),
        )


def _bytes(name: _Name) -> bytes:
    return name.encode("latin-1")


def parsed() -> Parsed:
    """The declarations that Penstock brings."""
    return msgspec.json.decode(Path(__file__).with_name(PARSED).read_bytes(), type=Parsed)


@contextmanager
def parsed_declarations() -> Iterator[None]:
    """A block that imports wgpu's engine. If its declarations are those that Penstock brings, cffi
    does not parse them. Other users of cffi notice nothing.
    """
    import cffi

    with _patching:
        own = cffi.FFI
        cffi.FFI = _subclass(own)
        try:
            yield
        finally:
            cffi.FFI = own


def _subclass(own: Any) -> Any:
    """The class in the place of *own*, cffi's `FFI`."""

    class Declared(own):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # Its constructor imports the parser.
            self.__dict__["_given"] = arguments, options

        def __getattr__(self, name: str) -> Any:
            if (given := self.__dict__.pop("_given", None)) is None:
                raise AttributeError(name)
            super().__init__(*given[0], **given[1])
            return getattr(self, name)

        def cdef(self, csource: str, *arguments: Any, **options: Any) -> None:
            known = parsed()
            if arguments or options or sha256(csource.encode()).hexdigest() != known.text:
                super().cdef(csource, *arguments, **options)
                return
            made = known.made()
            for name in dir(made):
                # A property, `errno`, is the same in every object.
                if not name.startswith("_") and not isinstance(getattr(own, name, None), property):
                    setattr(self, name, getattr(made, name))
            self.set_source = lambda *_: None

    return Declared


_patching: Final = threading.Lock()
