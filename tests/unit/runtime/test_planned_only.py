"""A second start of a network with unknown dimensions: its plan is read, and no driver prepares it
until memory of a device needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.drivers.sample import SampleDevice
from penstock.errors import ClosedError, GeneralFailure
from penstock.execution import CompiledModel
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from penstock.memory import InputRole, allocate

DEVICES = ["sample"]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, ...]]:
    """The shape of the first input of each model that the device prepares, or loads."""
    shapes: list[tuple[int | None, ...]] = []
    compile_, load = SampleDevice.prepare_model, SampleDevice.prepare_model_from_cache

    def compiling(self: SampleDevice, model: Any, config: hal.PrepareConfig) -> hal.PreparedModel:
        shapes.append(model.inputs[0].shape)
        return compile_(self, model, config)

    def loading(self: SampleDevice, config: hal.PrepareConfig) -> hal.PreparedModel:
        made = load(self, config)
        shapes.append(())
        return made

    monkeypatch.setattr(SampleDevice, "prepare_model", compiling)
    monkeypatch.setattr(SampleDevice, "prepare_model_from_cache", loading)
    return shapes


@pytest.fixture
def restart(tmp_path: Path) -> Callable[..., CompiledModel]:
    """Compiles a network of open batch, whose plan and shape of three rows are in the cache."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 4), "x")
    made = builder.operation("RELU", [x], [(DType.FLOAT32, (None, 4))])
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite.write(builder.build(made)))

    def start(**arguments: Any) -> CompiledModel:
        return penstock.compile(path, devices=DEVICES, cache=tmp_path / "c", **arguments)

    with start() as first:
        first(np.ones((3, 4), np.float32))
    return start


def test_a_second_start_prepares_the_shapes_of_its_runs_alone(
    restart: Callable[..., CompiledModel], prepared: list[tuple[int | None, ...]]
) -> None:
    with restart() as second:
        assert prepared == []
        outputs = second(np.full((3, 4), -1, np.float32))
        assert len(prepared) == 1
        second(np.full((2, 4), -1, np.float32))
    assert np.array_equal(outputs[0], np.zeros((3, 4)))
    assert prepared[1:] == [(2, 4)]


def test_receipt_of_a_second_start_says_that_no_step_was_prepared(
    restart: Callable[..., CompiledModel],
) -> None:
    with restart() as second:
        (step,) = second.receipt.steps
        assert (step.device, step.operations, step.cache.outcome) == ("sample", (0,), "off")
        assert step.cache.reason.startswith("not prepared")
        assert (second.receipt.compiles, str(second.receipt.plan)) == (0, "hit")
        assert second.plan.devices == ("sample",)
        assert second.inputs[0].shape == (None, 4)


def test_device_memory_prepares_it_once(
    restart: Callable[..., CompiledModel], prepared: list[tuple[int | None, ...]]
) -> None:
    with restart() as second:
        for _ in range(2):
            buffer = allocate([InputRole(second, "x")], dimensions=(3, 4))
            buffer.close()
        assert len(prepared) == 1
        assert second.receipt.steps[0].cache.outcome != "off"


def test_a_driver_that_fails_to_prepare_it_is_tried_again(
    restart: Callable[..., CompiledModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> hal.PreparedModel:
        raise GeneralFailure("no memory left")

    alone = penstock.Policy(allow_fallback=False)
    restart(policy=alone).close()
    second = restart(policy=alone)
    with monkeypatch.context() as broken:
        broken.setattr(SampleDevice, "prepare_model", failing)
        broken.setattr(SampleDevice, "prepare_model_from_cache", failing)
        with pytest.raises(GeneralFailure, match="no memory left"):
            second.buffer_role("input", "x")
    assert second.buffer_role("input", "x") is not None
    second.close()


def test_closed_model_is_not_prepared(
    restart: Callable[..., CompiledModel], prepared: list[tuple[int | None, ...]]
) -> None:
    second = restart()
    second.close()
    with pytest.raises(ClosedError):
        second.buffer_role("input", "x")
    with pytest.raises(ClosedError):
        _ = second.executable.base
    assert prepared == []


def test_progress_ends_as_for_a_compile(restart: Callable[..., CompiledModel]) -> None:
    events: list[hal.ProgressEvent] = []
    restart(progress=events.append).close()
    assert (events[-1].stage, events[-1].done, events[-1].total) == ("compile", 1, 1)


def test_an_error_of_the_progress_callback_is_raised(
    restart: Callable[..., CompiledModel],
) -> None:
    def refuse(_: hal.ProgressEvent) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        restart(progress=refuse)


def test_a_run_of_unusual_priority_needs_no_more(
    restart: Callable[..., CompiledModel], prepared: list[tuple[int | None, ...]]
) -> None:
    with restart() as second:
        outputs = second.run([np.ones((3, 4), np.float32)], priority="high")
        assert np.array_equal(outputs[0], np.ones((3, 4)))
    assert len(prepared) == 1


def test_a_plan_says_that_runs_have_plans_of_their_own_shapes(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 4), "x")
    (y,) = builder.operation("NEG", [x], [(DType.FLOAT32, (None, 4))])
    model, said = builder.build([y]), "before shapes are known"
    with penstock.compile(model, ["reference"], cache=tmp_path) as compiled:
        assert said in repr(compiled)
        assert "each run has the plan of its own shapes" in compiled.plan.show().replace("\n ", "")
    with penstock.compile(model, ["reference"], cache=tmp_path, shapes={"x": (2, 4)}) as known:
        assert said not in known.plan.show()
