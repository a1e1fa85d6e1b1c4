"""What each pass removes, joins and keeps; results stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.checks import check, check_plan
from penstock.compiler.expression import Scope, identity
from penstock.compiler.fold import fold, fold_constants, fold_padding, fold_unused
from penstock.compiler.fuse import MOST_STEPS, fuse
from penstock.compiler.layout import halos, own_inputs, stored_as
from penstock.compiler.legalise.products import product
from penstock.compiler.memory import ALIGNMENT, nbytes, plan
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Access, Border, Position, Program, along
from penstock.compiler.tabulate import tabulate
from penstock.ir import DType
from tests.unit.compiler.building import F32, Builder

INT8, UINT8, INT32 = DType.INT8, DType.UINT8, DType.INT32


def after(
    step: Callable[[Program], Program], program: Program, names: Sequence[str] | None = None
) -> Program:
    """*program* after a pass: sound, with the same results, and with kernels of these *names*."""
    check(program)
    rng = np.random.default_rng(1)
    tensors = [program.tensors[t] for t in program.inputs]
    inputs: list[Any] = [
        rng.standard_normal(t.shape).astype(t.dtype.numpy)
        if t.dtype.is_float
        else rng.integers(-100, 100, t.shape).astype(t.dtype.numpy)
        for t in tensors
    ]
    wanted = interpreter.run(program, inputs)
    made = step(program)
    check(made)
    for a, b in zip(wanted, interpreter.run(made, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    if names is not None:
        assert [k.name for k in made.kernels] == list(names)
    return made


def test_kernels_of_constants_are_computed() -> None:
    b = Builder()
    x, c = b.tensor((3,)), b.tensor((3,), value=np.array([1, 4, 9], np.float32))
    y = b.binary("add", x, b.unary("sqrt", c))
    program = after(fold_constants, b.program([x], [y]), ["add"])
    assert any(np.array_equal(v, [1, 2, 3]) for v in program.constants.values())


def test_kernels_that_nobody_reads_are_removed() -> None:
    b = Builder()
    x = b.tensor((3,))
    y = b.unary("neg", x)
    b.unary("abs", b.unary("sqrt", x))
    after(fold_unused, b.program([x], [y]), ["neg"])


def test_padding_becomes_a_fill_of_its_readers() -> None:
    b = Builder()
    x = b.tensor((2, 3))
    padded = b.copy(x, (4, 6), (-1, -1), 0.5)
    y = b.unary("neg", padded)
    program = after(fold_padding, b.program([x], [y]), ["neg"])
    assert program.kernels[0].reads[0] == Access(x, b.kernels[0].reads[0].axes, 0.5)


def test_slices_of_slices_are_one_read() -> None:
    b = Builder()
    x = b.tensor((8, 8))
    y = b.unary("neg", b.copy(b.copy(x, (6, 6), (1, 1)), (2, 3), (3, 2)))
    program = after(fold, b.program([x], [y]), ["neg"])
    assert [p.offset for p in program.kernels[0].reads[0].axes] == [4, 3]


def test_copy_of_a_folded_copy_is_folded_into_the_first() -> None:
    b = Builder()
    x = b.tensor((2, 3))
    padded = b.copy(x, (4, 6), (-1, -1), 0.5)
    part = b.copy(padded, (2, 3), (1, 2))
    outputs = [b.unary("neg", part), b.unary("abs", padded)]
    after(fold, b.program([x], outputs), ["neg", "abs"])


def test_padding_of_two_values_stays() -> None:
    b = Builder()
    x = b.tensor((3,))
    y = b.unary("neg", b.copy(b.copy(x, (5,), (-1,), 1.0), (7,), (-1,), 2.0))
    after(fold_padding, b.program([x], [y]), ["copy", "neg"])


def test_copy_that_is_an_output_stays() -> None:
    b = Builder()
    x = b.tensor((4,))
    part = b.copy(x, (2,), (1,))
    y = b.unary("neg", part)
    after(fold, b.program([x], [part, y]), ["copy", "neg"])


def test_padding_that_a_table_of_positions_reads_stays() -> None:
    b = Builder()
    x = b.tensor((3,))
    padded = b.copy(x, (4,), (0,), 7.0)
    table = b.tensor((2,), INT32, np.array([3, 0], np.int32))
    y = b.tensor((2,))
    read = Access(padded, (Position(0, ((0, 1),), table),))
    b.kernel("gather", [read], identity(F32), y)
    after(fold, b.program([x], [y]), ["copy", "gather"])


def test_element_wise_kernels_become_one() -> None:
    b = Builder()
    x, z = b.tensor((2, 3)), b.tensor((2, 3))
    y = b.unary("abs", b.binary("add", b.unary("neg", x), z))
    after(fuse, b.program([x, z], [y]), ["neg+add+abs"])


def test_activation_joins_the_sum_before_it() -> None:
    b = Builder()
    x = b.tensor((2, 3))
    y = b.unary("abs", b.sums(x))
    program = after(fuse, b.program([x], [y]), ["sum+abs"])
    assert program.kernels[0].origin == (0, 1)


def test_transpose_does_not_take_the_channels_of_a_product_apart() -> None:
    """Its results are stored many channels at a time."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.tensor((6, 4))
    w = b.tensor((5, 4), value=rng.standard_normal((5, 4)).astype(np.float32))
    y, z = b.tensor((6, 5)), b.tensor((5, 6))
    body = product(F32, F32, F32, (None, None))
    reads = [Access(x, along(0, 2)), Access(w, along(1, 2))]
    b.kernel("product", reads, body, y, reduced=(4,), combine="sum")
    b.kernel("transpose", [Access(y, along(1, 0))], identity(F32), z)
    after(fuse, b.program([x], [b.unary("abs", z)]), ["product", "transpose+abs"])


def test_value_with_two_readers_is_stored() -> None:
    b = Builder()
    x = b.tensor((3,))
    shared = b.unary("neg", x)
    outputs = [b.unary("abs", shared), b.unary("sign", shared)]
    after(fuse, b.program([x], outputs), ["neg", "abs", "sign"])


def test_value_that_is_an_output_is_stored() -> None:
    b = Builder()
    x = b.tensor((3,))
    made = b.unary("neg", x)
    after(fuse, b.program([x], [made, b.unary("abs", made)]), ["neg", "abs"])


def test_dear_value_of_a_broadcast_is_computed_once() -> None:
    b = Builder()
    x, z = b.tensor((2, 1)), b.tensor((2, 5))
    dear = x
    for _ in range(6):
        dear = b.unary("exp", dear)
    target = b.tensor((2, 5))
    scope = Scope(F32, F32)
    body = scope.finish(scope.argument(0) * scope.argument(1))
    reads = [Access(dear, (Position(0, ((0, 1),)), Position())), b.whole(z)]
    b.kernel("scale", reads, body, target)
    program = after(fuse, b.program([x, z], [target]))
    assert [k.name for k in program.kernels] == ["+".join(["exp"] * 6), "scale"]


def test_makers_of_several_operands_join_one_kernel_that_reads_each_element_once() -> None:
    b = Builder()
    x = b.tensor((2, 3))
    y = b.binary("add", b.unary("neg", x), b.unary("abs", x))
    program = after(fuse, b.program([x], [y]), ["abs+neg+add"])
    assert program.kernels[0].reads == (b.whole(x),)
    assert not program.kernels[0].extras


def test_fused_kernels_stay_below_the_most_steps() -> None:
    b = Builder()
    x = b.tensor((3,))
    y = x
    for _ in range(2 * MOST_STEPS):
        y = b.unary("sin", y)
    program = after(fuse, b.program([x], [y]))
    assert 2 <= len(program.kernels) < 8
    assert all(len(k.body.steps) + len(k.finish.steps) <= MOST_STEPS for k in program.kernels)


def convolution(b: Builder, x: int, size: int, zero: int = 0) -> int:
    """y[i] = the sum of (x[i + k - 1] - zero) * w[k], padded with *zero*."""
    dtype = b.tensors[x].dtype
    sums = F32 if dtype.is_float else INT32
    w = b.tensor((3,), dtype, np.array([1, 2, 3], dtype.numpy))
    scope = Scope(dtype, dtype)
    data = scope.argument(0).cast(sums)
    body = scope.finish((data - zero if zero else data) * scope.argument(1).cast(sums))
    reads = [Access(x, (Position(-1, ((0, 1), (1, 1))),), zero), Access(w, along(1))]
    y = b.tensor((size,), sums)
    return b.kernel("convolution", reads, body, y, reduced=(3,), combine="sum")


def test_padding_of_products_is_stored_around_the_tensor() -> None:
    b = Builder()
    x = b.tensor((6,))
    inner = b.unary("neg", x)
    y = convolution(b, inner, 6)
    program = after(halos, b.program([x], [y]), ["neg", "convolution"])
    assert program.tensors[inner].shape == (8,)
    assert program.kernels[0].border == Border((1,), (1,), 0)
    assert program.kernels[-1].reads[0].fill is None


def test_first_of_several_writers_writes_the_border() -> None:
    b = Builder()
    x = b.tensor((3,))
    joined = b.tensor((6,))
    for first in (3, 0):
        write = Access(joined, (Position(first, ((0, 1),)),))
        b.kernel("part", [b.whole(x)], identity(F32), joined, loops=(3,), write=write)
    y = convolution(b, joined, 6)
    program = after(halos, b.program([x], [y]), ["part", "part", "convolution"])
    assert [k.border is not None for k in program.kernels] == [True, False, False]


@pytest.mark.parametrize(("low", "fill"), [(0, None), (-1, 0), (-1, 1), (-2, 0)])
def test_tensor_gets_a_border_if_others_read_the_same_values_in_it(
    low: int, fill: float | None
) -> None:
    b = Builder()
    x = b.tensor((6,))
    inner = b.unary("neg", x)
    y = convolution(b, inner, 6)
    z = b.copy(inner, (5,), (low,), fill)
    program = after(halos, b.program([x], [y, z]))
    copied = "padding" in {k.name for k in program.kernels}
    assert copied == ((low, fill) in {(-1, 1), (-2, 0)})


def test_readers_of_the_same_padding_share_a_copy() -> None:
    b = Builder()
    x = b.tensor((6,))
    inner = b.unary("neg", x)
    y, z = convolution(b, inner, 6), convolution(b, inner, 6)
    names = ["neg", "padding", "convolution", "convolution"]
    after(halos, b.program([x], [inner, y, z]), names)


def test_padding_is_copied_where_the_tensor_must_keep_its_size() -> None:
    b = Builder()
    x = b.tensor((6,))
    inner = b.unary("neg", x)
    y = convolution(b, inner, 6)
    program = after(halos, b.program([x], [inner, y]), ["neg", "padding", "convolution"])
    assert program.tensors[inner].shape == (6,)


def test_tensor_that_a_table_of_positions_reads_keeps_its_size() -> None:
    b = Builder()
    x = b.tensor((6,))
    inner = b.unary("neg", x)
    y = convolution(b, inner, 6)
    table = b.tensor((2,), INT32, np.array([5, 0], np.int32))
    z = b.tensor((2,))
    b.kernel("gather", [Access(inner, (Position(0, ((0, 1),), table),))], identity(F32), z)
    names = ["neg", "padding", "convolution", "gather"]
    program = after(halos, b.program([x], [y, z]), names)
    assert program.tensors[inner].shape == (6,)


@pytest.mark.parametrize("stored", [UINT8, INT8])
def test_bytes_are_stored_as_the_target_multiplies_them(stored: DType) -> None:
    b = Builder()
    given = INT8 if stored is UINT8 else UINT8
    x = b.tensor((6,), given)
    inner = b.unary("abs", x) if given is INT8 else b.binary("minimum", x, x)
    y = convolution(b, inner, 6, zero=5)
    program = after(lambda p: stored_as(p, stored), b.program([x], [y]))
    assert program.tensors[inner].dtype is stored
    assert program.tensors[x].dtype is given
    assert program.kernels[-1].reads[0].fill == (133 if stored is UINT8 else -123)


def test_input_that_is_padded_is_copied_first() -> None:
    b = Builder()
    x = b.tensor((6,))
    y = convolution(b, x, 6)
    after(lambda p: own_inputs(p, None), b.program([x], [y]), ["input", "convolution"])


def test_chain_of_one_byte_becomes_a_table() -> None:
    b = Builder()
    x = b.tensor((300,), INT8)
    y = b.tensor((300,), INT8)
    scope = Scope(INT8)
    real = (scope.argument(0).cast(F32) * 0.1).apply("tanh") * 100.0
    b.kernel("tanh", [b.whole(x)], scope.finish(real.apply("round_even").cast(INT8)), y)
    program = after(tabulate, b.program([x], [y]))
    (table,) = program.kernels[0].body.tables
    assert program.constants[table].shape == (256,)
    assert len(program.kernels[0].body.steps) == 2


@pytest.mark.parametrize("function", ["", "exp"])
def test_floats_of_a_byte_are_a_table_where_they_take_long(function: str) -> None:
    b = Builder()
    x, y = b.tensor((300,), INT8), b.tensor((300,))
    scope = Scope(INT8)
    value = (scope.argument(0).apply("xor", -128).cast(INT32) - 3).cast(F32) * 0.1
    value = value.apply(function) if function else value
    b.kernel("dequantize", [b.whole(x)], scope.finish(value), y)
    program = after(tabulate, b.program([x], [y]))
    assert bool(program.kernels[0].body.tables) == bool(function)


def test_equal_tables_are_one() -> None:
    b = Builder()
    x, z = b.tensor((9,), INT8), b.tensor((9,), INT8)
    outputs = []
    for source in (x, z):
        y = b.tensor((9,), INT8)
        scope = Scope(INT8)
        real = ((scope.argument(0).cast(F32) * 0.1).apply("exp") + 1.0).apply("log")
        b.kernel("soft", [b.whole(source)], scope.finish(real.cast(INT8)), y)
        outputs.append(y)
    program = after(tabulate, b.program([x, z], outputs))
    assert len({t for k in program.kernels for t in k.body.tables}) == 1


def test_outputs_of_one_tensor_get_memory_of_their_own() -> None:
    b = Builder()
    x, c = b.tensor((3,)), b.tensor((2,), value=np.array([1, 2], np.float32))
    y = b.unary("neg", x)
    column = b.tensor((3, 1))
    b.aliases[column] = y
    names = ["neg", "copy", "copy", "copy"]
    program = after(with_own_outputs, b.program([x], [y, column, x, c]), names)
    assert len({program.root(t) for t in program.outputs}) == 4


def test_values_share_memory_once_they_are_dead() -> None:
    b = Builder()
    x = b.tensor((1000,))
    values = [x]
    for _ in range(6):
        values.append(b.sums_of_pairs(values[-1]))
    program = b.program([x], [values[-1]])
    planned = plan(program)
    check_plan(planned)
    largest = sorted((nbytes(program, t) for t in planned.offsets), reverse=True)
    assert planned.size <= sum(-(-n // ALIGNMENT) * ALIGNMENT for n in largest[:2])


def test_element_wise_kernel_writes_over_its_input() -> None:
    b = Builder()
    x = b.tensor((64, 4))
    first = b.sums(x)
    second = b.unary("neg", first)
    y = b.unary("abs", second)
    planned = plan(b.program([x], [y]))
    check_plan(planned)
    assert planned.offsets[first] == planned.offsets[second]
    assert planned.size == 256


def test_kernel_that_may_read_a_fill_does_not_write_over_its_input() -> None:
    b = Builder()
    x = b.tensor((16,))
    source = b.unary("neg", x)
    padded = b.copy(source, (16,), (0,), fill=1.0)
    planned = plan(b.program([x], [b.unary("abs", padded)]))
    check_plan(planned)
    assert planned.offsets[source] != planned.offsets[padded]
