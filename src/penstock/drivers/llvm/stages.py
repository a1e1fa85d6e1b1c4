"""The stages of a compile as text (`penstock dump -d llvm --after STAGE`)."""

from __future__ import annotations

from typing import Final

from penstock.compiler import memory
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.printing import operation_names, show, show_plan
from penstock.drivers.llvm import backend
from penstock.drivers.llvm.compiling import LAST, legal, lowered
from penstock.drivers.llvm.emit.module import generate, template_of
from penstock.drivers.llvm.isa.record import Isa
from penstock.ir import Model

LEGALISE: Final = "legalise"
MEMORY: Final = "memory"
LLVM: Final = "llvm"

PASSES: Final = ("fuse", "layout")
"""Stages that are passes of the front half."""


def dump(model: Model, isa: Isa, stage: str) -> str:
    """What *stage* makes of *model* for *isa*. Needs llvmlite for `asm` alone."""
    names = operation_names(model)
    if stage == LEGALISE:
        return show(legal(model), names)
    if stage in PASSES:
        return show(lowered(model, isa, stage), names)
    planned = memory.plan(with_own_outputs(lowered(model, isa, LAST)))
    if stage == MEMORY:
        program = planned.program
        templates = [template_of(program, kernel, isa).name for kernel in program.kernels]
        return f"{show(program, names, templates)}\n{show_plan(planned)}"
    text = generate(planned, isa).text
    return text if stage == LLVM else backend.assembly(text, isa)
