"""What is made of a model, for people: the stages of a compile (`penstock dump -d webgpu-software
--after STAGE`), and the template of each operation (`penstock plan`).
"""

from __future__ import annotations

from typing import Final

from penstock.compiler import memory
from penstock.compiler.entry import legal
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.printing import operation_names, show, show_plan
from penstock.drivers.webgpu.calls import ALIGNMENT
from penstock.drivers.webgpu.compiling import lowered
from penstock.drivers.webgpu.emit.form import form_of
from penstock.drivers.webgpu.emit.module import generate, template_of
from penstock.hal import PrepareConfig
from penstock.ir import Model

NO_KERNEL: Final = "no shader: a view of its input, or computed at compile time"


def dump(model: Model, stage: str, config: PrepareConfig) -> str:
    """What *stage* makes of *model*. Needs no adapter."""
    names = operation_names(model)
    if stage == "legalise":
        return show(legal(model, config), names)
    if stage == "fuse":
        return show(lowered(model, config, stage), names)
    program = with_own_outputs(lowered(model, config))
    if stage == "memory":
        templates = [template_of(k, form_of(program, k)) for k in program.kernels]
        planned = memory.plan(program, ALIGNMENT)
        return f"{show(program, names, templates)}\n{show_plan(planned)}"
    made = generate(program, is_relaxed=config.accuracy == "relaxed")
    texts = []
    for number, text in enumerate(made.shaders):
        users = [f"kernel {k} ({c.name})" for k, c in enumerate(made.calls) if c.shader == number]
        texts.append(f"// shader {number}, for {', '.join(users)}\n{text}")
    return "\n".join(texts)


def explain(model: Model, config: PrepareConfig) -> list[str]:
    """For each operation of *model* the templates of its kernels, and with which operations it is
    fused.
    """
    program = lowered(model, config)
    templates: list[dict[str, None]] = [{} for _ in model.operations]
    others: list[set[int]] = [set() for _ in model.operations]
    for kernel in program.kernels:
        template = template_of(kernel, form_of(program, kernel))
        for operation in kernel.origin:
            templates[operation][template] = None
            others[operation] |= {*kernel.origin} - {operation}
    texts = []
    for found, fused in zip(templates, others, strict=True):
        words = ", ".join(found) or NO_KERNEL
        more = ", ".join(map(str, sorted(fused)))
        texts.append(f"{words}, with operation {more}" if found and more else words)
    return texts
