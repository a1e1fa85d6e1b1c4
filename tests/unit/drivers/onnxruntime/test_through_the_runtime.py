"""ONNX Runtime's artefacts in a cache directory: through `penstock.compile`, with receipts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.drivers.onnxruntime import OnnxRuntimeDevice
from tests.support_artefacts import X, answer, network
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_open_shapes import check_open_batch

pytestmark = [needs_onnxruntime, pytest.mark.usefixtures("no_descriptor_leaks")]


def compiled(folder: Path, device: OnnxRuntimeDevice, runs: int = 1) -> tuple[str, str]:
    """Outcome and reason of the compile's cache, after *runs* right runs."""
    with penstock.compile(network(), devices=[device], cache=folder) as model:
        for _ in range(runs):
            assert np.allclose(model(X)[0], answer(), atol=1e-4)
        cache = model.receipt.steps[0].cache
        return cache.outcome, cache.reason


def model_file(folder: Path) -> Path:
    (found,) = folder.glob("*10")
    return found


def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    outcome, reason = compiled(tmp_path, cpu())
    assert (outcome, reason.split(":")[0]) == ("miss", "NoEntry")
    device = cpu()
    assert compiled(tmp_path, device)[0] == "hit"
    assert (device.compiles, device.loads) == (0, 1)


def test_an_altered_file_is_refused_by_name_and_compiled_again(tmp_path: Path) -> None:
    compiled(tmp_path, cpu())
    file = model_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[700] ^= 1
    file.write_bytes(content)
    device = cpu()
    outcome, reason = compiled(tmp_path, device)
    assert (outcome, reason.split(":")[0]) == ("miss", "SealBroken")
    assert (device.compiles, device.loads) == (1, 0)
    assert compiled(tmp_path, cpu())[0] == "hit"


def test_an_open_batch_is_compiled_by_the_run_or_for_the_shapes_given() -> None:
    device = cpu()
    assert device.name == "onnxruntime-cpu"
    check_open_batch(device)
