"""Generated code for aarch64, linked by the loader and run under qemu, is what the interpreter
computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.ir import DType, Model, infer_shapes
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
