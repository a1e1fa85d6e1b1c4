"""Random networks keep their results through every pass, and programs stay sound.
`tests/soak/soak_compiler_stages.py` takes many more.
"""

from __future__ import annotations

import pytest

from tests.support_compiler import check_stages, departures
from tests.unit.compiler.random_networks import Network

SEEDS = range(48)


@pytest.mark.parametrize("first", SEEDS[::8])
def test_random_networks_equal_the_reference_after_every_pass(first: int) -> None:
    wrong = {}
    for seed in range(first, first + 8):
        model = Network(seed).model()
        assert check_stages(model) == 10
        if found := departures(model, seed):
            wrong[seed] = found
    assert wrong == {}


def test_random_networks_have_operations_of_every_kind() -> None:
    found = {o.key for seed in SEEDS for o in Network(seed).model().operations}
    assert found >= {
        "PAD", "MIRROR_PAD", "SLICE", "TRANSPOSE", "RESHAPE", "CONCATENATION", "ADD", "MUL", "SUB",
        "RELU", "LOGISTIC", "MAX_POOL_2D", "AVERAGE_POOL_2D", "REDUCE_MAX", "MEAN", "SUM",
        "CONV_2D", "SOFTMAX", "SPLIT", "QUANTIZE", "DEQUANTIZE", "DEPTHWISE_CONV_2D", "GATHER",
        "FULLY_CONNECTED", "RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR", "STRIDED_SLICE",
    }  # fmt: skip
