"""Small models of NNAPI, built call by call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

from penstock import nnapi
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer

FLOAT = nnapi.OperandType.TENSOR_FLOAT32
INT = nnapi.OperandType.INT32

BAD_DATA: Final = nnapi.ResultCode.BAD_DATA
BAD_STATE: Final = nnapi.ResultCode.BAD_STATE
OP_FAILED: Final = nnapi.ResultCode.OP_FAILED
UNEXPECTED_NULL: Final = nnapi.ResultCode.UNEXPECTED_NULL
UNMAPPABLE: Final = nnapi.ResultCode.UNMAPPABLE


@contextmanager
def answers(code: nnapi.ResultCode, match: str | None = None) -> Iterator[None]:
    """The block raises an `NnapiError` of *code*."""
    with pytest.raises(nnapi.NnapiError, match=match) as caught:
        yield
    assert caught.value.code is code
    assert str(caught.value).startswith(f"{code.name}: ")


def fuse(model: nnapi.Model, value: int = 0) -> int:
    """A new operand with a fuse code."""
    index = model.add_operand(INT)
    model.set_operand_value(index, value)
    return index


def unfinished() -> nnapi.Model:
    """z = x + y, with nothing identified yet: operands 0, 1, 2 and the fuse code 3."""
    model = nnapi.Model()
    x, y, z = (model.add_operand(FLOAT, (2, 3), name=name) for name in "xyz")
    model.add_operation("ADD", [x, y, fuse(model)], [z])
    return model


def finished(relaxed: bool = False) -> nnapi.Model:
    """The same, finished."""
    model = unfinished()
    model.identify_inputs_and_outputs([0, 1], [2])
    model.relax_computation_float32_to_float16(relaxed)
    model.finish()
    return model


def invalid() -> nnapi.Model:
    """A model whose `finish` has failed."""
    model = unfinished()
    with answers(nnapi.ResultCode.BAD_DATA):
        model.finish()
    return model


def weighted(seed: int = 0, units: int = 40) -> nnapi.Model:
    """y = relu(x @ w.T + b) + c, of weights that are more than 128 bytes."""
    random = np.random.default_rng(seed)
    model = nnapi.Model()
    x = model.add_operand(FLOAT, (1, 8), name="x")
    w, b, c = (model.add_operand(FLOAT, shape) for shape in ((units, 8), (units,), (1, units)))
    for index, shape in ((w, (units, 8)), (b, (units,)), (c, (1, units))):
        model.set_operand_value(index, random.normal(size=shape).astype(np.float32))
    h, y = model.add_operand(FLOAT, (1, units)), model.add_operand(FLOAT, (1, units), name="y")
    model.add_operation("FULLY_CONNECTED", [x, w, b, fuse(model, 1)], [h])
    model.add_operation("ADD", [h, c, fuse(model)], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def unary(
    operation: str = "RELU",
    dimensions: tuple[int, ...] = (2, 3),
    output: tuple[int, ...] | None = None,
    kind: nnapi.OperandType = FLOAT,
    scale: float = 0.0,
    zero_point: int = 0,
) -> nnapi.Model:
    """y = operation(x), of operands of one type; 0 for a dimension that is not known."""
    model = nnapi.Model()
    x = model.add_operand(kind, dimensions, scale, zero_point, name="x")
    wanted = dimensions if output is None else output
    y = model.add_operand(kind, wanted, scale, zero_point, name="y")
    model.add_operation(operation, [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def compiled(model: nnapi.Model, devices: Sequence[Any] | None = None) -> nnapi.Compilation:
    """*model*, compiled: for all devices, or for these alone."""
    made = (
        nnapi.Compilation(model)
        if devices is None
        else nnapi.Compilation.create_for_devices(model, devices)
    )
    made.finish()
    return made


def shared(nbytes: int, protect: int = PROT_READ | PROT_WRITE) -> nnapi.Memory:
    """Anonymous memory of that size."""
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, nbytes)
        return nnapi.Memory.create_from_fd(nbytes, protect, fd)
    finally:
        os.close(fd)


def blob(nbytes: int) -> nnapi.Memory:
    """A hardware buffer of that size."""
    with HardwareBuffer.allocate(nbytes) as buffer:
        return nnapi.Memory.create_from_hardware_buffer(buffer)


def filled(memory: nnapi.Memory, value: float) -> nnapi.Memory:
    """*memory* with that value in every float of it."""
    memory.store.content().view(np.float32)[:] = value
    return memory


def described(compilation: nnapi.Compilation, *, dimensions: tuple[int, ...] = ()) -> nnapi.Memory:
    """Memory for input 0 and output 0 of *compilation*."""
    with nnapi.MemoryDesc() as desc:
        desc.add_input_role(compilation, 0)
        desc.add_output_role(compilation, 0)
        desc.set_dimensions(dimensions)
        desc.finish()
        return nnapi.Memory.create_from_desc(desc)


def ended(event: nnapi.Event) -> None:
    """Waits for *event* and frees it."""
    with event:
        event.wait()


def in_burst(execution: nnapi.Execution) -> None:
    """Runs in a burst of its own."""
    with nnapi.Burst(execution.compilation) as burst:
        execution.burst_compute(burst)


MODES: Final[dict[str, Callable[[nnapi.Execution], None]]] = {
    "sync": nnapi.Execution.compute,
    "async": lambda e: ended(e.start_compute()),
    "fenced": lambda e: ended(e.start_compute_with_dependencies([])),
    "burst": in_burst,
}
"""Every way in which an execution runs."""
