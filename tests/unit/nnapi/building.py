"""Small models of NNAPI, built call by call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from penstock.nnapi import Model, NnapiError, OperandType, ResultCode

FLOAT = OperandType.TENSOR_FLOAT32
INT = OperandType.INT32


@contextmanager
def answers(code: ResultCode, match: str | None = None) -> Iterator[None]:
    """The block raises an `NnapiError` of *code*."""
    with pytest.raises(NnapiError, match=match) as caught:
        yield
    assert caught.value.code is code
    assert str(caught.value).startswith(f"{code.name}: ")


def fuse(model: Model, value: int = 0) -> int:
    """A new operand with a fuse code."""
    index = model.add_operand(INT)
    model.set_operand_value(index, value)
    return index


def unfinished() -> Model:
    """z = x + y, with nothing identified yet: operands 0, 1, 2 and the fuse code 3."""
    model = Model()
    x, y, z = (model.add_operand(FLOAT, (2, 3), name=name) for name in "xyz")
    model.add_operation("ADD", [x, y, fuse(model)], [z])
    return model


def finished(relaxed: bool = False) -> Model:
    """The same, finished."""
    model = unfinished()
    model.identify_inputs_and_outputs([0, 1], [2])
    model.relax_computation_float32_to_float16(relaxed)
    model.finish()
    return model


def invalid() -> Model:
    """A model whose `finish` has failed."""
    model = unfinished()
    with answers(ResultCode.BAD_DATA):
        model.finish()
    return model


def weighted(seed: int = 0, units: int = 40) -> Model:
    """y = relu(x @ w.T + b) + c, of weights that are more than 128 bytes."""
    random = np.random.default_rng(seed)
    model = Model()
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
