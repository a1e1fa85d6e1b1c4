"""Running whatever loads: a damaged file that is still a model must give results, or fail by name,
in bounds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

import penstock
from penstock import knobs
from penstock.errors import PenstockError
from penstock.ir import DType, Model, NDArray, Operand

SECONDS: Final = 0.5
"""What a run may take; looked at between operations."""

MOST_INPUT_BYTES: Final = 8 << 20
MOST_WORK: Final = 2e8
"""Products of the elements of an operation's two largest operands: beyond it a single operation may
rightly take long.
"""

TENSOR_LIMIT_MIB: Final = 32


def run(model: Model) -> str:
    """How a run on inputs of small numbers ends: "runs", or the name of its error."""
    with knobs.override(tensor_limit_mib=TENSOR_LIMIT_MIB):
        try:
            inputs = [_array(operand) for operand in model.inputs]
        except OverflowError:
            return "inputs too large"
        if _work(model) > MOST_WORK:
            return "too much work"
        try:
            with penstock.compile(model, devices=["reference"], timeout=SECONDS) as compiled:
                compiled.run(inputs, timeout=SECONDS)
        except PenstockError as error:
            return type(error).__name__
    return "runs"


def _array(operand: Operand) -> NDArray:
    """Small numbers in the shape of an input, whose unknown dimensions are 1."""
    shape = tuple(1 if d is None else d for d in operand.shape or ())
    count = 1
    for size in shape:
        count *= size
    if count > MOST_INPUT_BYTES:
        raise OverflowError
    dtype = operand.dtype
    if dtype is DType.STRING:
        words = np.empty(count, object)
        words[:] = b"word"
        return words.reshape(shape)
    if dtype in {DType.RESOURCE, DType.VARIANT}:
        return np.zeros(shape, np.int32)
    return (np.arange(count) % 3).astype(np.int8).astype(dtype.numpy).reshape(shape)


def _work(model: Model) -> float:
    """The most that an operation of the model could have to do."""
    most = 0.0
    for subgraph in model.subgraphs:
        for operation in subgraph.operations:
            indexes = (*operation.inputs, *operation.outputs)
            sizes = sorted(_size(subgraph.operands[i]) for i in indexes)
            most = max(most, float(np.prod(sizes[-2:])))
    return most


def _size(operand: Operand) -> float:
    return float(np.prod([float(d or 1) for d in operand.shape or ()]))
