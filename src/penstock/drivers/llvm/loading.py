"""Object code in memory, ready to be called."""

from __future__ import annotations

import itertools
from typing import Any, Final, Protocol

from penstock.errors import GeneralFailure


class Image(Protocol):
    """Loaded object code."""

    def symbol(self, name: str) -> int:
        """The address of a function. Raises `GeneralFailure` if there is none."""
        ...

    def close(self) -> None:
        """Unmaps the code. A second call does nothing."""
        ...


_numbers: Final = itertools.count()
_compiler: list[Any] = []


class JitImage:
    """Object code in LLVM's just-in-time linker."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm

        if not _compiler:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            target = llvm.Target.from_default_triple()
            machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), reloc="pic")
            _compiler.append(llvm.create_lljit_compiler(machine))
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        builder.export_symbol("run")
        self._library = builder.link(_compiler[0], f"penstock{next(_numbers)}")

    def symbol(self, name: str) -> int:
        try:
            return int(self._library[name])
        except KeyError:
            raise GeneralFailure(f"the code has no function {name}") from None

    def close(self) -> None:
        self._library = {}


def load(code: bytes | memoryview) -> Image:
    """The object *code*, mapped."""
    return JitImage(bytes(code))
