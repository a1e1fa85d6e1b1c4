"""`Template`: what writes the code of one kernel."""

from __future__ import annotations

from typing import Protocol

from penstock.drivers.llvm.emit.assembler import Function
from penstock.ir import NDArray


class Template(Protocol):
    """One kernel, matched by a template.

    *name* is the template's. *tensors* are those that the function takes, by number, without
    aliases; pointers to `constants()` follow them. Kernels of one *key* have the same function,
    whatever their tensors and constants are. *units* is how many parts the work has, which threads
    share.
    """

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> tuple[int, ...]: ...
    @property
    def key(self) -> object: ...
    @property
    def units(self) -> int: ...

    def constants(self) -> tuple[NDArray, ...]:
        """The packed constants, each aligned to 64 bytes."""
        ...

    def write(self, name: str) -> Function:
        """The function, under *name*. It computes units `begin` to `end`."""
        ...
