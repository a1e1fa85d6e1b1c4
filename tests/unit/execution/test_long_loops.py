"""A loop that takes longer than NNAPI's loop timeouts ends by its condition, its run's deadline or
its cancellation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

import penstock
from penstock.errors import Cancelled, MissedDeadlineTransient
from penstock.execution import CompiledModel
from penstock.execution.burst import Burst
from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.testing.contract.cases import loop, looping
from penstock.testing.devices import find_devices
from penstock.testing.loopback import LoopbackDevice
from penstock.tflite import Interpreter
from tests.unit.delegates.recorder import Recorder
from tests.unit.tflite import models

Way: TypeAlias = Callable[..., None]

STEP_NS: Final = 20 * 10**9
ENDLESS: Final = (np.zeros(1, np.float32), np.ones((2, 2), np.float32))


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on which 20 s pass between two looks at it."""
    real, looks = time.monotonic_ns, iter(range(10**9))
    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + next(looks) * STEP_NS)
    yield
    monkeypatch.undo()


def plain(compiled: CompiledModel, inputs: Any) -> list[NDArray]:
    return list(compiled.run(inputs))


def in_a_burst(compiled: CompiledModel, inputs: Any) -> list[NDArray]:
    with compiled.burst() as burst:
        return list(burst.run(*inputs))


def fenced(compiled: CompiledModel, inputs: Any) -> list[NDArray]:
    return list(compiled.start_fenced(inputs, []).result())


def submitted(compiled: CompiledModel, inputs: Any) -> list[NDArray]:
    return list(compiled.submit(*inputs).result())


@pytest.mark.usefixtures("slow_clock")
class TestThroughEveryDoor:
    @pytest.mark.parametrize("way", [plain, in_a_burst, fenced, submitted])
    def test_a_long_loop_of_a_compiled_model_finishes(
        self, way: Callable[[CompiledModel, Any], list[NDArray]]
    ) -> None:
        case = loop()
        with penstock.compile(case.model, devices=["reference"], cache=False) as compiled:
            for found, expected in zip(way(compiled, case.inputs), case.outputs, strict=True):
                np.testing.assert_array_equal(found, expected)

    def test_a_long_loop_of_an_interpreter_finishes(self) -> None:
        interpreter = Interpreter(model_content=models.doubling())
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.array([3], np.int32))
        interpreter.invoke()
        assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == [192]

    def test_a_long_loop_in_which_a_delegate_has_nodes_finishes(self) -> None:
        delegate = Recorder("ADD")
        interpreter = Interpreter(
            model_content=models.doubling(), experimental_delegates=[delegate]
        )
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.array([3], np.int32))
        interpreter.invoke()
        assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == [192]
        assert len(delegate.names("invoke")) == 6

    def test_a_long_loop_behind_messages_finishes(self) -> None:
        case = loop()
        (device,) = find_devices("reference")
        prepared = LoopbackDevice(device).prepare_model(case.model, PrepareConfig())
        found = [np.empty_like(a) for a in case.outputs]
        request = Request(tuple(map(HostMemory, case.inputs)), tuple(map(HostMemory, found)))
        prepared.execute(request, ExecutionConfig())
        for got, expected in zip(found, case.outputs, strict=True):
            np.testing.assert_array_equal(got, expected)
        prepared.close()


def endless_run(compiled: CompiledModel, _: Burst, **settings: Any) -> None:
    compiled.run(ENDLESS, **settings)


def endless_burst(_: CompiledModel, burst: Burst, **settings: Any) -> None:
    burst.run(*ENDLESS, **settings)


class TestEnds:
    @pytest.mark.parametrize("way", [endless_run, endless_burst])
    def test_an_endless_loop_ends_at_its_deadline(self, way: Way) -> None:
        with (
            penstock.compile(looping(0), devices=["reference"], cache=False) as compiled,
            compiled.burst() as series,
            pytest.raises(MissedDeadlineTransient),
        ):
            way(compiled, series, timeout=0.05)

    @pytest.mark.parametrize("isolate", [False, True])
    @pytest.mark.parametrize("way", [endless_run, endless_burst])
    def test_an_endless_loop_ends_when_it_is_cancelled(self, isolate: bool, way: Way) -> None:
        token = penstock.CancelToken()
        timer = threading.Timer(0.1, token.set)
        with (
            penstock.compile(
                looping(0), devices=["reference"], cache=False, isolate=isolate
            ) as compiled,
            compiled.burst() as series,
        ):
            timer.start()
            with pytest.raises(Cancelled):
                way(compiled, series, cancel=token)
            timer.join()

    def test_a_loop_without_operations_ends_when_it_is_cancelled(self) -> None:
        token = penstock.CancelToken()
        timer = threading.Timer(0.1, token.set)
        with penstock.compile(idle(), devices=["reference"], cache=False) as compiled:
            timer.start()
            with pytest.raises(Cancelled):
                compiled.run([np.zeros(1, np.float32)], cancel=token)
            timer.join()

    @pytest.mark.slow
    @pytest.mark.parametrize("way", [endless_run, endless_burst])
    def test_a_host_is_not_killed_for_a_loop_that_goes_on(
        self, way: Way, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "1500")
        with (
            penstock.compile(
                looping(0), devices=["reference"], cache=False, isolate=True
            ) as compiled,
            compiled.burst() as series,
        ):
            began = time.monotonic()
            with pytest.raises(MissedDeadlineTransient, match="deadline"):
                way(compiled, series, timeout=3.4)
            assert time.monotonic() - began >= 3.4
            case = loop()
            again = compiled.run([np.full(1, 5, np.float32), case.inputs[1]])
            np.testing.assert_array_equal(again[1], case.inputs[1])
            assert again.receipt.notes == ()


def idle() -> Model:
    """WHILE true: nothing."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1,), "x")
    condition, body = b.subgraph("condition"), b.subgraph("body")
    condition.input(DType.FLOAT32, (1,), "x")
    always = condition.constant(np.array([True]))
    references = {
        "cond_subgraph_index": b.add_subgraph(condition.finish([always])),
        "body_subgraph_index": b.add_subgraph(body.finish([body.input(DType.FLOAT32, (1,), "x")])),
    }
    return b.build(b.operation("WHILE", [x], [(DType.FLOAT32, (1,))], references))
