"""`load` makes an object executable in this process; `Image` is the result."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from penstock.closing import Closing
from penstock.drivers.llvm.load.elf import Object, broken, parse
from penstock.drivers.llvm.load.memory import Executable, page_size
from penstock.drivers.llvm.load.relocate import place, relocated
from penstock.errors import ClosedError

HERE: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other names of the architectures, as systems give them."""


class Image(Closing):
    """An object in executable memory, until it is closed.

    Nobody may execute its code, or be executing it, when it is closed: the user of the image sees
    to it. *size* is its bytes, whole pages.
    """

    def __init__(self, object_: Object) -> None:
        here = platform.machine().lower()
        here = HERE.get(here, here)
        if object_.architecture != here:
            raise broken(f"it is for {object_.architecture}, and this processor is {here}")
        placed = place(object_, page_size())
        if not placed.size:
            raise broken("it has neither code nor data")
        self.size = placed.size
        self._memory = Executable(placed.size, placed.code, lambda at: relocated(placed, at))
        base = self._memory.address
        self._spans = {
            name: (base + placed.starts[s.section] + s.offset, s.size)
            for name, s in object_.symbols.items()
            if s.is_function
        }

    def address(self, name: str) -> int:
        """The address of the function *name*. Raises `GeneralFailure` if there is none,
        `ClosedError` once the image is closed.
        """
        if not self._memory.is_open:
            raise ClosedError("the generated code was unloaded")
        if name not in self._spans:
            raise broken(f"it has no function {name!r}")
        return self._spans[name][0]

    @property
    def functions(self) -> Mapping[str, tuple[int, int]]:
        """Every function by name, as (address, bytes), for profilers."""
        return self._spans

    def close(self) -> None:
        """Unmaps the memory, once; a further call does nothing."""
        self._memory.close()


def load(content: bytes | memoryview) -> Image:
    """Loads the relocatable ELF object *content* for this processor.

    Raises `GeneralFailure` if it is damaged, for another processor, or needs what is not in it;
    `ResourceExhaustedTransient` if there is no memory.
    """
    return Image(parse(content))
