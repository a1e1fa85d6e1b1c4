"""The devices of the driver: what they say of themselves, their cache, and forks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import hal, knobs, vulkan
from penstock.drivers.webgpu import create, installation
from penstock.errors import DeadObject
from penstock.hal.device import is_isolated
from penstock.ir import DType, Model, ModelBuilder, Quantization
from penstock.runtime.discovery import Manager
from tests.support_programs import run_python
from tests.support_webgpu import needs_webgpu, software

IMAGE = np.linspace(-1, 1, 2 * 5 * 5 * 3, dtype=np.float32).reshape(2, 5, 5, 3)


def network(*, quantised: bool = False) -> Model:
    """A convolution with a RELU of images of 5 x 5 pixels, of floats or of 8 bits."""
    builder, rng = ModelBuilder(), np.random.default_rng(4)
    dtype = DType.INT8 if quantised else DType.FLOAT32
    scales = [Quantization((s,), (z,)) if quantised else None for s, z in ((0.1, -3), (0.02, 0))]
    x = builder.input(dtype, IMAGE.shape, "x", quantization=scales[0])
    weights = rng.normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
    if quantised:
        weights = rng.integers(-127, 128, weights.shape).astype(np.int8)
    w = builder.constant(weights, "w", scales[1])
    options: dict[str, str | int] = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
    shape = (2, 5, 5, 4)
    (y,) = builder.operation("CONV_2D", [x, w, None], [(dtype, shape, scales[0])], options)
    (z,) = builder.operation("RELU", [y], [(dtype, shape, scales[0])])
    return builder.build([z])


def image(model: Model) -> np.ndarray:
    wide = (IMAGE * 127).astype(np.int8)
    return wide if model.inputs[0].dtype is DType.INT8 else IMAGE


def wanted(model: Model) -> np.ndarray:
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        return np.array(compiled.run([image(model)])[0])


def test_hardware_and_software_are_two_devices() -> None:
    hardware, other = create()
    assert (hardware.name, hardware.type) == ("webgpu", hal.DeviceType.GPU)
    assert (other.name, other.type) == ("webgpu-software", hal.DeviceType.CPU)
    assert hardware.capabilities.only_when_named
    assert other.capabilities.only_when_named
    assert hardware.own_process


def test_results_of_hardware_are_relaxed_because_none_was_measured() -> None:
    for device, best in zip(create(), ("relaxed", "exact"), strict=True):
        answers = device.supported_operations(network(quantised=True))
        assert {answer.accuracy for answer in answers} == {best}


def test_a_device_without_wgpu_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "package_folder", lambda _: None)
    installation.engine_version.cache_clear()
    try:
        for device in create():
            assert device.check() == "wgpu is not installed: pip install 'penstock-nn[gpu]'"
            assert device.version == "1 (no adapter)" or "wgpu" not in device.version
    finally:
        installation.engine_version.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="files of Linux tell of adapters")
def test_a_device_without_an_adapter_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "engine_version", lambda: "0.32.0")
    monkeypatch.setattr(installation, "MANIFESTS", (str(tmp_path),))
    monkeypatch.setattr(installation, "nodes", list)
    hardware, other = create()
    assert "mesa-vulkan-drivers" in str(other.check())
    assert str(hardware.check()).startswith("no graphics processor: ")
    monkeypatch.setattr(installation, "nodes", lambda: [Path("/dev/dri/renderD128")])
    (tmp_path / "lvp_icd.x86_64.json").touch()
    assert str(hardware.check()).startswith("no Vulkan driver for a graphics processor")
    assert other.check() is None
    (tmp_path / "radeon_icd.x86_64.json").touch()
    assert hardware.check() is None


def test_variables_name_the_drivers_of_vulkan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, named = tmp_path / "system", tmp_path / "named"
    for folder, name in ((system, "lvp_icd"), (named, "radeon_icd")):
        folder.mkdir()
        (folder / f"{name}.x86_64.json").touch()
    monkeypatch.setattr(installation, "MANIFESTS", (str(system),))
    for variable in vulkan.VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def names() -> list[str]:
        return [path.name.partition("_")[0] for path in installation.manifests()]

    assert names() == ["lvp"]
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(named))
    assert names() == ["radeon", "lvp"]
    monkeypatch.setenv("VK_ICD_FILENAMES", str(named / "radeon_icd.x86_64.json"))
    assert names() == ["radeon"]
    monkeypatch.setenv("VK_DRIVER_FILES", str(named / "missing.json"))
    assert names() == []


def test_examining_a_model_loads_no_engine() -> None:
    code = (
        "import sys, penstock; from penstock.drivers.webgpu import create;"
        "from tests.unit.drivers.webgpu.test_device import network;"
        "[d.supported_operations(network()) for d in create()];"
        "print([n for n in sys.modules if n.split('.')[0] == 'wgpu'])"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "[]"


def test_operation_without_a_shader_is_refused_with_the_reason() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.INT64, (4,), "x")
    y = builder.input(DType.INT64, (4,), "y")
    (z,) = builder.operation("DIV", [x, y], [(DType.INT64, (4,))])
    (answer,) = software().supported_operations(builder.build([z]))
    assert not answer.supported
    assert answer.reason


@pytest.mark.parametrize("dtype", [DType.UINT64, DType.STRING])
def test_view_of_a_type_that_shaders_lack_is_refused(dtype: DType) -> None:
    builder = ModelBuilder()
    (y,) = builder.operation("SQUEEZE", [builder.input(dtype, (1, 3), "x")], [(dtype, (3,))])
    (answer,) = software().supported_operations(builder.build([y]))
    assert not answer.supported
    assert dtype.value in answer.reason


@needs_webgpu
@pytest.mark.parametrize("quantised", [False, True])
def test_a_network_is_computed_and_loaded_from_the_cache(tmp_path: Path, quantised: bool) -> None:
    model, device = network(quantised=quantised), software()
    for _ in range(2):
        with penstock.compile(model, devices=[device], cache=tmp_path) as compiled:
            result = compiled.run([image(model)])[0]
        if quantised:
            assert np.array_equal(result, wanted(model))
        else:
            assert np.allclose(result, wanted(model), rtol=1e-5, atol=1e-5)
    assert (device.compiles, device.loads) == (1, 1)


@needs_webgpu
def test_the_shaders_are_printed_without_an_adapter() -> None:
    model, config = network(), hal.PrepareConfig()
    text = software().dump(model, config, "wgsl")
    assert "@compute" in text
    assert "convolution" in text
    assert software().explain(model, config)[0].startswith("tile")


@needs_webgpu
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_gets_an_error_and_no_hang() -> None:
    device, model = software(), network()
    prepared = device.prepare_model(model, hal.PrepareConfig())
    output = np.zeros((2, 5, 5, 4), np.float32)
    request = hal.Request((hal.HostMemory(IMAGE),), (hal.HostMemory(output),))
    prepared.execute(request, hal.ExecutionConfig())
    child = os.fork()
    if child == 0:
        try:
            prepared.execute(request, hal.ExecutionConfig())
        except DeadObject:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
def test_the_device_runs_in_a_process_of_its_own_and_its_death_is_survived() -> None:
    code = (
        "import os, signal, numpy as np, penstock\n"
        "from tests.unit.drivers.webgpu.test_device import IMAGE, network\n"
        "from penstock.runtime.isolation import supervisors\n"
        "model = network()\n"
        "with penstock.compile(model, devices=['webgpu-software'], cache=None) as compiled:\n"
        "    first = compiled.run([IMAGE])\n"
        "    os.kill(supervisors()[0].running.pid, signal.SIGKILL)\n"
        "    again = compiled.run([IMAGE])\n"
        "print(np.array_equal(first[0], again[0]), *again.receipt.notes)\n"
    )
    printed = run_python("-c", code, check=True).stdout
    assert printed.startswith("True device webgpu-software: its driver's process was ended by ")


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
def test_a_host_process_loads_the_driver_of_vulkan_that_a_variable_names(tmp_path: Path) -> None:
    (system,) = (p for p in installation.manifests() if p.name.startswith("lvp"))
    library = Path(json.loads(system.read_bytes())["ICD"]["library_path"])
    if not library.is_absolute():
        pytest.skip(f"the system's loader finds {library}")
    shutil.copy(library, tmp_path / "libcopy.so")
    code = (
        "import penstock\n"
        "from tests.unit.drivers.webgpu.test_device import IMAGE, network\n"
        "from penstock.runtime.isolation import supervisors\n"
        "with penstock.compile(network(), devices=['webgpu-software'], cache=None) as compiled:\n"
        "    compiled.run([IMAGE])\n"
        "    maps = open(f'/proc/{supervisors()[0].running.pid}/maps').read()\n"
        "print([line.split()[-1] for line in maps.splitlines() if '.so' in line])\n"
    )
    manifest = tmp_path / "lvp_icd.json"
    driver = {"api_version": "1.1.230", "library_path": "./libcopy.so"}
    manifest.write_text(json.dumps({"ICD": driver, "file_format_version": "1.0.0"}), "ascii")
    environment = {**os.environ, "VK_DRIVER_FILES": str(manifest)}
    printed = run_python("-c", code, check=True, env=environment).stdout
    assert str(tmp_path / "libcopy.so") in printed
    assert str(library) not in printed


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
def test_listing_devices_starts_no_host_and_the_knob_keeps_the_driver_here() -> None:
    manager = Manager()
    (info,) = [d for d in manager.infos() if d.name == "webgpu-software"]
    assert info.isolated
    here = manager.by_name("webgpu-software", isolate=False)
    assert here is not None
    assert not is_isolated(here)
    with knobs.override(isolate="webgpu=no"):
        assert Manager().by_name("webgpu-software") is not None
        (info,) = [d for d in Manager().infos() if d.name == "webgpu-software"]
        assert not info.isolated
