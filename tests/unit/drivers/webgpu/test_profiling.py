"""Measured runs: each kernel has a time by the device's clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.webgpu import profiling
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_webgpu import needs_webgpu, software

SHAPE = (4, 8)
LAYERS = 20


def network() -> Model:
    """Fully connected layers, one after another: none is fused with the next."""
    builder, rng = ModelBuilder(), np.random.default_rng(2)
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    for number in range(LAYERS):
        weights = rng.integers(-1, 2, (8, 8)).astype(np.float32)
        w = builder.constant(weights, f"w{number}")
        (x,) = builder.operation("FULLY_CONNECTED", [x, w, None], [(DType.FLOAT32, SHAPE)])
    return builder.build([x])


def run(prepared: Any, *, measure: bool) -> tuple[NDArray, hal.Timing]:
    output = np.zeros(SHAPE, np.float32)
    given = np.arange(32, dtype=np.float32).reshape(SHAPE)
    request = hal.Request((hal.HostMemory(given),), (hal.HostMemory(output),))
    found = prepared.execute(request, hal.ExecutionConfig(measure=measure))
    return output, found.timing


@needs_webgpu
def test_each_kernel_has_a_time_within_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_STAMPS", 32)
    prepared = software().prepare_model(network(), hal.PrepareConfig())
    wanted, timing = run(prepared, measure=False)
    assert timing.operations == ()
    for _ in range(2):
        got, timing = run(prepared, measure=True)
        assert np.array_equal(got, wanted)
        assert [t.operations for t in timing.operations] == [(n,) for n in range(LAYERS)]
        assert timing.in_driver_ns is not None
        spent = 0
        for kernel in timing.operations:
            assert kernel.start_ns >= spent
            assert kernel.duration_ns >= 0
            spent = kernel.start_ns
        assert 0 < sum(t.duration_ns for t in timing.operations) <= timing.in_driver_ns


@needs_webgpu
def test_a_device_without_time_stamps_measures_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = software().prepare_model(network(), hal.PrepareConfig())
    gpu = prepared.executable.code.gpu  # type: ignore[attr-defined]
    monkeypatch.setattr(gpu, "ns_a_tick", 0.0)
    wanted, _ = run(prepared, measure=False)
    got, timing = run(prepared, measure=True)
    assert np.array_equal(got, wanted)
    assert timing.operations == ()
    assert timing.in_driver_ns
