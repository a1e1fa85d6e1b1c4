"""The template of transposes moves every element to its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.compiler import interpreter
from penstock.compiler.expression import Scope, identity
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.drivers.llvm.emit.module import template_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType
from tests.support_generated import Runner, sets_here, values_for

SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 40)
TYPES = (DType.INT8, DType.FLOAT16, DType.FLOAT32, DType.INT32, DType.FLOAT64)


def transpose(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: DType, *, margin: int = 0,
    clamps: bool = False,
) -> Program:  # fmt: skip
    """A transpose, which reads from the middle of a tensor with a *margin*; *clamps*: at 0."""
    scope = Scope(dtype)
    value = scope.argument(0)
    body = scope.finish(value.clamp(0.0, None) if clamps else value)
    axes = [Position()] * len(order)
    for loop, axis in enumerate(order):
        axes[axis] = Position(margin, ((loop, 1),))
    loops = tuple(shape[i] for i in order)
    read, write = Access(0, tuple(axes)), Access(1, along(*range(len(order))))
    kernel = Kernel("transpose", loops, (read,), body, identity(dtype), write, sums=dtype)
    given_shape = tuple(size + 2 * margin for size in shape)
    tensors = Tensor(dtype, given_shape), Tensor(dtype, loops)
    return Program(tensors, {}, (kernel,), (0,), (1,), {})


@st.composite
def transposes(draw: st.DrawFn) -> Program:
    order = tuple(draw(st.permutations(range(draw(st.integers(2, 4))))))
    shape = tuple(draw(st.sampled_from(SIZES)) for _ in order)
    dtype, margin = draw(st.sampled_from(TYPES)), draw(st.sampled_from([0, 0, 1]))
    clamps = dtype is DType.FLOAT32 and draw(st.booleans())
    return transpose(shape, order, dtype, margin=margin, clamps=clamps)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=20, deadline=None)
@given(program=transposes())
def test_transposes_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    inputs = values_for(program)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("shape", "order", "name"),
    [
        ((40, 33), (1, 0), "transpose"),
        ((3, 50, 40), (1, 2, 0), "transpose"),
        ((50, 40, 3), (2, 0, 1), "transpose"),
        ((8, 5, 16), (1, 0, 2), "nest"),
        ((40, 1), (1, 0), "nest"),
        ((2, 5), (1, 0), "nest"),
    ],
)
def test_the_template_is_for_tiles_that_are_worth_it(
    shape: tuple[int, ...], order: tuple[int, ...], name: str
) -> None:
    program = transpose(shape, order, DType.FLOAT32)
    (kernel,) = program.kernels
    assert template_of(program, kernel, RECORDS["avx512-vnni"]).name == name
