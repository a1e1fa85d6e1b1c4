"""Long reductions in two parts against the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.checks import check
from penstock.compiler.expression import Scope, identity
from penstock.compiler.program import Access, Combine, Kernel, Program, Tensor, along
from penstock.drivers.webgpu.emit.parts import LONGEST, in_parts
from penstock.ir import DType
from tests.support_webgpu import needs_webgpu, run_program

F32, I32 = DType.FLOAT32, DType.INT32


def reduction(reduced: tuple[int, ...], combine: Combine, dtype: DType = I32) -> Program:
    """The sums, or the like, of three rows, twice."""
    count = len(reduced)
    tensors = (Tensor(dtype, (3, *reduced)), Tensor(dtype, (3,)))
    scope = Scope(dtype)
    kernel = Kernel(
        "reduce", (3,), (Access(0, along(*range(count + 1))),), identity(dtype),
        scope.finish(scope.argument(0) + scope.argument(0)), Access(1, along(0)),
        reduced=reduced, combine=combine, sums=dtype,
    )  # fmt: skip
    return Program(tensors, {}, (kernel,), (0,), (1,), {})


LONG = [(300, 300), (70_000,), (7, 10_000), (20_000, 7), (30, 40, 64)]


@pytest.mark.parametrize("reduced", LONG)
@pytest.mark.parametrize("combine", ["sum", "maximum"])
def test_a_divided_reduction_is_that_of_the_whole(
    reduced: tuple[int, ...], combine: Combine
) -> None:
    program = reduction(reduced, combine)
    divided = in_parts(program)
    check(divided)
    assert len(divided.kernels) == 2
    assert all(math.prod(k.reduced) <= LONGEST for k in divided.kernels)
    given = np.random.default_rng(0).integers(-99, 99, (3, *reduced)).astype(np.int32)
    (got,), (want,) = interpreter.run(divided, [given]), interpreter.run(program, [given])
    assert np.array_equal(got, want)


def test_a_short_one_stays_and_so_does_one_of_a_prime_size() -> None:
    for reduced in ((90, 91), (65_537,)):
        program = reduction(reduced, "sum")
        assert in_parts(program).kernels == program.kernels


@needs_webgpu
def test_the_last_of_many_elements_counts() -> None:
    program = in_parts(reduction((30, 40, 64), "maximum", F32))
    given = np.arange(3 * 76_800, dtype=np.float32).reshape(3, 30, 40, 64)
    (got,) = run_program(program, [given])
    assert np.array_equal(got, 2 * given.reshape(3, -1).max(axis=1))
