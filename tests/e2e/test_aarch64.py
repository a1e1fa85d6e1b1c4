"""Generated code for aarch64, linked by the loader and run under qemu, is what the interpreter
computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.ir import DType, Model, ModelBuilder, Quantization, infer_shapes
from tests.support_aarch64 import SETS, skip_without_qemu, wrong
from tests.support_layers import FAMILIES, supported_layers

pytestmark = pytest.mark.slow

NETWORKS: Final = {
    "vww_96_int8.tflite": 2,
    "mobilenet_v1_0.25_128_uint8.tflite": 2,
    "yunet_float.tflite": 2,
    "wakeword_okay_nabu.tflite": 1,
}
"""Networks, and the threads that they are large enough for."""

SEEDS: Final = range(3)


@pytest.fixture(autouse=True)
def needs_qemu() -> None:
    skip_without_qemu()


def network(corpus: Path, name: str) -> Model:
    """A network of the corpus, with one image a run."""
    model = penstock.load(corpus / "models" / "networks" / name)
    shapes = [tuple(max(1, d or 1) for d in o.shape or ()) for o in model.inputs]
    return infer_shapes(model, dict(enumerate(shapes)))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize(("name", "threads"), NETWORKS.items())
def test_network_runs_bit_for_bit_on_one_thread_and_on_two(
    name: str, threads: int, isa: str, corpus: Path, tmp_path: Path
) -> None:
    assert wrong(network(corpus, name), None, isa, tmp_path, threads) == []


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.FLOAT32], ids=lambda d: d.value)
def test_layers_run_bit_for_bit(family: str, dtype: DType, isa: str, tmp_path: Path) -> None:
    for seed, model, inputs in supported_layers(family, SEEDS, dtype):
        assert wrong(model, inputs, isa, tmp_path) == [], f"seed {seed}"


@pytest.mark.parametrize("isa", SETS)
def test_a_map_of_one_channel_is_multiplied_within_its_convolution(
    isa: str, tmp_path: Path
) -> None:
    """Each place of such a map is read alone."""
    rng, builder = np.random.default_rng(3), ModelBuilder()
    some, unit = Quantization((0.02,), (3,)), Quantization((1 / 256,), (-128,))
    x = builder.input(DType.INT8, (1, 9, 16, 96), "x", some)
    y = builder.constant(rng.integers(-128, 128, (9, 16, 1), np.int8), quantization=unit)
    weights = builder.constant(
        rng.integers(-127, 128, (1, 1, 1, 96), np.int8), quantization=Quantization((0.01,), (0,))
    )
    size = (1, 9, 16, 1)
    (found,) = builder.operation(
        "CONV_2D", [x, weights, None], [(DType.INT8, size, some)],
        {"padding": "SAME", "stride_w": 1, "stride_h": 1},
    )  # fmt: skip
    (shares,) = builder.operation("LOGISTIC", [found], [(DType.INT8, size, unit)])
    made = builder.operation("MUL", [shares, y], [(DType.INT8, size, some)])
    assert wrong(builder.build(made), None, isa, tmp_path) == []
