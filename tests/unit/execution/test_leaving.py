"""Drivers and delegates that call `sys.exit()`: their failure, and no end of the program. Ctrl-C
passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.delegates import DelegateKernel, SimpleDelegate
from penstock.driverkit import KernelDevice, Site, kernel
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import DelegateError, DriverError, GeneralFailure, PlacementError
from penstock.execution.fenced import run_fenced
from penstock.export.tflite import write
from penstock.hal import EventFence
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.testing.doubles import InterceptingDevice
from penstock.tflite import Interpreter

X: Final = np.array([-1, 2], np.float32)


def relu() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2,), "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, (2,))]))


class Leaving(InterceptingDevice):
    """The reference device; one method raises."""

    def __init__(self, method: str, error: type[BaseException] = SystemExit) -> None:
        super().__init__(ReferenceDevice(), "leaving")
        self.method, self.error, self.left = method, error, False

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], Any]) -> Any:
        if method == self.method:
            self.left = True
            raise self.error(3)
        return proceed()


def in_a_burst(compiled: penstock.CompiledModel) -> Sequence[Any]:
    with compiled.burst() as burst:
        return [np.array(y) for y in burst.run([X])]


def behind_a_fence(compiled: penstock.CompiledModel) -> Sequence[Any]:
    fence = EventFence()
    fence.signal()
    return run_fenced(compiled.executable, [X], [fence])


def through_a_buffer(compiled: penstock.CompiledModel) -> Sequence[Any]:
    with compiled.allocate(inputs=["x"]) as buffer:
        buffer.copy_from(X)
        return compiled.run([buffer])


USES: Final[dict[str, Callable[[penstock.CompiledModel], Sequence[Any]]]] = {
    "prepare_model": lambda compiled: compiled(X),
    "execute": lambda compiled: compiled(X),
    "configure_burst": in_a_burst,
    "burst_execute": in_a_burst,
    "execute_fenced": behind_a_fence,
    "allocate": through_a_buffer,
}


@pytest.mark.parametrize("method", USES)
def test_a_driver_that_leaves_has_failed(method: str) -> None:
    device = Leaving(method)
    with penstock.compile(relu(), devices=[device], cache=False) as compiled:
        assert USES[method](compiled)[0].tolist() == [0, 2]
    assert device.left


def test_system_exit_of_a_driver_is_a_driver_error_without_fallback() -> None:
    policy = penstock.Policy(allow_fallback=False)
    with (
        penstock.compile(relu(), devices=[Leaving("execute")], policy=policy) as compiled,
        pytest.raises(GeneralFailure, match=r"failed in execute: SystemExit\(3\)"),
    ):
        compiled(X)
    with pytest.raises(DriverError, match=r"failed in prepare_model: SystemExit\(3\)"):
        penstock.compile(relu(), devices=[Leaving("prepare_model")], policy=policy)
    with pytest.raises(PlacementError, match="SystemExit: 3"):
        penstock.compile(relu(), devices=[Leaving("supported_operations")], cache=False)


@pytest.mark.parametrize("method", ["supported_operations", "prepare_model", "execute"])
def test_ctrl_c_passes(method: str) -> None:
    def work() -> None:
        device = Leaving(method, KeyboardInterrupt)
        with penstock.compile(relu(), devices=[device], cache=False) as compiled:
            compiled(X)

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_kernel_that_leaves_names_its_operation() -> None:
    class Exiting(KernelDevice):
        name, version = "exiting", "1"
        accuracy = "exact"

        @kernel("RELU")
        def relu(self, site: Site, x: NDArray) -> NDArray:
            sys.exit("no licence")

    policy = penstock.Policy(allow_fallback=False)
    with (
        penstock.compile(relu(), devices=[Exiting()], policy=policy) as compiled,
        pytest.raises(GeneralFailure, match=r"operation 0 \(RELU.*SystemExit: no licence"),
    ):
        compiled(X)


def test_a_device_that_leaves_when_it_is_asked_what_it_is_has_a_reason() -> None:
    class Asked(ReferenceDevice):
        def check(self) -> str | None:
            sys.exit(3)

    with pytest.raises(PlacementError, match=r"failed in its checks: SystemExit\(3\)"):
        penstock.compile(relu(), devices=[Asked()])


def test_a_prepared_model_that_leaves_as_it_is_closed_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = ReferenceDevice()
    compiled = penstock.compile(relu(), devices=[device], cache=False)
    (step,) = compiled.executable.base.compilation.steps

    def leave() -> None:
        sys.exit(3)

    monkeypatch.setattr(step.prepared, "close", leave, raising=False)
    compiled.close()
    assert "failed in close: SystemExit(3)" in caplog.text


@pytest.mark.parametrize("method", ["is_node_supported", "init", "prepare", "invoke"])
def test_a_delegate_that_leaves_has_failed(method: str) -> None:
    class Kernel(DelegateKernel):
        def init(self, context: Any, params: Any) -> None:
            leave("init")

        def prepare(self, context: Any, node: Any) -> None:
            leave("prepare")

        def invoke(self, context: Any, node: Any) -> None:
            leave("invoke")

    class Exiting(SimpleDelegate):
        name = "exiting"

        def is_node_supported(self, registration: Any, node: Any, context: Any) -> bool:
            leave("is_node_supported")
            return True

        def create_kernel(self) -> DelegateKernel:
            return Kernel()

    def leave(asked: str) -> None:
        if asked == method:
            sys.exit(3)

    def work() -> None:
        interpreter = Interpreter(model_content=write(relu()), experimental_delegates=[Exiting()])
        interpreter.allocate_tensors()
        interpreter.invoke()

    with pytest.raises(DelegateError, match=r"delegate 'exiting' failed in .*: SystemExit: 3"):
        work()
