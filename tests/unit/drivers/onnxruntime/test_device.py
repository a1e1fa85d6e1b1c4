"""What the ONNX Runtime devices alone promise; tests/unit/driverkit has what every engine's do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from penstock import errors, hal
from penstock.driverkit.installation import processor_features
from penstock.drivers.onnxruntime import OnnxRuntimeDevice, installation
from penstock.drivers.onnxruntime.installation import Installation, providers_in
from penstock.drivers.onnxruntime.rules import rule
from penstock.ir import DType, ModelBuilder
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import F32
from tests.support_programs import run_python
from tests.unit.driverkit.engines import ONNXRUNTIME, relu

TELEMETRY = "ORT_DISABLE_TELEMETRY"
HOMES = (
    "HOME",
    "USERPROFILE",
    "XDG_CACHE_HOME",
    "LOCALAPPDATA",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
)
"""Variables that say where a user's files are."""


@needs_onnxruntime
@pytest.mark.parametrize("dtype", [F32, DType.INT16])
def test_a_model_without_operations_hands_its_input_on(dtype: DType) -> None:
    b = ModelBuilder()
    model = b.build([b.input(dtype, (4,), "x")])
    given, got = np.arange(4, dtype=dtype.numpy), np.zeros(4, dtype.numpy)
    prepared = cpu().prepare_model(model, hal.PrepareConfig())
    for measure in (False, True):
        got[:] = 0
        prepared.execute(
            hal.Request((hal.HostMemory(given),), (hal.HostMemory(got),)),
            hal.ExecutionConfig(measure=measure),
        )
        assert got.tolist() == [0, 1, 2, 3]


@needs_onnxruntime
def test_missing_onnx_package_is_the_reason_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with ONNXRUNTIME.without("onnx", monkeypatch) as device:
        reason = device.check()
    assert reason == "the package onnx is not installed: pip install 'penstock-nn[onnxruntime]'"


@pytest.mark.parametrize(
    ("file", "package", "platform", "name", "kind", "families"),
    [
        ("libonnxruntime_providers_cuda.so", "onnxruntime-gpu", "linux", "cuda", hal.DeviceType.GPU,
            ("cuda",)),
        ("onnxruntime_providers_openvino.dll", "", "win32", "openvino", hal.DeviceType.ACCELERATOR,
            ("openvino",)),
        ("", "onnxruntime-qnn", "win32", "qnn", hal.DeviceType.ACCELERATOR, ("hexagon", "qnn")),
        ("", "onnxruntime-directml", "win32", "directml", hal.DeviceType.GPU, ("directml",)),
        ("", "onnxruntime", "darwin", "coreml", hal.DeviceType.ACCELERATOR,
            ("coreml", "neural_engine")),
    ],
)  # fmt: skip
def test_each_provider_of_a_build_is_a_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    package: str,
    platform: str,
    name: str,
    kind: hal.DeviceType,
    families: tuple[str, ...],
) -> None:
    monkeypatch.setattr("penstock.drivers.onnxruntime.installation.sys.platform", platform)
    if file:
        (tmp_path / file).touch()
    (provider,) = providers_in(tmp_path, package)
    device = OnnxRuntimeDevice(provider, Installation("1", (provider,)))
    assert (device.name, device.type) == (f"onnxruntime-{name}", kind)
    assert device.capabilities.families == families
    assert device.capabilities.only_when_named
    assert device.cache_files_needed() == (0, 0)
    assert [a.accuracy for a in device.supported_operations(relu())] == ["relaxed"]


def test_a_plain_build_has_the_processor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.drivers.onnxruntime.installation.sys.platform", "linux")
    assert providers_in(tmp_path, "onnxruntime") == []


@needs_onnxruntime
def test_a_provider_that_the_build_lacks_after_all_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "libonnxruntime_providers_cuda.so").touch()
    (provider,) = providers_in(tmp_path, "onnxruntime-gpu")[:1]
    device = OnnxRuntimeDevice(provider, Installation("1", (provider,)))
    with pytest.raises(errors.DeviceUnavailable, match="no CUDAExecutionProvider"):
        device.prepare_model(relu(), hal.PrepareConfig(accuracy="relaxed"))


@needs_onnxruntime
def test_the_version_names_engine_provider_and_processor() -> None:
    import importlib.metadata

    version = cpu().version
    assert f"onnxruntime {importlib.metadata.version('onnxruntime')} " in version
    assert "; CPUExecutionProvider; " in version
    assert processor_features() in version


def test_another_library_makes_another_version(tmp_path: Path) -> None:
    digests = []
    for content in (b"one", b"two2"):
        (tmp_path / "libonnxruntime.so.1").write_bytes(content)
        digests.append(installation._digest(tmp_path, ""))
    assert digests[0] != digests[1]


def test_the_record_of_an_installation_elsewhere_hides_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries, other = tmp_path / "onnxruntime" / "capi", tmp_path / "elsewhere"
    libraries.mkdir(parents=True)
    (libraries / "build_and_package_info.py").write_text("__version__ = '1.31'\n")
    records = other / "onnxruntime-1.31.dist-info"
    records.mkdir(parents=True)
    (records / "METADATA").write_text("Name: onnxruntime\nVersion: 1.31\n")
    (records / "RECORD").write_text("onnxruntime/capi/libonnxruntime.so.1,sha256=a,3\n")
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.setattr(installation, "package_folder", lambda package: tmp_path / package)
    digests = []
    for content in (b"one", b"two2"):
        (libraries / "libonnxruntime.so.1").write_bytes(content)
        digests.append(installation.find_installation.__wrapped__().digest)
    assert digests[0] != digests[1]


@needs_onnxruntime
@pytest.mark.parametrize("imported", [False, True])
def test_telemetry_and_log_are_off_unless_the_program_came_first(imported: bool) -> None:
    program = (
        "calls = []\n"
        f"if {imported}:\n"
        "    import onnxruntime\n"
        "import importlib\n"
        "real = importlib.import_module\n"
        "def watched(name, *rest):\n"
        "    package = real(name, *rest)\n"
        "    if name == 'onnxruntime':\n"
        "        package.disable_telemetry_events = lambda: calls.append('telemetry')\n"
        "        package.set_default_logger_severity = lambda level: calls.append(f'log {level}')\n"
        "    return package\n"
        "importlib.import_module = watched\n"
        "from penstock.drivers.onnxruntime import engine\n"
        "engine.onnxruntime()\n"
        "print(calls)\n"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.strip() == ("[]" if imported else "['log 4', 'telemetry']")
    assert done.stderr == ""


def test_whole_numbers_are_divided_by_what_is_known_not_to_stop_the_process() -> None:
    for divisor in (0, -1, None):
        b = ModelBuilder()
        x = b.input(DType.INT32, (3,), "x")
        known = b.constant(np.array([divisor, 2, 3], np.int32)) if divisor is not None else x
        model = b.build(b.operation("DIV", [x, known], [(DType.INT32, (3,))]))
        (answer,) = cpu().supported_operations(model)
        assert not answer.supported
        assert "whole numbers" in answer.reason


def test_more_constants_than_onnx_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ModelBuilder()
    x = b.input(F32, (1, 64), "x")
    weights = b.constant(np.ones((64, 64), np.float32))
    model = b.build(b.operation("FULLY_CONNECTED", [x, weights, None], [(F32, (1, 64))]))
    monkeypatch.setattr(rule, "MAX_BYTES", rule.ROOM + 16_000)
    (answer,) = cpu().supported_operations(model)
    assert not answer.supported
    assert answer.reason == (
        f"16384 bytes of constants; an ONNX model holds less than {rule.ROOM + 16_000}"
    )


@needs_onnxruntime
@pytest.mark.parametrize("said", [None, "0"])
def test_onnxruntime_writes_no_user_file_and_sends_no_telemetry(
    said: str | None, tmp_path: Path
) -> None:
    """ONNX Runtime 1.31 would open a database of what it is to report in the user's cache
    directory.
    """
    program = (
        "import os, sys\n"
        "import numpy as np, penstock\n"
        "from penstock.drivers.onnxruntime import create\n"
        "from penstock.ir import DType, ModelBuilder\n"
        "b = ModelBuilder()\n"
        "x = b.input(DType.FLOAT32, (4,), 'x')\n"
        "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (4,))]))\n"
        "before = os.environ.copy()\n"
        "with penstock.compile(model, devices=[create()[0]], cache=False) as compiled:\n"
        "    compiled(np.zeros(4, np.float32))\n"
        "    assert 'onnxruntime' in sys.modules\n"
        "    if os.path.isdir('/proc/self/fd'):\n"
        "        for name in os.listdir('/proc/self/fd'):\n"
        "            path = f'/proc/self/fd/{name}'\n"
        "            if os.path.lexists(path) and 'onnxruntime' in os.readlink(path):\n"
        "                print(os.readlink(path))\n"
        "print(before == os.environ.copy())\n"
    )
    given = {k: v for k, v in os.environ.items() if k != TELEMETRY}
    given |= dict.fromkeys(HOMES, str(tmp_path)) | ({} if said is None else {TELEMETRY: said})
    done = run_python("-W", "ignore", "-c", program, check=True, env=given)
    assert done.stdout.split("\n") == ["True", ""]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@needs_onnxruntime
@pytest.mark.parametrize("threads", [1, 3])
def test_session_gets_the_number_of_threads(threads: int) -> None:
    prepared = cpu().prepare_model(relu(), hal.PrepareConfig(num_threads=threads))
    # Its own.
    options = prepared.executable.session.get_session_options()  # type: ignore[attr-defined]
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, 1)


@needs_onnxruntime
def test_outputs_that_are_inputs_constants_or_one_another() -> None:
    b = ModelBuilder()
    x = b.input(F32, (3,), "x")
    (y,) = b.operation("NEG", [x], [(F32, (3,))])
    (shape,) = b.operation("SHAPE", [x], [(DType.INT32, (1,))], {"out_type": "INT32"})
    (same,) = b.operation("RESHAPE", [y, b.constant(np.array([3], np.int32))], [(F32, (3,))])
    prepared = cpu().prepare_model(b.build([x, y, shape, same]), hal.PrepareConfig())
    given = np.array([1, 2, 3], np.float32)
    outs = [
        np.empty(3, np.float32),
        np.empty(3, np.float32),
        np.empty(1, np.int32),
        np.empty(3, np.float32),
    ]
    prepared.execute(
        hal.Request((hal.HostMemory(given),), tuple(map(hal.HostMemory, outs))),
        hal.ExecutionConfig(),
    )
    assert [o.tolist() for o in outs] == [[1, 2, 3], [-1, -2, -3], [3], [-1, -2, -3]]


@needs_onnxruntime
def test_refusal_has_the_words_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.drivers.onnxruntime.preparation.written", lambda *_: b"no model")
    with pytest.raises(errors.GeneralFailure, match=r"did not take the model: .*rotobuf"):
        cpu().prepare_model(relu(), hal.PrepareConfig())
