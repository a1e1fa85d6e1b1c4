"""One reference kernel by itself: inputs in, outputs out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.kernel import Site, build
from penstock.ir import DType, NDArray, Operand, Operation, Quantization
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import dtype_of

Given = NDArray | tuple[NDArray, Quantization]
Made = DType | tuple[DType, Quantization]


def q(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization((float(np.float32(scale)),), (zero_point,))


BOX = q(0.125)
"""NNAPI's quantisation of box corners."""


def alone(
    kind: str, inputs: Sequence[Given], outputs: Sequence[Made], /, **attributes: AttributeValue
) -> list[NDArray]:
    """The outputs of the kernel of *kind*, whose types are checked; inputs are read-only arrays."""
    pairs = [x if isinstance(x, tuple) else (x, None) for x in inputs]
    made = [x if isinstance(x, tuple) else (x, None) for x in outputs]
    operands = []
    arrays = []
    for array, quantization in pairs:
        dtype = dtype_of(array.dtype)
        assert dtype is not None
        operands.append(Operand(dtype, array.shape, quantization=quantization))
        arrays.append(array.copy())
        arrays[-1].setflags(write=False)
    operation = Operation(
        kind,
        tuple(range(len(pairs))),
        tuple(range(len(made))),
        OPERATIONS[kind].complete(attributes),
    )
    targets = tuple(Operand(dtype, None, quantization=quant) for dtype, quant in made)
    site = Site(operation, tuple(operands), targets, lambda _: None)
    results = list(build(site)(arrays))
    assert all(r.flags.c_contiguous for r in results)
    assert [r.dtype for r in results] == [t.dtype.numpy for t in targets]
    return results
