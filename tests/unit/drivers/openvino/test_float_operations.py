"""Every float32 operation the driver takes, on OpenVINO and on the reference driver."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

import penstock
from penstock.drivers.openvino.rules import RULES
from penstock.ir import DType, ModelBuilder
from tests.support_float_operations import COMMON, check_agrees, resizes
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import OneOperation

pytestmark = needs_openvino

CASES: Final = [*COMMON, *resizes((21, 18), (49, 66), (14, 6), (14, 7))]
ELSEWHERE: Final = {
    *("QUANTIZE", "SHAPE", "ARG_MAX", "ARG_MIN", "CAST", "SELECT", "SELECT_V2"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"),
}
"""Types whose cases are in other files."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(case: OneOperation) -> None:
    device = cpu()
    check_agrees(device, case)
    assert device.compiles == 1


def test_every_rule_has_a_case() -> None:
    tried = {operation.key for case in CASES for operation in case.model.operations}
    assert set(RULES) == tried | ELSEWHERE


@pytest.mark.parametrize("keep_dims", [True, False])
def test_means_of_channels_that_are_alike_are_alike_to_the_last_bit(keep_dims: bool) -> None:
    f32, channels = DType.FLOAT32, 1001
    builder = ModelBuilder()
    x = builder.input(f32, (1, 13, 13, 8), "x")
    filters = builder.constant(np.full((channels, 1, 1, 8), 0.0137, np.float32), "w")
    steps: dict[str, str | int] = {"stride_w": 1, "stride_h": 1, "padding": "VALID"}
    (picture,) = builder.operation("CONV_2D", [x, filters], [(f32, (1, 13, 13, channels))], steps)
    axes = builder.constant(np.array([1, 2], np.int32), "axes")
    shape = (1, 1, 1, channels) if keep_dims else (1, channels)
    mean = builder.operation("MEAN", [picture, axes], [(f32, shape)], {"keep_dims": keep_dims})
    image = np.random.default_rng(0).random((1, 13, 13, 8), np.float32)
    with penstock.compile(builder.build(mean), devices=[cpu()], cache=False, num_threads=1) as net:
        (means,) = net.run([image])
    assert means.shape == shape
    assert np.unique(means).size == 1
    np.testing.assert_allclose(means.reshape(-1)[0], 0.0137 * image.mean() * 8, rtol=1e-5)
