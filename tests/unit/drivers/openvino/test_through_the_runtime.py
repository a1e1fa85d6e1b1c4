"""OpenVINO's artefacts in a cache directory: through `penstock.compile`, with receipts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.drivers.openvino import OpenVinoDevice
from tests.support_artefacts import X, answer, network
from tests.support_open_shapes import check_open_batch
from tests.support_openvino import cpu, needs_openvino

pytestmark = [needs_openvino, pytest.mark.usefixtures("no_descriptor_leaks")]


def compiled(folder: Path, device: OpenVinoDevice, runs: int = 1) -> tuple[str, str]:
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


@pytest.mark.parametrize(("mode", "forms"), [("first_run", ["optimised"]), ("staged", ["baseline", "optimised"])])  # fmt: skip
def test_what_was_written_late_is_found(tmp_path: Path, mode: str, forms: list[str]) -> None:
    with knobs.override(driver_settings=f"openvino_compilation={mode}"):
        first = cpu()
        assert compiled(tmp_path, first)[0] == "miss"
        assert first.compiles == 1
        for form in forms:
            device = cpu()
            device.uses = 2
            outcome, reason = compiled(tmp_path, device, runs=3)
            assert outcome == "hit"
            assert form in reason
            assert device.compiles == (form == "baseline")


def test_an_open_batch_is_compiled_by_the_run_or_for_the_shapes_given() -> None:
    device = cpu()
    assert device.name == "openvino-cpu"
    check_open_batch(device)
