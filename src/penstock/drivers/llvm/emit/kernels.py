"""Writes the functions of kernels: kernels of equal code have one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from penstock.compiler.expression import Expression
from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit.assembler import Function
from penstock.drivers.llvm.emit.sharing import share
from penstock.drivers.llvm.emit.template import Template
from penstock.ir import NDArray

LONGEST_NAME: Final = 60

Written: TypeAlias = "tuple[Function, NDArray | None]"
"""The function of a kernel, and the table of numbers that it reads for it; None if it reads none.
"""


def write_kernels(
    program: Program, kernels: Sequence[Kernel], templates: Sequence[Template]
) -> list[Written]:
    """What computes each of *kernels*, whose templates are *templates*."""
    functions: dict[object, Function] = {}
    keys = []
    for kernel, template in zip(kernels, templates, strict=True):
        key = template.name, template.key, _key(program, kernel, template.tensors)
        if key not in functions:
            name = _name(len(functions), template.name, kernel.name)
            functions[key] = template.write(name)
        keys.append(key)
    shared = dict(zip(functions, share([*functions.values()]), strict=True))
    return [shared[key] for key in keys]


def _name(number: int, template: str, kernel: str) -> str:
    """The name of a function: what profilers and crash reports show of it."""
    shown = kernel if template in {"nest", kernel} else f"{template}_{kernel}"
    return f"k{number}_{re.sub(r'[^0-9A-Za-z]+', '_', shown)[:LONGEST_NAME]}"


def _key(program: Program, kernel: Kernel, tensors: tuple[int, ...]) -> object:
    """Equal for kernels whose code is equal: tensors by shape and place among the arguments."""
    numbers = {t: i for i, t in enumerate(tensors)}

    def number(tensor: int) -> int:
        return numbers.get(program.root(tensor), -1)

    accesses = []
    for access in (*kernel.reads, *kernel.extras, kernel.write):
        tensor = program.tensors[access.tensor]
        axes = tuple(
            (p.offset, p.steps, None if p.through is None else number(p.through))
            for p in access.axes
        )
        place = number(access.tensor)
        accesses.append((place, tensor.shape, tensor.dtype.value, axes, repr(access.fill)))
    tables = tuple(number(t) for t in (*kernel.body.tables, *kernel.finish.tables))
    expressions = repr(_untabled(kernel.body)), repr(_untabled(kernel.finish))
    return (
        expressions, kernel.sizes, len(kernel.loops), kernel.combine, tuple(accesses), tables,
        len(kernel.reads), kernel.order,
    )  # fmt: skip


def _untabled(expression: Expression) -> Expression:
    steps = tuple(replace(s, value=0) if s.operation == "lookup" else s for s in expression.steps)
    return replace(expression, steps=steps)
