"""Calibration: the models that are timed, the costs found, and how they are kept and used."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import penstock
from penstock import hal
from penstock.cache import Cache
from penstock.cache.naming import CALIBRATIONS
from penstock.cli.application import app
from penstock.export import tflite
from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning.costs import TYPICAL, EngineCosts, Features, cell_of
from penstock.partitioning.placement import place
from penstock.runtime.calibration import calibrating, samples, tables, timing
from penstock.runtime.calibration.samples import EDGE, NETWORK, STEP, TINY, Sample
from penstock.runtime.discovery import manager
from tests.support_devices import NumpyDevice, NumpyPrepared
from tests.support_webgpu import needs_webgpu

EVERY: Final = {sample.name: sample for sample in samples.samples()}


@pytest.mark.parametrize(
    "kind", sorted({s.cell.rpartition(" ")[0] or s.cell for s in EVERY.values()})
)
def test_operations_of_a_sample_belong_to_its_cell(kind: str) -> None:
    """The first and the last size of each kind and element type."""
    own = [s for s in EVERY.values() if kind in {s.cell, s.cell.rpartition(" ")[0]}]
    of_each = {s.cell: s for s in own} | {f"{s.cell} first": s for s in reversed(own)}
    for sample in of_each.values():
        model = sample.make()
        cells = {cell_of(model.entry, operation) for operation in model.operations}
        if kind in {STEP, EDGE}:
            assert len(cells) == 1
        elif kind in {NETWORK, TINY}:
            assert len(cells) >= 4
        else:
            assert cells == {sample.cell}


def test_every_device_of_penstock_has_a_shipped_table_for_one_and_two_threads() -> None:
    every = tables.shipped_tables()
    assert set(every) == {tables.DOT_PRODUCTS, tables.NO_DOT_PRODUCTS}
    names = ("llvm", "xnnpack", "onnxruntime-cpu", "openvino-cpu", "reference")
    for found, name in itertools.product(every.values(), names):
        by_threads = found[f"{name} {tables.ANY_CLASS}"]
        assert set(by_threads) == {"1", "2"}
        for table in by_threads.values():
            assert table.step_ns > 0
            assert table.cells["ADD float32"][0] >= 0
            assert all(ns >= 0 for cell in table.cells.values() for ns in cell)
            assert all(factor >= 0 for factor in table.together.values())


def small() -> list[Sample]:
    names = (
        f"{STEP} 16",
        f"{EDGE} 1 28x28x64x3x1",
        f"{EDGE} 4 28x28x64x3x1",
        "ADD float32 1x8x8x32",
        "RELU float32 1x4x4x16",
    )
    return [EVERY[name] for name in names]


def test_samples_end_with_the_processor_time_and_refused_ones_are_left_out() -> None:
    device = NumpyDevice("adding", frozenset({"ADD"}))
    assert timing.time_samples(device, small(), "relaxed", 1, seconds=0.0) == []
    paused: list[None] = []
    found = timing.time_samples(
        device, small(), "relaxed", 1, seconds=60.0, pause=lambda: paused.append(None)
    )
    assert [timing.cell for timing in found] == ["ADD float32"]
    assert len(paused) == 1
    assert found[0].ns > 0
    assert len(found[0].parts) == samples.CHAIN


class Sleeping(NumpyDevice):
    """A device whose runs take 5 ms in which this process does not work."""

    def __init__(self, kind: hal.DeviceType) -> None:
        super().__init__("sleeper", frozenset({"ADD", "RELU"}))
        self.type = kind

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        prepared = super().prepare_model(model, config)
        execute = prepared.execute

        def slowly(request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
            time.sleep(0.005)
            return execute(request, config)

        prepared.execute = slowly  # type: ignore[method-assign]
        return prepared


def test_work_beside_the_processor_is_timed_by_the_clock_on_the_wall() -> None:
    for kind, waits in ((hal.DeviceType.GPU, True), (hal.DeviceType.CPU, False)):
        device = Sleeping(kind)
        assert timing.works_here(device) is not waits
        found = timing.time_samples(device, small()[3:], "relaxed", 1, seconds=60.0)
        assert [each.ns >= 5e6 for each in found] == [waits, waits]


def test_work_in_a_host_process_is_timed_by_the_clock_on_the_wall() -> None:
    device = NumpyDevice("reference")
    assert timing.works_here(device)
    device.isolated = True  # type: ignore[attr-defined]
    assert not timing.works_here(device)


def test_seconds_of_a_device_beside_the_processor_are_of_the_wall_without_pauses() -> None:
    device, paused = Sleeping(hal.DeviceType.GPU), list[None]()

    def pause() -> None:
        paused.append(None)
        time.sleep(0.5)

    found = timing.time_samples(device, small()[3:] * 50, "relaxed", 1, seconds=0.4, pause=pause)
    assert 1 < len(found) < 20
    assert len(paused) == len(found)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples of few runs."""
    monkeypatch.setattr(calibrating, "samples", small)
    monkeypatch.setattr(timing, "BATCHES", 1)
    monkeypatch.setattr(timing, "BATCH_NS", 1)


@pytest.mark.usefixtures("quick")
def test_measured_costs_are_kept_sealed_and_used(tmp_path: Path) -> None:
    device = NumpyDevice("numbers", frozenset({"ADD", "RELU"}))
    assert tables.costs_for([device], "faithful", 1, str(tmp_path)) == {}
    done = calibrating.calibrate(device, str(tmp_path), seconds=60.0)
    assert (done.device, done.samples, done.not_kept) == ("numbers", 3, "")
    assert done.costs is not None
    known = tables.costs_for([device], "faithful", 1, str(tmp_path))
    assert known == {"numbers": done.costs}
    assert known["numbers"].source == tables.MEASURED_SOURCE
    assert tables.costs_for([device], "stepwise", 1, str(tmp_path)) == known
    for other in (("relaxed", 1), ("faithful", 2)):
        assert tables.costs_for([device], *other, str(tmp_path)) == {}
    (file,) = (tmp_path / CALIBRATIONS).iterdir()
    file.write_bytes(file.read_bytes().replace(b'"step_ns":', b'"step_ns":1'))
    assert tables.costs_for([device], "faithful", 1, str(tmp_path)) == {}
    Cache(tmp_path).clear()
    assert not list((tmp_path / CALIBRATIONS).iterdir())


def test_shipped_costs_are_only_for_the_devices_of_penstock() -> None:
    (own,) = manager.choose(["reference"])
    assert tables.shipped_costs(own, "stepwise", 1) is not None
    assert tables.shipped_costs(NumpyDevice("reference"), "stepwise", 1) is None
    nearest = tables.shipped_costs(own, "stepwise", 64)
    assert nearest == tables.shipped_costs(own, "stepwise", 2)


@pytest.mark.parametrize(
    ("features", "sort"),
    [
        ("avx2 fma", tables.NO_DOT_PRODUCTS),
        ("avx avx2 avx_vnni fma", tables.DOT_PRODUCTS),
        ("avx2 avx512_vnni avx512f", tables.DOT_PRODUCTS),
        ("asimd asimddp", tables.DOT_PRODUCTS),
        ("asimd", tables.NO_DOT_PRODUCTS),
        ("baseline", tables.NO_DOT_PRODUCTS),
    ],
)
def test_shipped_costs_are_those_of_a_processor_of_the_same_sort(
    features: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "processor_features", lambda: features)
    (own,) = manager.choose(["llvm"])
    expected = tables.shipped_tables()[sort][f"llvm {tables.ANY_CLASS}"]["1"].costs
    assert tables.shipped_costs(own, "stepwise", 1) == expected


def software_of_webgpu() -> hal.Device:
    device = manager.by_name("webgpu-software", isolate=False)
    assert device is not None
    return device


@needs_webgpu
def test_a_device_with_tables_of_one_sort_of_processor_has_these_on_every_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = software_of_webgpu()
    found = []
    for sort in (tables.DOT_PRODUCTS, tables.NO_DOT_PRODUCTS):
        monkeypatch.setattr(tables, "sort_of_processor", lambda sort=sort: sort)
        found.append(tables.shipped_costs(own, "stepwise", 2))
    assert found[0] is not None
    assert found[0] == found[1]


@needs_webgpu
def test_named_software_of_webgpu_gets_what_it_is_measured_to_be_better_at() -> None:
    """It declares the same for all operations. Measured costs decide, also the first ones."""
    software = software_of_webgpu()
    (compiler,) = manager.choose(["llvm"])
    model = EVERY["CONV_2D 1x1 int8 28x28x32x96x1x1"].make()
    shipped = tables.costs_for([software, compiler], "faithful", 1, None)
    assert set(shipped) == {"webgpu-software", "llvm"}
    for pace, device in ((1.0, "llvm"), (1e-3, "webgpu-software")):
        costs = {**shipped, "webgpu-software": shipped["webgpu-software"].at_pace(pace)}
        plan = place(model, [software, compiler], costs=costs)
        assert {operation.device for operation in plan.operations} == {device}


def test_shipped_costs_follow_the_pace_of_the_devices_measured_here(tmp_path: Path) -> None:
    slow, other = manager.choose(["xnnpack", "reference"])
    shipped = {d.name: tables.shipped_costs(d, "stepwise", 1) for d in (slow, other)}
    before, unknown = shipped["xnnpack"], shipped["reference"]
    assert before is not None
    assert unknown is not None
    four_times = replace(before.at_pace(4.0), source=tables.MEASURED_SOURCE)
    assert tables.keep(str(tmp_path), slow, "stepwise", 1, 9, four_times) == ""
    known = tables.costs_for([slow, other], "faithful", 1, str(tmp_path))
    assert known["xnnpack"] == four_times
    for cell in unknown.cells:
        assert known["reference"].of(cell, TYPICAL) == pytest.approx(
            4 * (unknown.of(cell, TYPICAL) or 0)
        )
    assert known["reference"].step_ns == pytest.approx(4 * unknown.step_ns)
    assert known["reference"].source == unknown.source
    alone = tables.costs_for([other], "faithful", 1, str(tmp_path))
    assert alone["reference"] == unknown


def test_pace_is_that_of_the_middle_cell() -> None:
    cells: dict[str, Features] = {f"{k} float32": (1.0, 0.0, 0.0, 0.0) for k in ("A", "B", "C")}
    one = EngineCosts(cells, {}, {}, 0.0, 0.0, 1.5, "shipped")
    other = replace(one, cells={**one.at_pace(3.0).cells, "A float32": (90.0, 0.0, 0.0, 0.0)})
    assert other.pace_over(one) == 3.0
    assert one.pace_over(replace(one, cells={})) is None


def test_wanted_cells_are_measured_first_and_networks_last() -> None:
    order = calibrating.in_order(samples.samples(), {"SOFTMAX int8"})
    cells = [sample.cell for sample in order]
    early = [cell for cell in cells if cell in calibrating.EARLY]
    first = [cell for cell in cells[: len(early) + 9] if cell != STEP]
    assert first == [*[EDGE] * 6, *early, "SOFTMAX int8"]
    assert cells.count(STEP) == len(samples.STEPS)
    assert cells[-1].startswith(NETWORK)
    assert len(order) == len(EVERY)


def relu(path: Path) -> Path:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (1, 4), "x")
    model: Model = net.build(net.operation("RELU", [x], [(DType.FLOAT32, (1, 4))]))
    path.write_bytes(tflite.write(model))
    return path


@pytest.mark.usefixtures("quick")
def test_a_kept_plan_is_made_again_when_the_machine_was_measured(tmp_path: Path) -> None:
    path, cache = relu(tmp_path / "relu.tflite"), tmp_path / "cache"

    def outcome() -> str:
        with penstock.compile(path, devices=["reference"], cache=cache, num_threads=1) as compiled:
            assert compiled.receipt.plan is not None
            return f"{compiled.receipt.plan.outcome} {compiled.receipt.plan.reason}".strip()

    assert outcome().startswith("miss")
    assert outcome() == "hit"
    (device,) = manager.choose(["reference"])
    calibrating.calibrate(device, str(cache), seconds=60.0)
    assert outcome() == "miss IngredientChanged: the measured costs of operations are others"
    assert outcome() == "hit"


@pytest.mark.usefixtures("quick")
def test_command_measures_and_keeps(tmp_path: Path) -> None:
    words = ["--device", "reference", "--dir", str(tmp_path), "--threads", "1"]
    done = CliRunner().invoke(app, ["--json", "calibrate", *words])
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)["devices"]
    assert (row["device"], row["samples"], row["not_kept"]) == ("reference", 5, "")
    assert row["costs"]["source"] == tables.MEASURED_SOURCE
