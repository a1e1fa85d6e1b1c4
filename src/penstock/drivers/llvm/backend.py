"""LLVM, through llvmlite: the text of a module becomes object code. The only user of llvmlite.

Nothing here is imported for a model from the cache.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

from penstock.driverkit.lazy_engine import LazyEngine, message_of
from penstock.drivers.llvm.isa.record import Isa

OPTIMISATION: Final = 2

OPTIONS: Final = (
    "penstock",
    "-enable-misched=false",
    "-disable-lsr",
    "-x86-machine-combiner=false",
)
"""Kernels are written in the order in which they should run; LLVM's scheduler would spill. Their
addresses are as they should be computed, too: to search for others takes a fifth of the time.
"""

_inside: Final = threading.RLock()
"""Held while LLVM works: llvmlite holds a lock of its own then, and a child that was forked
meanwhile would wait for it forever. So a fork waits for LLVM.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_inside.acquire, after_in_parent=_inside.release, after_in_child=_inside.release
    )


def _load() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in OPTIONS[1:]:
        llvm.set_option(OPTIONS[0], option)
    return llvm


def _message(error: Exception) -> str:
    """The line that says what is wrong: of LLVM's parser the second, of anything else the first."""
    is_parsed = "parsing error" in str(error).partition("\n")[0] and "\n" in str(error)
    return message_of(error, line=1 if is_parsed else 0)


_engine: Final = LazyEngine(
    "LLVM", _load, "this process was forked while LLVM was loaded", _message, forkable=True
)


def triple(isa: Isa) -> str:
    """The target: ELF objects on every system, with the calling convention of this one."""
    if sys.platform == "win32" and isa.architecture == "x86_64":
        return "x86_64-pc-windows-msvc-elf"
    return f"{isa.architecture}-unknown-linux-gnu"


def flags(isa: Isa) -> str:
    """The features of *isa*, as LLVM takes them."""
    used = [f"+{feature}" for feature in isa.features]
    if isa.architecture == "x86_64" and isa.width == 64:
        used.append("-prefer-256-bit")
    if isa.architecture == "aarch64":
        used.append("+reserve-x18")  # the platform's own register on macOS and Windows
    return ",".join(used)


def compile_object(text: str, isa: Isa) -> bytes:
    """The object code of the module *text*. Raises `GeneralFailure` with LLVM's message."""
    with _inside, _engine.guarded("compile the model"):
        llvm = _engine.get()
        code: bytes = _machine(llvm, isa).emit_object(_parsed(llvm, text))
    return code


def assembly(text: str, isa: Isa) -> str:
    """The assembly of the module *text*."""
    with _inside, _engine.guarded("compile the model"):
        llvm = _engine.get()
        written: str = _machine(llvm, isa).emit_assembly(_parsed(llvm, text))
    return written


def _parsed(llvm: Any, text: str) -> Any:
    module = llvm.parse_assembly(text)
    module.verify()
    return module


def _machine(llvm: Any, isa: Isa) -> Any:
    target = llvm.Target.from_triple(triple(isa))
    return target.create_target_machine(
        cpu="", features=flags(isa), opt=OPTIMISATION, reloc="pic", codemodel="small"
    )
