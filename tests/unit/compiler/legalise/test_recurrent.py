"""Recurrent cells become kernels that give what the reference device gives, new states included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from penstock.compiler.legalise import judge
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, NDArray
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer
from tests.unit.drivers.reference.support_cells import (
    Filters,
    both_case,
    integer_basic_case,
    integer_svdf_case,
    real_basic_case,
    real_svdf_case,
    sequence_case,
    step_case,
)
from tests.unit.drivers.reference.support_lstm import (
    Form,
    bidirectional_case,
    integer_case,
    narrow_case,
    real_case,
)
from tests.unit.drivers.reference.support_recurrent import Case, Constant, State, values

F32, I8, U8 = DType.FLOAT32, DType.INT8, DType.UINT8
WEIGHTS: Final = [F32, I8, U8]
ACTIVATIONS: Final = ["NONE", "RELU", "RELU6", "TANH"]


def model_of(case: Case, seed: int = 0) -> tuple[Model, list[NDArray]]:
    """The model of *case*, whose states are inputs and outputs, and arrays for its inputs."""
    rng = np.random.default_rng(seed)
    inputs: list[Given | None] = []
    states = []
    for item in case.inputs:
        if item is None:
            inputs.append(None)
            continue
        quantization = item.quantization
        scales = quantization.scales if quantization else ()
        zero_point = quantization.zero_points[0] if quantization else 0
        if isinstance(item, Constant):
            inputs.append(Given(item.value, scales, zero_point))
            continue
        if isinstance(item, State):
            states.append((item.dtype, item.quantization))
        array = values(rng, item.dtype, item.shape)
        inputs.append(Given(array, scales, zero_point, fed=True))
    first, *others = case.outputs
    more = [*((o.dtype, o.quantization) for o in others), *states]
    output = first.dtype, first.quantization
    return layer(case.kind, inputs, output, case.attributes, more), feeds(inputs)


def check_case(case: Case, seed: int = 0) -> None:
    """The program of *case* gives what the reference device gives, new states included."""
    check(*model_of(case, seed), stages=["tabulate"])


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "SIGN_BIT"])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_basic_cells(weights: DType, activation: str, asymmetric: bool) -> None:
    rng = np.random.default_rng(1)
    more: dict[str, Any] = {
        "fused_activation_function": activation,
        "asymmetric_quantize_inputs": asymmetric,
    }
    check_case(step_case(rng, weights, **more))
    check_case(sequence_case(rng, weights, time_major=False, **more))
    check_case(both_case(rng, weights, time_major=False, merge=True, auxiliary=3, **more))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_of_basic_cells(weights: DType, asymmetric: bool, time_major: bool) -> None:
    rng = np.random.default_rng(1)
    more: dict[str, Any] = {
        "fused_activation_function": "TANH",
        "asymmetric_quantize_inputs": asymmetric,
    }
    check_case(sequence_case(rng, weights, time_major=time_major, **more))
    for merge in (False, True):
        forms: list[dict[str, Any]] = [{}, {"auxiliary": 3}, {"auxiliary": 4, "linked": True}]
        for form in forms:
            case = both_case(rng, weights, time_major=time_major, merge=merge, **form, **more)
            check_case(case)


FORMS: Final = [
    Form(),
    Form(kind="LSTM"),
    Form(time_major=True),
    Form(outputs=3),
    Form(outputs=3, projection_bias=True, coupled=True),
    Form(coupled=True, peephole=True),
    Form(peephole=True, norm=True),
    Form(norm=True, outputs=5, projection_bias=True),
    Form(batch=1, steps=1, cells=17, size=9),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("asymmetric", [False, True])
def test_long_memories(form: Form, weights: DType, asymmetric: bool) -> None:
    rng = np.random.default_rng(2)
    check_case(real_case(form, rng, weights, asymmetric_quantize_inputs=asymmetric))
    clips: dict[str, Any] = {"cell_clip": 0.3, "proj_clip": 0.1}
    check_case(real_case(form, rng, weights, **clips))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("auxiliary", [0, 4])
def test_memories_of_both_directions(weights: DType, merge: bool, auxiliary: int) -> None:
    rng = np.random.default_rng(3)
    form = Form(kind="BIDIRECTIONAL_SEQUENCE_LSTM", batch=2, steps=3)
    for time_major in (False, True):
        chosen = Form(kind=form.kind, steps=3, time_major=time_major)
        case = bidirectional_case(chosen, rng, weights, merge=merge, auxiliary=auxiliary)
        check_case(case)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_svdf_of_floats(weights: DType, activation: str) -> None:
    rng = np.random.default_rng(4)
    for filters in (Filters(), Filters(batch=1, rank=1, memory=1), Filters(units=3, rank=3)):
        for asymmetric in (False, True):
            more: dict[str, Any] = {
                "fused_activation_function": activation,
                "asymmetric_quantize_inputs": asymmetric,
            }
            check_case(real_svdf_case(rng, weights, filters, **more))


@pytest.mark.parametrize("bias", [False, True])
def test_integer_svdf(bias: bool) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        for filters in (Filters(), Filters(batch=1, rank=1, memory=1), Filters(units=3, rank=3)):
            check_case(integer_svdf_case(rng, filters, bias=bias), seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [-15, -11, -9])
def test_integer_memories(form: Form, power: int) -> None:
    rng = np.random.default_rng(-power)
    zero_point = int(rng.integers(-128, 128))
    clips: dict[str, Any] = {"cell_clip": 0.3 * 2.0 ** (power + 15), "proj_clip": 0.1}
    for more in ({}, clips):
        check_case(integer_case(replace(form, steps=3), rng, zero_point, power, **more))


@pytest.mark.parametrize(("batch", "size", "cells"), [(1, 3, 4), (2, 5, 3), (3, 1, 1)])
def test_basic_kernels(batch: int, size: int, cells: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        check_case(real_basic_case(rng, batch, size, cells), seed)
        check_case(integer_basic_case(rng, batch, size, cells), seed)


def test_memories_of_twelve_intermediate_results_are_refused() -> None:
    case = narrow_case(np.random.default_rng(7))
    with pytest.raises(Refused, match="an integer memory with 12 intermediate results"):
        judge(make_sites(model_of(case)[0])[0])


def test_sequences_are_bounded() -> None:
    rng = np.random.default_rng(5)
    model, _ = model_of(real_case(Form(steps=257), rng))
    with pytest.raises(Refused, match="a sequence of 257 steps"):
        judge(make_sites(model)[0])
