"""What the OpenVINO devices alone promise; tests/unit/driverkit has what every engine's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.driverkit.installation import processor_features
from penstock.drivers.openvino import OpenVinoDevice
from penstock.drivers.openvino.installation import Installation, Plugin
from penstock.hal import PrepareConfig
from penstock.threads import allowed_processors
from tests.support_openvino import cpu, needs_openvino
from tests.support_programs import run_python
from tests.unit.driverkit.engines import relu


def test_a_plugin_without_hardware_is_listed_with_the_reason(tmp_path: Path) -> None:
    plugin = Plugin("NPU", tmp_path / "plugin", "no NPU here: /dev/accel/accel* does not exist")
    device = OpenVinoDevice(plugin, Installation("1", (plugin,)))
    assert device.check() == plugin.reason
    assert device.capabilities.only_when_named


@pytest.mark.parametrize("name", ["GPU", "NPU"])
def test_a_plugin_that_was_never_measured_claims_the_lowest_class(name: str) -> None:
    plugin = Plugin(name, None)
    device = OpenVinoDevice(plugin, Installation("1", (plugin,)))
    assert [a.accuracy for a in device.supported_operations(relu())] == ["relaxed"]


@needs_openvino
def test_the_version_names_engine_plugin_and_processor() -> None:
    import importlib.metadata

    version = cpu().version
    assert f"openvino {importlib.metadata.version('openvino')}; CPU plugin " in version
    assert processor_features() in version


def test_another_library_makes_another_version(tmp_path: Path) -> None:
    versions = []
    for content in (b"one", b"two"):
        library = tmp_path / "libtest_cpu_plugin.so"
        library.write_bytes(content)
        plugin = Plugin("CPU", library)
        versions.append(Installation("1", (plugin,)).version_of(plugin))
    assert versions[0] != versions[1]


@needs_openvino
def test_a_limit_on_instructions_makes_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cpu().version
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert cpu().version == before.removesuffix(")") + "; ONEDNN_MAX_CPU_ISA=AVX2)"


@needs_openvino
def test_the_engine_does_not_report_that_it_was_loaded() -> None:
    """Its import alone would, over the network, from a thread of its own."""
    program = (
        "import sys, threading\n"
        "from penstock.drivers.openvino import engine\n"
        "engine.core()\n"
        "named = [name for name in sys.modules if name.startswith('openvino_telemetry')]\n"
        "print(named, threading.active_count(), hasattr(engine.openvino(), 'convert_model'))\n"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.strip() == "[] 1 True"


def test_an_operand_of_too_many_dimensions_is_refused() -> None:
    (answer,) = cpu().supported_operations(relu((1,) * 6))
    assert not answer.supported
    assert "6 dimensions" in answer.reason


@needs_openvino
@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_model_gets_the_number_of_threads(threads: int) -> None:
    prepared = cpu().prepare_model(relu(), PrepareConfig(num_threads=threads))
    found = prepared.executable.compiled  # type: ignore[attr-defined]  # its own
    told = [found.get_property(name) for name in ("INFERENCE_NUM_THREADS", "NUM_STREAMS")]
    assert told == [min(threads, allowed_processors()), 1]
