"""The template of matrix products agrees with the interpreter on random layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import find, given, settings, strategies as st

from penstock.compiler import interpreter
from penstock.compiler.columns import by_columns
from penstock.compiler.expression import identity
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.drivers.llvm.emit import matrix, parts
from penstock.drivers.llvm.emit.dense import Dense
from penstock.drivers.llvm.emit.matrix import LINE, Matrix
from penstock.drivers.llvm.emit.module import template_of
from penstock.drivers.llvm.isa import RECORDS, Instructions, Isa
from penstock.ir import DType
from tests.support_generated import Runner, largest_difference, sets_here, values_for
from tests.support_products import layers


def check(program: Program, isa: Isa, template: str) -> None:
    """Compares one run, and says which template was meant."""
    assert template_of(program, program.kernels[0], isa).name == template
    inputs = values_for(program)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    assert largest_difference(got, wanted) <= (1e-5 if wanted.dtype.kind == "f" else 0)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=20, deadline=None)
@given(program=layers(depthwise=False, is_float=False))
def test_bytes_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    check(program, isa, "dense")


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=layers(depthwise=False, is_float=False, rare=True))
def test_few_weights_that_are_too_large_are_multiplied_apart(isa: Isa, program: Program) -> None:
    layer = template_of(program, program.kernels[0], isa)
    assert isinstance(layer, Matrix)
    assert layer.scale is not None
    if Instructions(isa).weight_type == np.int16:
        assert layer.apart is None
        assert layer.scale.surplus == 0
    elif layer.scale.surplus:
        assert layer.apart is None
    check(program, isa, "dense")


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_some_layer_multiplies_weights_apart(isa: Isa) -> None:
    if Instructions(isa).weight_type == np.int16:
        pytest.skip("weights of 16 bits are never too large")

    def is_apart(program: Program) -> bool:
        layer = template_of(program, program.kernels[0], isa)
        return isinstance(layer, Matrix) and layer.apart is not None

    assert is_apart(find(layers(depthwise=False, is_float=False, rare=True), is_apart))


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=layers(depthwise=False, is_float=True))
def test_floats_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    check(program, isa, "dense")


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=layers(depthwise=False, is_float=False), shares=st.integers(2, 7))
def test_parts_of_panels_together_are_the_whole(isa: Isa, program: Program, shares: int) -> None:
    inputs = values_for(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "LEAST_UNIT", 1)
        runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs, shares), interpreter.run(program, inputs)
    runner.close()
    assert largest_difference(got, wanted) == 0


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_few_panels_are_divided_into_units_of_about_equal_work(isa: Isa) -> None:
    program = pixels(14, 14, 128, 3 * 4 * isa.lanes)
    found = template_of(program, program.kernels[0], isa)
    assert isinstance(found, Dense)
    assert found.by_panels
    assert found.panels < parts.ENOUGH_UNITS <= found.units
    inputs, runner = values_for(program), Runner(program, isa)
    np.testing.assert_array_equal(runner(inputs, 5)[0], runner(inputs)[0])
    runner.close()


@st.composite
def products_of_two(draw: st.DrawFn) -> Program:
    """A product of two inputs, in batches; the second factor has its columns last, or its taps."""
    sizes = [st.sampled_from(s) for s in ((1, 3), (1, 2, 7, 20), (2, 5, 16, 33, 70), (2, 9, 32))]
    batch, rows, columns, depth = (draw(s) for s in sizes)
    last = draw(st.booleans())
    f32 = DType.FLOAT32
    second = (batch, depth, columns) if last else (batch, columns, depth)
    shapes = (batch, rows, depth), second, (batch, rows, columns)
    reads = Access(0, along(0, 1, 3)), Access(1, along(0, 3, 2) if last else along(0, 2, 3))
    kernel = Kernel(
        "matmul", shapes[2], reads, product(f32, f32, f32, (None, None)), identity(f32),
        Access(2, along(0, 1, 2)), (depth,), "sum", f32,
    )  # fmt: skip
    return Program(tuple(Tensor(f32, s) for s in shapes), {}, (kernel,), (0, 1), (2,), {})


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=products_of_two())
def test_products_of_two_inputs_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    inputs, laid = values_for(program), by_columns(program)
    matmul = laid.kernels[-1]
    if matmul.reads[1].axes[-1].steps == ((2, 1),):
        assert template_of(laid, matmul, isa).name == "dense"
    runner = Runner(laid, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    assert largest_difference(got, wanted) <= 1e-5


def test_a_second_factor_is_copied_so_that_columns_lie_last() -> None:
    f32 = DType.FLOAT32
    tensors = Tensor(f32, (8, 16)), Tensor(f32, (24, 16)), Tensor(f32, (8, 24))
    reads = Access(0, along(0, 2)), Access(1, along(1, 2))
    body = product(f32, f32, f32, (None, None))
    kernel = Kernel(
        "matmul", (8, 24), reads, body, identity(f32), Access(2, along(0, 1)), (16,), "sum", f32
    )
    made = by_columns(Program(tensors, {}, (kernel,), (0, 1), (2,), {}))
    assert [k.name for k in made.kernels] == ["columns", "matmul"]
    assert made.tensors[3].shape == (16, 24)
    assert template_of(made, made.kernels[1], RECORDS["avx2"]).name == "dense"


def pixels(rows: int, across: int, depth: int, channels: int) -> Program:
    """A convolution of single pixels of floats."""
    f32, rng = DType.FLOAT32, np.random.default_rng(3)
    shapes = (1, rows, across, depth), (channels, depth), (1, rows, across, channels)
    reads = Access(0, along(0, 1, 2, 4)), Access(1, along(3, 4))
    kernel = Kernel(
        "convolution", shapes[2], reads, product(f32, f32, f32, (None, None)), identity(f32),
        Access(2, along(0, 1, 2, 3)), (depth,), "sum", f32,
    )  # fmt: skip
    weights = rng.standard_normal(shapes[1]).astype(np.float32)
    tensors = tuple(Tensor(f32, s) for s in shapes)
    return Program(tensors, {1: weights}, (kernel,), (0,), (2,), {})


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_tiles_together_fetch_the_weights_of_the_next_panel(isa: Isa) -> None:
    program = pixels(7, 7, 1024, 72)
    found = template_of(program, program.kernels[0], isa)
    assert isinstance(found, Dense)
    tiles = -(-49 // found.rows)
    assert found.ahead_lines * LINE * tiles >= found.unrolled * found.tap_bytes
    text = found.write("f").text()
    assert text.count("call void @llvm.prefetch") >= found.ahead_lines > 0
    check(program, isa, "dense")


def test_weights_are_not_fetched_where_they_stay_or_are_read_once() -> None:
    for shape in ((7, 7, 64, 72), (1, 1, 1024, 72), (40, 40, 1024, 72)):
        program = pixels(*shape)
        found = template_of(program, program.kernels[0], RECORDS["avx512-vnni"])
        assert "prefetch" not in found.write("f").text()
