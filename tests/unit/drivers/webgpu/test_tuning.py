"""Staged compilation: the shapes of threads are measured between runs, and kept in the cache."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import knobs
from penstock.drivers.webgpu import WebGpuDevice, staging
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.emit.form import DEFAULT, Shape
from penstock.drivers.webgpu.emit.sketch import decoded, encoded, reshaped
from penstock.drivers.webgpu.turns import Turns
from penstock.errors import GeneralFailure
from penstock.ir import DType, Model, ModelBuilder, Quantization
from tests.support_programs import run_python
from tests.support_webgpu import manifest_of, needs_webgpu, run_manifest, software
from tests.unit.drivers.webgpu.test_device import image, network, wanted
from tests.unit.drivers.webgpu.test_tile import LAYERS, layer

BEST = Shape(4, 2, 256)
WAIT_S = 300.0
MODEL = network(quantised=True)


def large_layer() -> Model:
    """A convolution with enough work to be measured."""
    builder, rng = ModelBuilder(), np.random.default_rng(4)
    scale, shape = Quantization((0.1,), (-3,)), (1, 16, 16, 32)
    x = builder.input(DType.INT8, shape, "x", quantization=scale)
    weights = rng.integers(-127, 128, (32, 3, 3, 32)).astype(np.int8)
    filters = builder.constant(weights, "w", Quantization((0.02,), (0,)))
    options: dict[str, str | int] = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
    (y,) = builder.operation("CONV_2D", [x, filters, None], [(DType.INT8, shape, scale)], options)
    return builder.build([y])


def measurement_ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "penstock-webgpu-tuning":
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Manifest]:
    """The models that were measured. Every kernel is fastest in `BEST`."""
    from penstock.drivers.webgpu import tuning

    found: list[Manifest] = []

    def times(_bench: object, trial: Manifest, _cancel: object) -> list[float]:
        found.append(trial)
        return [1.0 if call.threads == BEST.threads else 2.0 for call in trial.calls]

    monkeypatch.setattr(staging, "LEAST_NS", 0)
    monkeypatch.setattr(tuning, "SHAPES", (DEFAULT, BEST))
    monkeypatch.setattr(tuning, "PAUSE", 0.0)
    monkeypatch.setattr(tuning, "_verdicts", {})
    monkeypatch.setattr(tuning, "_times", times)
    return found


@pytest.fixture
def device() -> WebGpuDevice:
    found = software()
    found.uses = 2
    return found


def started(device: WebGpuDevice, cache: Path | None, runs: int = 4) -> list[str]:
    """What the cache says of a start, and after its last run. Every answer is right."""
    with penstock.compile(MODEL, devices=[device], cache=cache) as compiled:
        said = [str(compiled.receipt.steps[0].cache)]
        for _ in range(runs):
            assert np.array_equal(compiled.run([image(MODEL)])[0], wanted(MODEL))
            measurement_ended()
        return [*said, str(compiled.receipt.steps[0].cache)]


@needs_webgpu
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv of words", Shape(8, 1)),
        ("conv to channels of a part", Shape(2, 4)),
        ("conv in rows", Shape(4, 2, 256)),
        ("conv in rows", Shape(1, 1)),
        ("depthwise", Shape(2, 2)),
        ("dense, several rows", Shape(1, 4)),
        ("conv in rows, of floats", Shape(8, 1, 128)),
    ],
)
def test_results_are_the_same_bits_in_every_shape(name: str, shape: Shape) -> None:
    operation, dtype, size, filters, options, _ = LAYERS[name]
    program = layer(operation, dtype, size, filters, **options)
    rng = np.random.default_rng(3)
    if dtype is DType.FLOAT32:
        given = rng.normal(0, 1, size).astype(np.float32)
    else:
        given = rng.integers(0, 120, size).astype(dtype.numpy)
    manifest, constants = manifest_of(program)
    drawings = decoded(manifest.sketch, len(manifest.calls))
    made = reshaped(manifest, drawings, dict.fromkeys(range(len(drawings)), shape))
    other = replace(manifest, shaders=made.shaders, calls=made.calls, numbers=made.numbers)
    assert other.shaders != manifest.shaders
    (before,) = run_manifest(program, manifest, constants, [given])
    (after,) = run_manifest(program, other, constants, [given])
    assert before.tobytes() == after.tobytes()


def test_kernels_are_printed_anew_from_what_the_entry_keeps_of_them() -> None:
    manifest, _ = manifest_of(layer(*LAYERS["conv in rows"][:4]))
    drawings = decoded(manifest.sketch, len(manifest.calls))
    made = reshaped(manifest, drawings, dict.fromkeys(range(len(drawings)), DEFAULT))
    assert (made.shaders, made.calls) == (manifest.shaders, manifest.calls)
    assert decoded(encoded(drawings), len(manifest.calls)) == drawings


@pytest.mark.parametrize("content", [b"\x91", b"\x91\x91\x01"])
def test_drawings_that_nobody_writes_are_refused(content: bytes) -> None:
    with pytest.raises(GeneralFailure, match="drawings"):
        decoded(content, 1)


def test_drawings_of_kernels_that_a_model_lacks_are_refused() -> None:
    manifest, _ = manifest_of(layer(*LAYERS["dense"][:4]))
    with pytest.raises(GeneralFailure, match="does not have"):
        decoded(manifest.sketch, 0)


@needs_webgpu
def test_first_runs_and_runs_without_a_cache_measure_nothing(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest]
) -> None:
    started(device, tmp_path, runs=1)
    started(device, None)
    assert not trials


@needs_webgpu
def test_a_model_is_measured_once_and_later_starts_load_its_fastest_shapes(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest]
) -> None:
    started(device, tmp_path)
    assert {call.threads for trial in trials for call in trial.calls} == {64, 256}
    trials.clear()
    assert started(software(), tmp_path) == ["hit: tuned shapes"] * 2
    assert not trials


@needs_webgpu
def test_form_from_the_cache_is_measured(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest]
) -> None:
    assert started(device, tmp_path, runs=1)[0].startswith("miss")
    assert started(device, tmp_path)[0] == "hit: default shapes"
    assert trials
    assert started(device, tmp_path)[0] == "hit: tuned shapes"


@needs_webgpu
def test_another_adapter_or_driver_measures_anew(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.drivers.webgpu import engine

    started(device, tmp_path)
    trials.clear()
    monkeypatch.setattr(engine.opened(device.name), "adapter", "the same with a later driver")
    started(device, tmp_path)
    assert trials
    trials.clear()
    started(device, tmp_path)
    assert not trials


@needs_webgpu
def test_equal_kernels_of_two_models_are_measured_once(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest]
) -> None:
    started(device, tmp_path / "one")
    trials.clear()
    started(device, tmp_path / "other")
    assert not trials
    assert started(device, tmp_path / "other") == ["hit: tuned shapes"] * 2


@needs_webgpu
def test_kernels_stay_as_they_are_where_no_shape_is_faster(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.drivers.webgpu import tuning

    monkeypatch.setattr(tuning, "_times", lambda _b, trial, _c: [3.0] * len(trial.calls))
    started(device, tmp_path)
    assert started(device, tmp_path) == ["hit: tuned shapes"] * 2
    assert not trials


@needs_webgpu
def test_setting_prevents_that_models_are_measured(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest]
) -> None:
    with knobs.override(driver_settings="webgpu_tuning=never"):
        started(device, tmp_path)
    assert not trials


@needs_webgpu
def test_a_device_that_is_lost_during_a_measurement_leaves_the_default_shapes(
    tmp_path: Path, device: WebGpuDevice, trials: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.drivers.webgpu import tuning

    def times(bench: tuning.Bench, trial: Manifest, _cancel: object) -> list[float]:
        trials.append(trial)
        bench.lose("a test")

    monkeypatch.setattr(tuning, "_times", times)
    started(device, tmp_path)
    assert len(trials) == 1


@needs_webgpu
def test_a_real_measurement_changes_no_answer(
    tmp_path: Path, device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LEAST_NS", 0)
    started(device, tmp_path)
    assert started(device, tmp_path) == ["hit: tuned shapes"] * 2


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
def test_a_host_process_measures_a_model_between_the_runs_of_its_client(tmp_path: Path) -> None:
    code = (
        "import sys, time, numpy as np, penstock\n"
        "from tests.unit.drivers.webgpu.test_tuning import large_layer\n"
        "model, end = large_layer(), time.monotonic() + 120\n"
        "image = np.ones(model.inputs[0].shape, np.int8)\n"
        "results, said = set(), ''\n"
        "def compiled():\n"
        "    return penstock.compile(model, devices=['webgpu-software'], cache=sys.argv[1])\n"
        "with compiled() as first:\n"
        "    while 'tuned shapes' not in said and time.monotonic() < end:\n"
        "        for _ in range(20):\n"
        "            results.add(first.run([image])[0].tobytes())\n"
        "            time.sleep(0.05)\n"
        "        with compiled() as other:\n"
        "            said = str(other.receipt.steps[0].cache)\n"
        "print(said, len(results))\n"
    )
    printed = run_python("-c", code, str(tmp_path), check=True).stdout
    assert printed.strip() == "hit: tuned shapes 1"


def test_a_measurement_waits_for_runs_and_runs_wait_for_it() -> None:
    turns, order, inside = Turns(), list[str](), threading.Event()

    def measure() -> None:
        inside.set()
        with turns.alone():
            order.append("measured")

    def run() -> None:
        with turns.run():
            order.append("run")

    with turns.run(), turns.run():
        measurement = threading.Thread(target=measure)
        measurement.start()
        inside.wait(WAIT_S)
        while not turns._is_wanted:  # nothing else tells that it waits
            pass
        later = threading.Thread(target=run)
        later.start()
        later.join(0.05)
        assert order == []
    for thread in (measurement, later):
        thread.join(WAIT_S)
    assert order == ["measured", "run"]
