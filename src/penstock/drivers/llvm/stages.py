"""What is made of a model, for people: the stages of a compile (`penstock dump -d llvm --after
STAGE`), and the template of each operation (`penstock plan`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.compiler import memory
from penstock.compiler.entry import legal
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.printing import operation_names, show, show_plan
from penstock.compiler.program import Program
from penstock.drivers.llvm import backend
from penstock.drivers.llvm.compiling import lowered
from penstock.drivers.llvm.emit.module import generate, template_of
from penstock.drivers.llvm.isa.record import Isa
from penstock.hal import PrepareConfig
from penstock.interrupts import polled
from penstock.ir import Model

LEGALISE: Final = "legalise"
MEMORY: Final = "memory"
LLVM: Final = "llvm"

PASSES: Final = ("fuse", "layout")
"""Stages that are passes of the front half."""


NO_KERNEL: Final = "no code: a view of its input, or computed at compile time"


def dump(model: Model, isa: Isa, stage: str, config: PrepareConfig) -> str:
    """What *stage* makes of *model* for *isa*. Needs llvmlite for `asm` alone."""
    names = operation_names(model)
    if stage == LEGALISE:
        return show(legal(model, config), names)
    if stage in PASSES:
        return show(lowered(model, isa, config, stage), names)
    planned = memory.plan(with_own_outputs(lowered(model, isa, config)))
    if stage == MEMORY:
        program = planned.program
        templates = templates_of(program, isa)
        return f"{show(program, names, templates)}\n{show_plan(planned)}"
    text = generate(planned, isa).text
    return text if stage == LLVM else backend.assembly(text, isa)


def templates_of(program: Program, isa: Isa) -> list[str]:
    """The name of the template of each kernel."""
    return [template_of(program, kernel, isa).name for kernel in polled(program.kernels)]


def explain(model: Model, isa: Isa, config: PrepareConfig) -> list[str]:
    """For each operation of *model* the templates of its kernels, and with which operations it is
    fused. Generates no code.
    """
    program = lowered(model, isa, config)
    templates: list[dict[str, None]] = [{} for _ in model.operations]
    others: list[set[int]] = [set() for _ in model.operations]
    for kernel, template in zip(program.kernels, templates_of(program, isa), strict=True):
        for operation in kernel.origin:
            templates[operation][template] = None
            others[operation] |= {*kernel.origin} - {operation}
    return [_words(t, o) for t, o in zip(templates, others, strict=True)]


def _words(templates: Iterable[str], fused: Iterable[int]) -> str:
    words = ", ".join(templates)
    if not words:
        return NO_KERNEL
    more = ", ".join(map(str, sorted(fused)))
    return f"{words}, with operation {more}" if more else words
