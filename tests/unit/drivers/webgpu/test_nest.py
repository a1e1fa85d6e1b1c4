"""The general template against the interpreter, on nests that few networks have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.expression import Scope, identity
from penstock.compiler.program import Access, Combine, Kernel, Position, Program, Tensor, along
from penstock.drivers.webgpu.calls import MOST_BINDINGS
from penstock.drivers.webgpu.emit.module import generate
from penstock.ir import DType, NDArray
from tests.support_webgpu import needs_webgpu, run_program

F32, I8, I32 = DType.FLOAT32, DType.INT8, DType.INT32


def program_of(kernels: Sequence[Kernel], tensors: Sequence[Tensor], inputs: int) -> Program:
    """A program whose first tensors are its inputs, and whose last one is its output."""
    last = len(tensors) - 1
    return Program(tuple(tensors), {}, tuple(kernels), tuple(range(inputs)), (last,), {})


def copied(dtype: DType, loops: tuple[int, ...], read: Access, write: Access) -> Kernel:
    return Kernel("copy", loops, (read,), identity(dtype), identity(dtype), write, sums=dtype)


def drawn(tensor: Tensor, seed: int = 0) -> NDArray:
    rng = np.random.default_rng(seed)
    if tensor.dtype.is_float:
        return rng.normal(0, 1, tensor.shape).astype(tensor.dtype.numpy)
    return rng.integers(-9, 9, tensor.shape).astype(tensor.dtype.numpy)


def assert_same(program: Program) -> None:
    inputs = [drawn(program.tensors[t], t) for t in program.inputs]
    (got,), (want,) = run_program(program, inputs), interpreter.run(program, inputs)
    assert got.dtype == want.dtype
    if want.dtype.kind == "f":
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        assert np.array_equal(got, want)


@needs_webgpu
def test_small_elements_are_written_beside_those_of_other_kernels() -> None:
    """A concatenation of rows of three and two elements, whose words both kernels write."""
    for dtype in (DType.INT8, DType.FLOAT16, DType.BOOL):
        tensors = [Tensor(dtype, (5, 3)), Tensor(dtype, (5, 2)), Tensor(dtype, (5, 5))]
        first = copied(dtype, (5, 3), Access(0, along(0, 1)), Access(2, along(0, 1)))
        behind = Access(2, (Position(0, ((0, 1),)), Position(3, ((1, 1),))))
        second = copied(dtype, (5, 2), Access(1, along(0, 1)), behind)
        assert_same(program_of([first, second], tensors, 2))


@needs_webgpu
def test_a_read_outside_its_tensor_has_the_fill() -> None:
    tensors = [Tensor(I8, (4, 5)), Tensor(I8, (8, 9))]
    shifted = (Position(-2, ((0, 1),)), Position(-2, ((1, 1),)))
    read = Access(0, shifted, -7)
    assert_same(program_of([copied(I8, (8, 9), read, Access(1, along(0, 1)))], tensors, 1))


@needs_webgpu
def test_positions_through_a_vector_are_kept_within_the_axis() -> None:
    tensors = [Tensor(F32, (4, 5)), Tensor(I32, (6,)), Tensor(F32, (6, 5))]
    read = Access(0, (Position(0, ((0, 1),), 1), *along(1)))
    assert_same(program_of([copied(F32, (6, 5), read, Access(2, along(0, 1)))], tensors, 2))


@needs_webgpu
def test_steps_go_backwards_and_apart() -> None:
    tensors = [Tensor(F32, (9,)), Tensor(F32, (4, 2))]
    read = Access(0, (Position(8, ((0, -2), (1, -1))),))
    write = Access(1, along(0, 1))
    assert_same(program_of([copied(F32, (4, 2), read, write)], tensors, 1))


@needs_webgpu
@pytest.mark.parametrize("combine", ["sum", "product", "maximum", "minimum", "any", "all"])
def test_reductions(combine: Combine) -> None:
    for dtype in (DType.BOOL,) if combine in {"any", "all"} else (F32, I32, DType.INT64):
        tensors = [Tensor(dtype, (3, 4, 5)), Tensor(dtype, (4,))]
        read = Access(0, along(1, 0, 2))
        kernel = Kernel(
            "reduce", (4,), (read,), identity(dtype), identity(dtype), Access(1, along(0)),
            reduced=(3, 5), combine=combine, sums=dtype,
        )  # fmt: skip
        assert_same(program_of([kernel], tensors, 1))


@needs_webgpu
@pytest.mark.parametrize("order", ["ordered", "fused"])
def test_sums_in_a_given_order_are_those_of_the_interpreter(order: str) -> None:
    tensors = [Tensor(F32, (7, 300)), Tensor(F32, (300,)), Tensor(F32, (7,)), Tensor(F32, (7,))]
    scope, finish = Scope(F32, F32), Scope(F32, F32)
    added = finish.argument(0) if order == "fused" else finish.argument(0) + finish.argument(1)
    kernel = Kernel(
        "product", (7,), (Access(0, along(0, 1)), Access(1, along(1))),
        scope.finish(scope.argument(0) * scope.argument(1)), finish.finish(added),
        Access(3, along(0)), reduced=(300,), combine="sum", extras=(Access(2, along(0)),),
        order=order,  # type: ignore[arg-type]  # one of both
    )  # fmt: skip
    program = program_of([kernel], tensors, 3)
    inputs = [drawn(program.tensors[t], t) for t in program.inputs]
    (got,), (want,) = run_program(program, inputs), interpreter.run(program, inputs)
    assert np.array_equal(got, want)


@needs_webgpu
def test_a_kernel_of_more_tensors_than_bindings_reads_them_all() -> None:
    count = MOST_BINDINGS + 3
    scope = Scope(*[I8] * count)
    total = scope.argument(0).cast(I32)
    for number in range(1, count):
        total = total * 3 + scope.argument(number).cast(I32)
    body = scope.finish(total)
    tensors = [*[Tensor(I8, (10,))] * count, Tensor(I32, (10,))]
    reads = tuple(Access(t, along(0)) for t in range(count))
    kernel = Kernel("many", (10,), reads, body, identity(I32), Access(count, along(0)), sums=I32)
    program = program_of([kernel], tensors, count)
    assert len(generate(program).calls[0].bindings) == 1
    assert_same(program)


@needs_webgpu
def test_threads_of_more_than_one_row_of_workgroups() -> None:
    size = 65_535 * 64 + 1000
    tensors = [Tensor(F32, (size,)), Tensor(F32, (size,))]
    read = Access(0, (Position(size - 1, ((0, -1),)),))
    assert_same(program_of([copied(F32, (size,), read, Access(1, along(0)))], tensors, 1))


def test_kernels_that_differ_in_tensors_alone_share_a_shader() -> None:
    tensors = [Tensor(F32, (4,))] * 3
    kernels = [copied(F32, (4,), Access(t, along(0)), Access(t + 1, along(0))) for t in (0, 1)]
    made = generate(program_of(kernels, tensors, 1))
    assert len(made.calls) == 2
    assert len(made.shaders) == 1


def test_an_empty_nest_has_no_kernel() -> None:
    tensors = [Tensor(F32, (0,))] * 2
    kernel = copied(F32, (0,), Access(0, along(0)), Access(1, along(0)))
    assert generate(program_of([kernel], tensors, 1)).calls == ()
