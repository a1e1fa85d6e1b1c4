"""The OpenVINO devices as users meet them: named, explained, and not loaded before they are needed."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.driverkit.installation import processor_features
from penstock.drivers.openvino import OpenVinoDevice, create, installation
from penstock.drivers.openvino.installation import Installation, Plugin
from penstock.errors import (
    Cancelled,
    DeviceUnavailable,
    MissedDeadlineTransient,
    PlacementError,
)
from penstock.hal import CancelToken, ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import DType, Model, ModelBuilder
from penstock.threads import allowed_processors
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import F32
from tests.support_python_goes_on import goes_on_during


def relu(shape: tuple[int | None, ...] = (4,), dtype: DType = F32) -> Model:
    b = ModelBuilder()
    return b.build(b.operation("RELU", [b.input(dtype, shape, "x")], [(dtype, shape)]))


def absent(monkeypatch: pytest.MonkeyPatch) -> OpenVinoDevice:
    """The device of a machine without OpenVINO."""
    monkeypatch.setattr(installation, "package_folder", lambda _: None)
    installation.find_installation.cache_clear()
    try:
        (device,) = create()
    finally:
        installation.find_installation.cache_clear()
    return device


def test_without_openvino_there_is_one_device_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = absent(monkeypatch)
    assert device.name == "openvino-cpu"
    assert "openvino missing" in device.version
    assert device.check() == "OpenVINO is not installed: pip install 'penstock-nn[openvino]'"
    with pytest.raises(DeviceUnavailable, match="not installed"):
        device.prepare_model(relu(), PrepareConfig())
    with pytest.raises(DeviceUnavailable, match="not installed"):
        device.prepare_model_from_cache(PrepareConfig())
    with pytest.raises(PlacementError, match="cannot be used"):
        penstock.compile(relu(), devices=[device])


def test_what_it_supports_is_told_without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    assert absent(monkeypatch).supported_operations(relu())[0].supported


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
def test_listing_and_planning_do_not_load_the_engine() -> None:
    program = (
        "import sys, penstock\n"
        "from penstock.drivers.openvino import create\n"
        "from penstock.ir import DType, ModelBuilder\n"
        "b = ModelBuilder()\n"
        "x = b.input(DType.FLOAT32, (4,), 'x')\n"
        "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (4,))]))\n"
        "penstock.devices()\n"
        "for device in create():\n"
        "    device.version, device.check(), device.supported_operations(model)\n"
        "penstock.compile(model, devices=['reference'], cache=False).close()\n"
        "print('openvino' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] 1 True"


REFUSED: dict[str, tuple[Callable[[], Model], str]] = {
    "unknown shape": (lambda: relu((None, 3)), "known only when it runs"),
    "no elements": (lambda: relu((0, 3)), "no elements"),
    "too many dimensions": (lambda: relu((1,) * 6), "6 dimensions"),
    "another type": (lambda: relu((3,), DType.FLOAT16), "float16 to float16"),
    "no scale": (lambda: relu((3,), DType.INT8), "without a scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    make, reason = REFUSED[name]
    (answer,) = cpu().supported_operations(make())
    assert not answer.supported
    assert reason in answer.reason


@needs_openvino
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_is_refused_and_does_not_hang() -> None:
    program = (
        "import os, sys\n"
        "import numpy as np, penstock\n"
        "from penstock.drivers.openvino import create\n"
        "from penstock.ir import DType, ModelBuilder\n"
        "b = ModelBuilder()\n"
        "x = b.input(DType.FLOAT32, (4,), 'x')\n"
        "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (4,))]))\n"
        "device = create()[0]\n"
        "compiled = penstock.compile(model, devices=[device], cache=False)\n"
        "compiled(np.zeros(4, np.float32))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = 'forked' in str(device.check())\n"
        "    try:\n"
        "        penstock.compile(model, devices=[device], cache=False)\n"
        "    except penstock.errors.PlacementError as error:\n"
        "        ok = ok and 'forked' in str(error)\n"
        "    os._exit(0 if ok else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["0"]


@needs_openvino
def test_it_computes_over_the_callers_memory() -> None:
    with penstock.compile(relu((64,)), devices=[cpu()], cache=False) as compiled:
        given = np.linspace(-1, 1, 64, dtype=np.float32)
        out = np.empty(64, np.float32)
        outputs = compiled.run([given], out=[out])
        assert np.array_equal(out, np.maximum(given, 0))
        assert outputs.receipt.copies == ()


@needs_openvino
def test_it_keeps_nothing_of_the_callers_memory() -> None:
    device = cpu()
    prepared = device.prepare_model(relu((1000,)), PrepareConfig())
    given, out = np.zeros(1000, np.float32), np.empty(1000, np.float32)
    request = Request((HostMemory(given),), (HostMemory(out),))
    prepared.execute(request, ExecutionConfig())
    watched = [weakref.ref(given), weakref.ref(out)]
    del given, out, request
    gc.collect()
    assert [each() for each in watched] == [None, None]


@needs_openvino
def test_a_run_that_is_cancelled_or_late_ends_and_the_next_is_right() -> None:
    """The network takes seconds on one thread."""
    b = ModelBuilder()
    x = b.input(F32, (1500, 1500), "x")
    y = x
    for _ in range(40):
        (y,) = b.operation("BATCH_MATMUL", [y, x], [(F32, (1500, 1500))])
    prepared = cpu().prepare_model(b.build([y]), PrepareConfig(num_threads=1))
    given, out = np.zeros((1500, 1500), np.float32), np.ones((1500, 1500), np.float32)
    request = Request((HostMemory(given),), (HostMemory(out),))
    began = time.monotonic_ns()
    with pytest.raises(MissedDeadlineTransient):
        prepared.execute(request, ExecutionConfig(deadline_ns=began + 20_000_000))
    token = CancelToken()
    threading.Timer(0.02, token.set).start()
    with pytest.raises(Cancelled):
        prepared.execute(request, ExecutionConfig(cancel=token))
    out.fill(1)
    time.sleep(0.01)
    assert out.all()


@needs_openvino
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_told_how_many_threads_to_take(threads: int) -> None:
    prepared = cpu().prepare_model(relu(), PrepareConfig(num_threads=threads))
    found = prepared.executable.compiled  # type: ignore[attr-defined]  # its own
    told = [found.get_property(name) for name in ("INFERENCE_NUM_THREADS", "NUM_STREAMS")]
    assert told == [min(threads, allowed_processors()), 1]


@needs_openvino
def test_python_goes_on_while_it_computes() -> None:
    b = ModelBuilder()
    x = b.input(F32, (600, 600), "x")
    y = x
    for _ in range(2):
        (y,) = b.operation("BATCH_MATMUL", [y, x], [(F32, (600, 600))])
    prepared = cpu().prepare_model(b.build([y]), PrepareConfig(num_threads=1))
    given, out = np.zeros((600, 600), np.float32), np.empty((600, 600), np.float32)
    request = Request((HostMemory(given),), (HostMemory(out),))
    assert goes_on_during(lambda: prepared.execute(request, ExecutionConfig()))


def test_what_the_position_of_a_maximum_depends_on_is_relaxed() -> None:
    """Float32 rounding would move whole values there."""
    b = ModelBuilder()
    shape = (1, 4, 4, 2)
    (x,) = b.operation("RELU", [b.input(F32, shape, "x")], [(F32, shape)])
    pooled, positions = b.operation(
        "CUSTOM", [x], [(F32, (1, 2, 2, 2)), (F32, (1, 2, 2, 2))],
        {"custom_code": "MaxPoolingWithArgmax2D", "custom_options": struct.pack("<5i", 1, 2, 2, 2, 2)},
    )  # fmt: skip
    (y,) = b.operation("RELU", [pooled], [(F32, (1, 2, 2, 2))])
    answers = cpu().supported_operations(b.build([y, positions]))
    assert [a.accuracy for a in answers if a.supported] == ["relaxed", "faithful"]
