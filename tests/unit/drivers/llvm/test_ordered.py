"""Sums whose order is given: their last bits are those of the interpreter and of `reference`."""

from __future__ import annotations

import struct
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

import penstock
from penstock.compiler import interpreter
from penstock.compiler.expression import Scope
from penstock.compiler.printing import show
from penstock.compiler.program import Program
from penstock.driverkit.site import make_sites
from penstock.drivers.llvm.device import is_steady
from penstock.drivers.llvm.emit.module import template_of
from penstock.drivers.llvm.emit.nest import Nest
from penstock.drivers.llvm.isa import Isa
from penstock.hal import AccuracyClass
from penstock.ir import DType, Model, ModelBuilder, Quantization
from penstock.ir.operation import AttributeValue
from penstock.ir.rounding import Sums
from tests.support_generated import Runner, compiled, largest_difference, sets_here, values_for
from tests.support_llvm import needs_llvm
from tests.support_products import layers
from tests.support_xnnpack import needs_litert

F32 = DType.FLOAT32
ORDERS: st.SearchStrategy[Sums] = st.sampled_from(get_args(Sums)[1:])


def ordered(program: Program, order: Sums) -> Program:
    """The layer *program*, whose sums are added in *order*; fused ones begin with the bias."""
    (kernel,) = program.kernels
    scope = Scope(*kernel.finish.arguments)
    values = [scope.argument(i) for i in range(len(kernel.finish.arguments))]
    more = values[2:] if order == "fused" else values[1:]
    finish = scope.finish(sum(more, values[0]))
    return replace(program, kernels=(replace(kernel, finish=finish, order=order),))


def assert_same_bits(program: Program, isa: Isa) -> None:
    inputs = values_for(program)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=layers(depthwise=False, is_float=True), order=ORDERS)
def test_matrix_products_add_in_order(isa: Isa, program: Program, order: Sums) -> None:
    program = ordered(program, order)
    assert template_of(program, program.kernels[0], isa).name == "dense"
    assert_same_bits(program, isa)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=15, deadline=None)
@given(program=layers(depthwise=True, is_float=True), order=ORDERS)
def test_depthwise_products_add_in_order(isa: Isa, program: Program, order: Sums) -> None:
    assert_same_bits(ordered(program, order), isa)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=6, deadline=None)
@given(program=st.booleans().flatmap(lambda d: layers(depthwise=d, is_float=True)), order=ORDERS)
def test_nests_add_in_order(isa: Isa, program: Program, order: Sums) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.drivers.llvm.emit.module.template_of", Nest)
        assert_same_bits(ordered(program, order), isa)


def before_positions(*, bias: bool) -> Model:
    """A convolution, one by depth and a pool of positions."""
    rng, builder = np.random.default_rng(5), ModelBuilder()

    def constant(*shape: int) -> int:
        return builder.constant(rng.standard_normal(shape).astype(np.float32))

    x = builder.input(F32, (1, 8, 10, 6), "x")
    filters = [constant(5, 3, 3, 6), constant(1, 3, 3, 5)]
    biases = [constant(5) if bias else None for _ in filters]
    steps: dict[str, AttributeValue] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    (y,) = builder.operation("CONV_2D", [x, filters[0], biases[0]], [(F32, (1, 8, 10, 5))], steps)
    (z,) = builder.operation(
        "DEPTHWISE_CONV_2D", [y, filters[1], biases[1]], [(F32, (1, 8, 10, 5))],
        {**steps, "depth_multiplier": 1},
    )  # fmt: skip
    pooled = builder.operation(
        "CUSTOM", [z], [(F32, (1, 4, 5, 5)), (F32, (1, 4, 5, 5))],
        {"custom_code": "MaxPoolingWithArgmax2D",
         "custom_options": struct.pack("<6i", 2, 2, 2, 2, 2, 0)},
    )  # fmt: skip
    return builder.build([z, *pooled])


@needs_llvm
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("other", ["reference", pytest.param("xnnpack", marks=needs_litert)])
def test_layers_before_positions_are_computed_to_the_last_bit(other: str, bias: bool) -> None:
    model = before_positions(bias=bias)
    image = np.random.default_rng(6).standard_normal((1, 8, 10, 6)).astype(np.float32)
    results = []
    orders: list[tuple[str, AccuracyClass]] = [("llvm", "exact"), (other, "relaxed")]
    for device, accuracy in orders:
        policy = penstock.Policy(accuracy=accuracy, allow_fallback=False)
        with penstock.compile(model, devices=[device], cache=None, policy=policy) as made:
            results.append(list(map(np.array, made.run([image]))))
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


@needs_llvm
def test_layers_before_a_hybrid_one_are_computed_to_the_last_bit() -> None:
    rng, builder = np.random.default_rng(9), ModelBuilder()

    def constant(*shape: int) -> int:
        return builder.constant(rng.standard_normal(shape).astype(np.float32))

    x = builder.input(F32, (1, 9, 7, 20), "x")
    steps: dict[str, AttributeValue] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    (y,) = builder.operation(
        "CONV_2D", [x, constant(24, 3, 3, 20), constant(24)], [(F32, (1, 9, 7, 24))], steps
    )
    (z,) = builder.operation(
        "DEPTHWISE_CONV_2D", [y, constant(1, 3, 3, 24), constant(24)], [(F32, (1, 9, 7, 24))],
        {**steps, "depth_multiplier": 1},
    )  # fmt: skip
    bytes_ = rng.integers(-127, 128, (8, 1, 1, 24)).astype(np.int8)
    w = builder.constant(bytes_, quantization=Quantization((0.01,), (0,)))
    (out,) = builder.operation("CONV_2D", [z, w, constant(8)], [(F32, (1, 9, 7, 8))], steps)
    model, image = builder.build([z, out]), rng.standard_normal((1, 9, 7, 20)).astype(np.float32)
    results = []
    for device in ("llvm", "reference"):
        policy = penstock.Policy(accuracy="exact", allow_fallback=False)
        with penstock.compile(model, devices=[device], cache=None, policy=policy) as made:
            results.append(list(map(np.array, made.run([image]))))
    (z_here, out_here), (z_wanted, out_wanted) = results
    np.testing.assert_array_equal(z_here.view(np.uint32), z_wanted.view(np.uint32))
    assert largest_difference(out_here, out_wanted) <= 2e-7


@needs_llvm
@needs_litert
def test_a_filter_of_one_signal_has_the_last_bits_of_xnnpack() -> None:
    rng, builder = np.random.default_rng(8), ModelBuilder()
    x = builder.input(F32, (1, 1, 400, 1), "x")
    filters, bias = (
        builder.constant(rng.standard_normal(shape).astype(np.float32))
        for shape in ((1, 1, 90, 1), (1,))
    )
    steps: dict[str, AttributeValue] = {"padding": "VALID", "stride_h": 1, "stride_w": 2}
    (y,) = builder.operation("CONV_2D", [x, filters, bias], [(F32, (1, 1, 156, 1))], steps)
    model, signal = builder.build([y]), rng.standard_normal((1, 1, 400, 1)).astype(np.float32)
    results = []
    for device in ("llvm", "xnnpack"):
        policy = penstock.Policy(accuracy="relaxed", allow_fallback=False)
        with penstock.compile(model, devices=[device], cache=None, policy=policy) as made:
            results.append(np.array(made.run([signal])[0]))
    np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))


def test_the_order_of_sums_is_asked_for_only_where_positions_follow() -> None:
    program = compiled(before_positions(bias=True), sets_here()[0])
    assert [k.ordered for k in program.kernels if k.combine == "sum"] == [True, True]
    assert show(program).count("sum as float32, fused, from e0 over") == 2
    builder = ModelBuilder()
    x = builder.input(F32, (1, 4), "x")
    w = builder.constant(np.eye(4, dtype=np.float32))
    (y,) = builder.operation("FULLY_CONNECTED", [x, w, None], [(F32, (1, 4))])
    plain = compiled(builder.build([y]), sets_here()[0])
    assert not any(k.ordered for k in plain.kernels)


def test_operations_that_round_otherwise_are_not_steady() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (1, 4), "x")
    (y,) = builder.operation("TANH", [x], [(F32, (1, 4))])
    (z,) = builder.operation(
        "PRELU", [y, builder.constant(np.ones(4, np.float32))], [(F32, (1, 4))]
    )
    half = builder.input(DType.FLOAT16, (1, 4), "half")
    (h,) = builder.operation("RELU", [half], [(DType.FLOAT16, (1, 4))])
    assert [is_steady(s) for s in make_sites(builder.build([z, h]))] == [False, True, False]
