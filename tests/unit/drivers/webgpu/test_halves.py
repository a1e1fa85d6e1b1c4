"""Constant filters as float16: where values stay the same, and in the class `relaxed`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import hal
from penstock.compiler.program import Program
from penstock.drivers.webgpu.emit import module
from penstock.drivers.webgpu.emit.form import halves_of
from penstock.drivers.webgpu.emit.module import generate
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_webgpu import needs_webgpu, run_program, software
from tests.unit.drivers.webgpu.test_tile import CONV, DENSE, DEPTHWISE, F32, layer

LAYERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "conv": (CONV, (1, 6, 6, 8), (12, 3, 3, 8)),
    "conv of three channels": (CONV, (1, 7, 6, 3), (8, 3, 3, 3)),
    "conv to channels of a part": (CONV, (1, 5, 5, 4), (14, 3, 3, 4)),
    "depthwise": (DEPTHWISE, (1, 6, 6, 8), (1, 3, 3, 8)),
    "dense": (DENSE, (1, 40), (24, 40)),
    "dense, several rows": (DENSE, (5, 9), (8, 9)),
}


def filters(*values: float) -> NDArray:
    """Packed filters of one row and one element."""
    return np.array(values, np.float32).reshape(1, 1, -1)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -65504.0, 2.0**-14, 0.333251953125])
def test_values_of_float16_are_kept_as_they_are(value: float) -> None:
    found = halves_of(filters(1, value), rounded=False)
    assert found is not None
    halves, factor = found
    assert halves.dtype == np.float16
    assert factor == 1
    assert np.array_equal(halves.astype(np.float32).view(np.uint32), filters(1, value).view("u4"))


@pytest.mark.parametrize("value", [2.0**-15, -(2.0**-24), 3 * 2.0**-24])
def test_values_that_devices_may_read_as_0_are_kept_multiplied(value: float) -> None:
    found = halves_of(filters(63, value, 0), rounded=False)
    assert found is not None
    halves, factor = found
    assert factor == 1024
    assert np.array_equal(halves.astype(np.float32), filters(63, value, 0) * 1024)
    assert halves_of(filters(64, value), rounded=False) is None


@pytest.mark.parametrize("value", [0.1, 65520.0, 1e30, 2.0**-25, 2.0**-40, np.inf, np.nan])
def test_other_values_stay_float32(value: float) -> None:
    assert halves_of(filters(1, value), rounded=False) is None


def test_rounding_is_no_larger_than_that_of_float16() -> None:
    drawn = np.random.default_rng(5).normal(0, 0.05, (3, 64, 8)).astype(np.float32)
    found = halves_of(drawn, rounded=True)
    assert found is not None
    halves, factor = found
    assert factor == 1
    error, size = (np.sqrt(np.mean(np.square(a))) for a in (halves - drawn, drawn))
    assert 0 < error <= 2.0**-11 * size


@pytest.mark.parametrize("value", [1e-8, 1e5, np.inf, np.nan])
def test_filters_that_rounding_would_change_by_more_stay_float32(value: float) -> None:
    drawn = np.random.default_rng(5).normal(0, 1, (1, 64, 8)).astype(np.float32)
    drawn[..., 3] = value
    assert halves_of(drawn, rounded=True) is None


def with_halves(program: Program, scale: float) -> Program:
    """*program* with constants of float32, times *scale*, that float16 has."""
    constants = {
        tensor: (array * scale).astype(np.float16).astype(array.dtype)
        if array.dtype == np.float32
        else array
        for tensor, array in program.constants.items()
    }
    return replace(program, constants=constants)


@needs_webgpu
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_the_same_bits_with_filters_of_either_size(name: str, scale: float) -> None:
    operation, shape, weights = LAYERS[name]
    program = with_halves(layer(operation, F32, shape, weights), scale)
    image = np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)
    assert any("four_halves(" in text for text in generate(program).shaders)
    (halved,) = run_program(program, [image])
    with patch.object(module, "halves_of", return_value=None):
        assert not any("four_halves(" in text for text in generate(program).shaders)
        (whole,) = run_program(program, [image])
    assert np.array_equal(halved.view(np.uint32), whole.view(np.uint32))


def dense() -> Model:
    """A fully connected layer whose filters float16 does not have."""
    builder, rng = ModelBuilder(), np.random.default_rng(7)
    x = builder.input(F32, (1, 256), "x")
    w = builder.constant(rng.normal(0, 1, (64, 256)).astype(np.float32), "w")
    (y,) = builder.operation("FULLY_CONNECTED", [x, w, None], [(F32, (1, 64))], {})
    return builder.build([y])


@needs_webgpu
def test_filters_are_rounded_only_where_the_class_is_relaxed() -> None:
    device, model = software(), dense()
    image = np.random.default_rng(8).normal(0, 1, (1, 256)).astype(np.float32)
    found = dict[str, tuple[NDArray, int]]()
    for accuracy in ("exact", "faithful", "relaxed"):
        config: Any = hal.PrepareConfig(accuracy=accuracy)
        prepared: Any = device.prepare_model(model, config)
        result = np.empty((1, 64), np.float32)
        request = hal.Request((hal.HostMemory(image),), (hal.HostMemory(result),))
        prepared.execute(request, hal.ExecutionConfig())
        found[accuracy] = result, prepared.executable.code.manifest.constants
        printed = device.dump(model, config, "wgsl")
        assert ("four_halves(" in printed) is (accuracy == "relaxed")
    (exact, size), (_, faithful), (relaxed, halved) = found.values()
    assert faithful == size >= halved + 64 * 256 * 2
    error, scale = (np.sqrt(np.mean(np.square(a))) for a in (relaxed - exact, exact))
    assert 0 < error <= 2.0**-11 * scale


def test_products_of_a_type_that_is_no_float32_are_not_halved() -> None:
    program = layer(CONV, DType.INT8, (1, 5, 5, 8), (8, 3, 3, 8))
    assert not any("four_halves(" in text for text in generate(program, is_relaxed=True).shaders)
