"""Simpler expressions: constants as numbers, powers as products, one table of a chain of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.compiler import interpreter
from penstock.compiler.checks import check
from penstock.compiler.expression import Scope
from penstock.compiler.fuse import fuse
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Position, Program
from penstock.compiler.simplify import simplify, whole
from penstock.compiler.tabulate import tabulate
from penstock.ir import DType, NDArray
from tests.unit.compiler.building import F32, Builder

INT8, UINT8, INT32 = DType.INT8, DType.UINT8, DType.INT32


def power_program(exponent: NDArray) -> Program:
    """x to the power of a constant."""
    build = Builder()
    x, e = build.tensor((2, 5)), build.tensor(exponent.shape, F32, exponent)
    scope = Scope(F32, F32)
    body = scope.finish(scope.argument(0).apply("power", scope.argument(1)))
    last = (Position(0, ((1, 1),)),) if exponent.shape else ()
    reads = [build.whole(x), Access(e, last)]
    return build.program([x], [build.kernel("pow", reads, body, build.tensor((2, 5)))])


@pytest.mark.parametrize(("exponent", "products"), [(1.0, 0), (2.0, 1), (3.0, 2)])
def test_small_powers_are_products(exponent: float, products: int) -> None:
    program = power_program(np.array(exponent, np.float32))
    made = simplify(program)
    check(made)
    (kernel,) = made.kernels
    assert len(kernel.reads) == 1
    assert [s.operation for s in kernel.body.steps if s.operation != "constant"] == [
        "mul"
    ] * products
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    wanted, got = interpreter.run(program, [x])[0], interpreter.run(made, [x])[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_other_powers_stay() -> None:
    made = simplify(power_program(np.array(2.5, np.float32)))
    assert "power" in {s.operation for s in made.kernels[0].body.steps}


def test_constants_that_differ_are_read() -> None:
    program = power_program(np.array([1, 2, 3, 4, 5], np.float32))
    assert simplify(program).kernels == program.kernels


def test_zeros_of_both_signs_differ() -> None:
    program = power_program(np.array([0.0, -0.0, 0.0, 0.0, 0.0], np.float32))
    assert len(simplify(program).kernels[0].reads) == 2


def test_border_of_another_value_is_read() -> None:
    build = Builder()
    ones = build.tensor((3,), F32, np.ones(3, np.float32))
    padded = Access(ones, (Position(-1, ((0, 1),)),), 0.0)
    scope = Scope(F32)
    y = build.kernel("pad", [padded], scope.finish(-scope.argument(0)), build.tensor((5,)))
    assert len(simplify(build.program([], [y])).kernels[0].reads) == 1


def bytes_chain() -> Program:
    """A byte scaled to a byte, and the result scaled again, in one kernel."""
    build = Builder()
    x, y = build.tensor((300,), INT8), build.tensor((300,), INT8)
    scope = Scope(INT8)
    value = scope.argument(0)
    for zero in (3, -7):
        wide = (value.cast(INT32) - zero) * 77
        value = (wide.apply("shift_right", 6) + 5).clamp(-128, 127).cast(INT8)
    build.kernel("chain", [build.whole(x)], scope.finish(value), y)
    return build.program([x], [y])


def test_chain_of_bytes_is_one_table() -> None:
    program = bytes_chain()
    made = tabulate(program)
    (kernel,) = made.kernels
    assert [s.operation for s in kernel.body.steps] == ["cast", "lookup"]
    x = np.random.default_rng(0).integers(-128, 128, 300).astype(np.int8)
    np.testing.assert_array_equal(interpreter.run(made, [x])[0], interpreter.run(program, [x])[0])


def test_body_takes_what_follows_it() -> None:
    program = bytes_chain()
    (kernel,) = program.kernels
    scope = Scope(INT8)
    finish = scope.finish(scope.argument(0).cast(UINT8).apply("xor", 128))
    one = whole(replace(kernel, finish=finish))
    assert one.finish.is_identity
    assert one.body.dtype is one.sums is UINT8


def product_and_sum(dtype: DType, *, shift: int = 0) -> Program:
    """A 1x1 convolution, to whose result another tensor is added, *shift* channels away."""
    build = Builder()
    x, w = build.tensor((4, 8), dtype), build.tensor((6, 8), dtype, np.ones((6, 8), dtype.numpy))
    other, sums = build.tensor((4, 6), dtype), build.tensor((4, 6), dtype)
    total = DType.INT32 if dtype is INT8 else F32
    reads = [
        Access(x, (Position(0, ((0, 1),)), Position(0, ((2, 1),)))),
        Access(w, (Position(0, ((1, 1),)), Position(0, ((2, 1),)))),
    ]
    body = product(dtype, dtype, total, (0, 0))
    build.kernel("convolution", reads, body, sums, reduced=(8,), combine="sum")
    scope = Scope(total)
    made = scope.argument(0).clamp(-128, 127).cast(dtype)
    build.kernels[-1] = replace(build.kernels[-1], finish=scope.finish(made), sums=total)
    scope = Scope(dtype, dtype)
    added = scope.finish(scope.argument(0) + scope.argument(1))
    place = (Position(0, ((0, 1),)), Position(shift, ((1, 1),)))
    second = Access(other, place, 0 if shift else None)
    y = build.kernel("add", [build.whole(sums), second], added, build.tensor((4, 6), dtype))
    return build.program([x, other], [y])


def test_residual_of_floats_joins_the_product() -> None:
    assert len(fuse(product_and_sum(F32)).kernels) == 1
    assert len(fuse(product_and_sum(F32, shift=2)).kernels) == 1


def test_residual_of_bytes_stays_a_kernel() -> None:
    assert len(fuse(product_and_sum(INT8)).kernels) == 2
