"""What tests of the driver `webgpu` share. They run on software (`webgpu-software`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.compiler.expression import Expression
from penstock.compiler.interpreter import as_declared
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.driverkit.artefact import Port, Ports
from penstock.drivers.webgpu import WebGpuDevice
from penstock.drivers.webgpu.artefact import SCHEMA, Manifest
from penstock.drivers.webgpu.emit.module import generate
from penstock.drivers.webgpu.installation import SOFTWARE, missing
from penstock.hal import ExecutionConfig
from penstock.ir import DType, NDArray

REASON: Final = missing(SOFTWARE)

needs_webgpu: Final = pytest.mark.skipif(REASON is not None, reason=str(REASON))
"""Skips where wgpu or an adapter is missing; `.ci/run` installs both."""


def software() -> WebGpuDevice:
    """A device of its own: counters at zero."""
    return WebGpuDevice(SOFTWARE)


def manifest_of(program: Program) -> tuple[Manifest, NDArray]:
    """The compiled form of *program*, in which every output has memory of its own."""
    made = generate(program)

    def ports(tensors: Sequence[int]) -> tuple[Port, ...]:
        found = [program.tensors[t] for t in tensors]
        return tuple(Port(t.name, t.dtype.value, t.shape) for t in found)

    forwards = (-1,) * len(program.results)
    every = Ports(ports(program.inputs), ports(program.results), forwards)
    parts = made.shaders, made.calls, made.layout, made.constants.nbytes, program.failures
    manifest = Manifest(SCHEMA, "", every, *parts, made.numbers, made.sketch)
    return manifest, made.constants


def run_program(program: Program, inputs: Sequence[NDArray]) -> list[NDArray]:
    """The outputs of *program*, computed on the software adapter."""
    return run_manifest(program, *manifest_of(program), inputs)


def run_manifest(
    program: Program, manifest: Manifest, constants: NDArray, inputs: Sequence[NDArray]
) -> list[NDArray]:
    """The outputs of a compiled form of *program*."""
    from penstock.drivers.webgpu import engine
    from penstock.drivers.webgpu.running import Code, Executable

    outputs: list[Any] = [
        np.full(program.tensors[t].shape, 77, program.tensors[t].dtype.numpy)
        for t in program.results
    ]
    code = Code(engine.opened(SOFTWARE), manifest, constants)
    Executable(code).run(inputs, outputs, ExecutionConfig())
    pairs = zip(program.results, outputs, strict=True)
    return [as_declared(program.tensors[t], array) for t, array in pairs]


def elementwise(
    expressions: Sequence[Expression], size: int, tables: dict[int, NDArray] | None = None
) -> Program:
    """A program of a kernel for each of *expressions*, all of vectors of *size* elements. Inputs
    and outputs are those of one kernel after another. *tables* has constants by number, behind all
    others from 10,000 on.
    """
    tensors, kernels, inputs, outputs = list[Tensor](), list[Kernel](), list[int](), list[int]()
    for expression in expressions:
        first = len(tensors)
        tensors += [Tensor(dtype, (size,)) for dtype in expression.arguments]
        inputs += range(first, len(tensors))
        tensors.append(Tensor(expression.dtype, (size,)))
        outputs.append(len(tensors) - 1)
        reads = tuple(Access(t, along(0)) for t in range(first, outputs[-1]))
        result = Expression((expression.dtype,), (), 0)
        kernels.append(
            Kernel("test", (size,), reads, expression, result, Access(outputs[-1], along(0)),
                   sums=expression.dtype)
        )  # fmt: skip
    constants = {}
    for number, array in (tables or {}).items():
        tensors += [Tensor(DType.BOOL, ())] * (number - len(tensors))
        tensors.append(Tensor(DType(array.dtype.name), array.shape))
        constants[number] = array
    return Program(tuple(tensors), constants, tuple(kernels), tuple(inputs), tuple(outputs), {})
