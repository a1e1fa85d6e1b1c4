"""With the setting, `perf` finds generated functions by names that say what they compute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.drivers.llvm import LlvmDevice
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.drivers.llvm.run import perf
from penstock.hal import PrepareConfig
from tests.support_llvm import needs_llvm
from tests.support_threads_llvm import network

pytestmark = [
    needs_llvm,
    pytest.mark.skipif(sys.platform != "linux", reason="perf is a program of Linux"),
]


def prepared() -> LlvmPreparedModel:
    made = LlvmDevice().prepare_model(network(1), PrepareConfig())
    assert isinstance(made, LlvmPreparedModel)
    return made


def test_functions_are_added_to_the_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "perf.map"
    monkeypatch.setattr(perf, "path", lambda: str(file))
    prepared().close()
    assert not file.exists()
    monkeypatch.setenv("PENSTOCK_DRIVER_SETTINGS", "llvm_perf_map=yes")
    found: dict[str, tuple[int, int]] = {}
    for _ in range(2):
        made = prepared()
        assert made.executable is not None
        image = made.executable.code.image
        lines = file.read_text().splitlines()[-len(image.functions) :]
        found.clear()
        for line in lines:
            address, size, name = line.split()
            found[name.removeprefix("penstock:")] = int(address, 16), int(size, 16)
        assert found == dict(image.functions)
        made.close()
    assert {"run", "worker"} <= set(found)
    assert any("dense_convolution" in name for name in found)
    assert any("depthwise" in name for name in found)


def test_a_map_that_cannot_be_written_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(perf, "path", lambda: str(link))
    monkeypatch.setenv("PENSTOCK_DRIVER_SETTINGS", "llvm_perf_map=yes")
    made = prepared()
    assert made.kernels
    assert not (tmp_path / "elsewhere").exists()
    made.close()
