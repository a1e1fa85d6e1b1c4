"""The template of every kernel: generated code agrees with the interpreter on random nests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.compiler import interpreter, memory
from penstock.compiler.expression import Expression, Scope, Value, identity
from penstock.compiler.program import Access, Combine, Kernel, Position, Program, Tensor, along
from penstock.drivers.llvm.emit.flat import loops_of
from penstock.drivers.llvm.emit.nest import Nest
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType
from tests.support_generated import Runner, largest_difference, sets_here, values_for

DTYPES = (DType.FLOAT32, DType.INT32, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def body_of(draw: st.DrawFn, dtype: DType, count: int, *, widen: bool) -> Expression:
    """A short chain over *count* values."""
    scope = Scope(*[dtype] * count)
    result = scope.argument(0)
    for number in range(1, count):
        result = result.apply(
            draw(st.sampled_from(["add", "maximum", "minimum"])), scope.argument(number)
        )
    for _ in range(draw(st.integers(0, 2))):
        result = result.apply(
            draw(st.sampled_from(["maximum", "minimum", "add", "sub"])), draw(st.integers(0, 5))
        )
    return scope.finish(result.cast(DType.INT32) if widen else result)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of one kernel: any order of axes, steps, borders, and reductions."""
    dtype = draw(st.sampled_from(DTYPES))
    loops = tuple(
        draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 40, 70]), min_size=1, max_size=3))
    )
    reduced = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 9, 35]), max_size=2)))
    sizes = (*loops, *reduced)
    tensors: list[Tensor] = []
    reads = []
    for _ in range(draw(st.integers(1, 2))):
        used = [i for i in range(len(sizes)) if draw(st.booleans()) or i == 0]
        order = draw(st.permutations(used))
        padded = draw(st.booleans())
        axes, shape = [], []
        for loop in order:
            step, before = draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, 2))
            size = step * (sizes[loop] - 1) + 1
            offset = -before if padded else before
            axes.append(Position(offset, ((loop, step),)))
            shape.append(
                max(1, size - before if padded else size + before + draw(st.integers(0, 1)))
            )
        tensors.append(Tensor(dtype, tuple(shape)))
        reads.append(Access(len(tensors) - 1, tuple(axes), 3 if padded else None))
    widen = bool(reduced) and dtype in {DType.INT8, DType.UINT8} and draw(st.booleans())
    sums = DType.INT32 if widen else dtype
    kinds: list[Combine] = (
        ["maximum", "minimum", "sum"]
        if sums in {DType.FLOAT32, DType.INT32}
        else ["maximum", "minimum"]
    )
    combine: Combine = draw(st.sampled_from(kinds)) if reduced else "none"
    body = body_of(draw, dtype, len(reads), widen=widen)
    order = draw(st.permutations(range(len(loops))))
    borders = [draw(st.integers(0, 1)) for _ in loops]
    tensors.append(Tensor(sums, tuple(loops[i] + 2 * borders[i] for i in order)))
    write = Access(len(tensors) - 1, tuple(Position(borders[i], ((i, 1),)) for i in order))
    kernel = Kernel(
        "nest", loops, tuple(reads), body, identity(sums), write, reduced, combine, sums
    )
    count = len(tensors) - 1
    return Program(tuple(tensors), {}, (kernel,), tuple(range(count)), (count,), {})


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=60, deadline=None)
@given(program=programs(), seed=st.integers(0, 1000))
def test_random_nests_agree_with_the_interpreter(isa: Isa, program: Program, seed: int) -> None:
    inputs = values_for(program, seed)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    assert largest_difference(got, wanted) <= 1e-5


def one(kernel: Kernel, *tensors: Tensor) -> Program:
    """A program of one kernel, whose last tensor is written."""
    count = len(tensors) - 1
    return Program(tensors, {}, (kernel,), tuple(range(count)), (count,), {})


def copy(loops: tuple[int, ...], read: Access, write: Access, dtype: DType) -> Kernel:
    """A kernel that copies."""
    return Kernel("copy", loops, (read,), identity(dtype), identity(dtype), write, sums=dtype)


def test_loops_that_go_on_from_each_other_are_one() -> None:
    shape = (1, 56, 56, 24)
    kernel = copy(shape, Access(0, along(0, 1, 2, 3)), Access(1, along(0, 1, 2, 3)), DType.UINT8)
    program = one(kernel, Tensor(DType.UINT8, shape), Tensor(DType.UINT8, shape))
    loops = loops_of(program, kernel)
    assert loops.outer == (56 * 56 * 24,)
    assert loops.written.steps == (1,)


def test_a_border_keeps_rows_apart() -> None:
    inner, outer = (1, 10, 10, 3), (1, 12, 12, 3)
    axes = (Position(), Position(1, ((1, 1),)), Position(1, ((2, 1),)), Position(0, ((3, 1),)))
    kernel = copy(inner, Access(0, along(0, 1, 2, 3)), Access(1, axes), DType.FLOAT32)
    program = one(kernel, Tensor(DType.FLOAT32, inner), Tensor(DType.FLOAT32, outer))
    loops = loops_of(program, kernel)
    assert loops.outer == (10, 30)
    assert loops.written.steps == (36, 1)
    assert loops.written.offset == 36 + 3


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("rows", [1, 3, 37])
@pytest.mark.parametrize("size", [2, 8, 32])
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.FLOAT32])
def test_elements_that_come_again_are_read_in_vectors(
    isa: Isa, rows: int, size: int, dtype: DType
) -> None:
    """A factor a row, and a summand a column."""
    scope = Scope(dtype, dtype, dtype)
    x, factor, summand = (scope.argument(i) for i in range(3))
    body = scope.finish(x.apply("maximum", factor) + summand)
    reads = Access(0, along(0, 1)), Access(1, along(0)), Access(2, along(1))
    kernel = Kernel(
        "turns", (rows, size), reads, body, identity(dtype), Access(3, along(0, 1)), sums=dtype
    )
    tensors = [Tensor(dtype, shape) for shape in ((rows, size), (rows,), (size,), (rows, size))]
    program = one(kernel, *tensors)
    assert len(loops_of(program, kernel, 64).outer) == (
        1 if size < 64 // dtype.numpy.itemsize else 2 - (rows == 1)
    )
    inputs = values_for(program)
    runner = Runner(program, isa)
    np.testing.assert_array_equal(runner(inputs)[0], interpreter.run(program, inputs)[0])
    runner.close()


def test_bytes_are_copied_in_whole_vectors() -> None:
    shape = (4, 100)
    kernel = copy(shape, Access(0, along(0, 1)), Access(1, along(0, 1)), DType.INT8)
    program = one(kernel, Tensor(DType.INT8, shape), Tensor(DType.INT8, shape))
    assert Nest(program, kernel, RECORDS["avx512-vnni"]).lanes == 64


def test_a_short_contiguous_axis_is_no_axis_for_vectors() -> None:
    """Planes become interleaved channels: vectors go along the planes."""
    kernel = copy((50, 3), Access(0, along(1, 0)), Access(1, along(0, 1)), DType.FLOAT32)
    program = one(kernel, Tensor(DType.FLOAT32, (3, 50)), Tensor(DType.FLOAT32, (50, 3)))
    assert Nest(program, kernel, RECORDS["avx512-vnni"]).vector == 0


def test_a_long_loop_is_several_units_of_work() -> None:
    size = 100_000
    kernel = copy((size,), Access(0, along(0)), Access(1, along(0)), DType.FLOAT32)
    program = one(kernel, Tensor(DType.FLOAT32, (size,)), Tensor(DType.FLOAT32, (size,)))
    assert Nest(program, kernel, RECORDS["avx512-vnni"]).units == 98


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.INT32])
def test_floats_become_whole_numbers_as_the_interpreter_does_it(isa: Isa, dtype: DType) -> None:
    """Truncated, at the ends of int32 where they are beyond, and 0 for NaN."""
    scope = Scope(DType.FLOAT32)
    value: Value = scope.argument(0).apply("maximum", -1e9).apply("minimum", 1e9)
    body = scope.finish(value.cast(dtype))
    size = 37
    kernel = Kernel(
        "cast",
        (size,),
        (Access(0, along(0)),),
        body,
        identity(dtype),
        Access(1, along(0)),
        sums=dtype,
    )
    program = one(kernel, Tensor(DType.FLOAT32, (size,)), Tensor(dtype, (size,)))
    values = (np.random.default_rng(0).standard_normal(size) * 300).astype(np.float32)
    values[:4] = [np.inf, -np.inf, 2.0**31, -0.9]
    runner = Runner(program, isa)
    np.testing.assert_array_equal(runner([values])[0], interpreter.run(program, [values])[0])
    runner.close()


def test_constants_that_come_again_are_loaded_once() -> None:
    """A vector of few channels, beside rows of them."""
    f32 = DType.FLOAT32
    scope = Scope(f32, f32)
    body = scope.finish(scope.argument(0) + scope.argument(1))
    reads = Access(0, along(0, 1)), Access(1, along(1))
    tensors = Tensor(f32, (64, 8)), Tensor(f32, (8,)), Tensor(f32, (64, 8))
    kernel = Kernel("add", (64, 8), reads, body, identity(f32), Access(2, along(0, 1)))
    channels = np.arange(8, dtype=np.float32)
    isa = RECORDS["avx512-vnni"]
    for constants, early in (({1: channels}, True), ({}, False)):
        inputs = (0,) if constants else (0, 1)
        program = Program(tensors, constants, (kernel,), inputs, (2,), {})
        lines = Nest(program, kernel, isa).write("add").text().splitlines()
        assert ("load <8 x float>" in lines[2]) == early


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("size", [5, 16, 39, 512])
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_every_byte_is_looked_up_in_a_table(isa: Isa, size: int, dtype: DType) -> None:
    table = np.random.default_rng(0).permutation(256).astype(np.uint8).view(dtype.numpy)
    scope = Scope(DType.UINT8)
    body = scope.finish(scope.lookup(1, scope.argument(0), dtype))
    kernel = Kernel("table", (size,), (Access(0, along(0)),), body, identity(dtype),
                    Access(2, along(0)), sums=dtype)  # fmt: skip
    tensors = Tensor(DType.UINT8, (size,)), Tensor(dtype, (256,)), Tensor(dtype, (size,))
    program = Program(tensors, {1: table}, (kernel,), (0,), (2,), {})
    runner = Runner(program, isa)
    for first in range(0, 256, size):
        given = (np.arange(size) + first).astype(np.uint8)
        np.testing.assert_array_equal(runner([given])[0], table[given])
    runner.close()


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("size", [3, 28, 36, 42, 88, 300])
@pytest.mark.parametrize("before", [0, 2])
def test_channels_outside_of_a_tensor_have_the_fill(isa: Isa, size: int, before: int) -> None:
    for dtype in (DType.INT8, DType.FLOAT32):
        scope = Scope(dtype, dtype)
        body = scope.finish(scope.argument(0).apply("maximum", scope.argument(1)))
        few = Access(0, (*along(0), Position(-before, ((1, 1),))), fill=3)
        tensors = tuple(Tensor(dtype, (5, n)) for n in (max(1, size - 8), size, size))
        reads = few, Access(1, along(0, 1))
        kernel = Kernel("add", (5, size), reads, body, identity(dtype), Access(2, along(0, 1)),
                        sums=dtype)  # fmt: skip
        program = Program(tensors, {}, (kernel,), (0, 1), (2,), {})
        inputs, runner = values_for(program), Runner(program, isa)
        (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
        runner.close()
        assert largest_difference(got, wanted) == 0


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("size", [5, 16, 70, 129])
def test_elements_backwards_and_two_apart_agree_with_the_interpreter(isa: Isa, size: int) -> None:
    for dtype in (DType.FLOAT32, DType.UINT8):
        scope = Scope(dtype, dtype)
        body = scope.finish(scope.argument(0) + scope.argument(1))
        back, apart = Position(size, ((1, -1),)), Position(0, ((1, 2),))
        reads = Access(0, (*along(0), apart)), Access(0, (*along(0), back))
        tensors = Tensor(dtype, (3, 2 * size)), Tensor(dtype, (3, size))
        kernel = Kernel("turn", (3, size), reads, body, identity(dtype), Access(1, along(0, 1)),
                        sums=dtype)  # fmt: skip
        program = Program(tensors, {}, (kernel,), (0,), (1,), {})
        inputs = values_for(program)
        runner = Runner(program, isa)
        (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
        runner.close()
        assert largest_difference(got, wanted) == 0


def taken(size: int) -> Program:
    """Pixels of *size* channels that lie where two tables say."""
    f32, i32 = DType.FLOAT32, DType.INT32
    tables = {1: np.array([2, 0, 1, 1], np.int32), 2: np.array([0, 3, 1], np.int32)}
    pixel = Position(0, ((0, 1),), through=1), Position(0, ((1, 1),), through=2), *along(2)
    kernel = copy((4, 3, size), Access(0, pixel), Access(3, along(0, 1, 2)), f32)
    shapes = (3, 4, size), (4,), (3,), (4, 3, size)
    tensors = tuple(Tensor(i32 if i in tables else f32, s) for i, s in enumerate(shapes))
    return Program(tensors, tables, (kernel,), (0,), (3,), {})


def test_a_position_is_looked_up_once_for_all_elements_that_share_it() -> None:
    program = taken(21)
    text = Nest(program, program.kernels[0], RECORDS["avx2"]).write("copy").text()
    assert text.count("load <8 x float>") == 2
    assert text.count("load i32") == 2


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("size", [1, 8, 13, 21, 23])
def test_elements_behind_the_last_whole_vector_agree_with_the_interpreter(
    isa: Isa, size: int
) -> None:
    program = taken(size)
    inputs, runner = values_for(program), Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    assert largest_difference(got, wanted) == 0


def test_no_element_is_computed_twice_where_it_may_be_written_over_what_it_is_made_of() -> None:
    program = taken(13)
    assert Nest(program, program.kernels[0], RECORDS["avx2"]).repeats
    kernel = copy((2, 13), Access(0, along(0, 1)), Access(1, along(0, 1)), DType.FLOAT32)
    program = one(kernel, Tensor(DType.FLOAT32, (2, 13)), Tensor(DType.FLOAT32, (2, 13)))
    assert not Nest(program, kernel, RECORDS["avx2"]).repeats


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("size", [10, 13, 15, 23])
def test_kernels_that_write_over_what_they_read_agree_with_the_interpreter(
    isa: Isa, size: int
) -> None:
    f32, kernels = DType.FLOAT32, []
    for number in range(4):
        scope = Scope(f32)
        body = scope.finish(scope.argument(0) * scope.argument(0))
        read, write = Access(number, along(0)), Access(number + 1, along(0))
        kernels.append(Kernel("square", (size,), (read,), body, identity(f32), write))
    tensors = (Tensor(f32, (size,)),) * 5
    program = Program(tensors, {}, tuple(kernels), (0,), (4,), {})
    offsets = memory.plan(program).offsets
    assert offsets[1] == offsets[2] == offsets[3]
    values = np.linspace(0.5, 1.5, size, dtype=np.float32)
    runner = Runner(program, isa)
    np.testing.assert_array_equal(runner([values])[0], interpreter.run(program, [values])[0])
    runner.close()
