"""Devices made of kernels: what they support, what they make of a kernel's results, and that they
keep the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.driverkit import KernelDevice, PreparedKernels, Site, kernel
from penstock.errors import (
    Cancelled,
    GeneralFailure,
    InputError,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from penstock.hal import Device, ExecutionConfig, PrepareConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.testing.contract import CHECKS, Check, NotCovered
from penstock.testing.contract.cases import Case
from penstock.testing.contract.trial import PLAIN, Trial
from penstock.testing.loopback import LoopbackDevice
from tests.checked import count_contract_checks
from tests.conftest import ROOT

F32 = DType.FLOAT32


class Several(KernelDevice):
    """Kernels enough for most models of the contract suites."""

    name, version = "several", "1"
    accuracy = "exact"

    @kernel("RELU")
    def relu(self, site: Site, x: NDArray) -> NDArray:
        return np.maximum(x, np.float32(0))

    @kernel("ADD", "MUL", dtypes=["float32", "int32"])
    def arithmetic(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
        return np.asarray(x + y if site.operation.type == "ADD" else x * y)

    @kernel("FULLY_CONNECTED")
    def fully_connected(
        self, site: Site, x: NDArray, weights: NDArray, bias: NDArray | None
    ) -> NDArray:
        rows = x.reshape(-1, weights.shape[1]) @ weights.T
        y = rows if bias is None else rows + bias
        return y.reshape(*x.shape[:-1], -1) if site.attributes.flag("keep_num_dims") else y

    def refuse(self, site: Site) -> str:
        if site.operation.type == "FULLY_CONNECTED" and site.constant(1) is None:
            return "weights are no constant"
        return ""


count_contract_checks()


@pytest.mark.parametrize("wrap", [lambda device: device, LoopbackDevice])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_promise_is_kept(check: Check, wrap: Callable[[Device], Device]) -> None:
    try:
        check(wrap(Several()))
    except NotCovered as reason:
        pytest.skip(str(reason))


def model_of(kind: str, count: int = 1, dtype: DType = F32, **attributes: str) -> Model:
    b = ModelBuilder()
    given = [b.input(dtype, (2, 3), f"x{k}") for k in range(count)]
    return b.build(b.operation(kind, given, [(dtype, (2, 3))], attributes))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (model_of("TANH"), "several has no TANH"),
        (model_of("ADD", 2, DType.INT64), "input 0 is int64, not float32 or int32"),
        (
            model_of("ADD", 2, fused_activation_function="TANH"),
            "the fused activation TANH is not computed",
        ),
        (
            model_of("ADD", 2, DType.INT32, fused_activation_function="RELU"),
            "the fused activation RELU is computed on floats only",
        ),
    ],
)
def test_a_refusal_says_why(model: Model, reason: str) -> None:
    (answer,) = Several().supported_operations(model)
    assert (answer.supported, answer.reason) == (False, reason)
    with pytest.raises(GeneralFailure, match=reason):
        Several().prepare_model(model, PrepareConfig())


def test_a_subclass_refuses_an_operation_with_a_reason() -> None:
    b = ModelBuilder()
    given = [b.input(F32, (1, 2), "x"), b.input(F32, (3, 2), "w"), None]
    model = b.build(b.operation("FULLY_CONNECTED", given, [(F32, (1, 3))]))
    (answer,) = Several().supported_operations(model)
    assert answer.reason == "weights are no constant"


def test_a_refusal_that_is_no_text_names_the_operation() -> None:
    class Forgetful(Several):
        def refuse(self, site: Site) -> str:
            return None  # type: ignore[return-value]

    wanted = r"^operation 0 \(RELU\): refuse gave None; it returns a text"
    with pytest.raises(InputError, match=wanted):
        Forgetful().supported_operations(model_of("RELU"))


def test_a_kernel_may_be_replaced_and_added_to() -> None:
    class More(Several):
        @kernel("NEG")
        def negative(self, site: Site, x: NDArray) -> NDArray:
            return -x

        def relu(self, site: Site, x: NDArray) -> NDArray:
            return np.full_like(x, 7)

    assert run(More(), "RELU", [-1, 2, 3]) == [7, 7, 7]
    assert run(More(), "NEG", [-1, 2, 3]) == [1, -2, -3]
    assert not Several().supported_operations(model_of("NEG"))[0].supported


def run(device: Device, kind: str, values: list[int], **attributes: str) -> list[float]:
    b = ModelBuilder()
    x = b.input(F32, (len(values),), "x")
    count = 2 if kind in {"ADD", "MUL"} else 1
    out = b.operation(kind, [x] * count, [(F32, (len(values),))], attributes)
    with penstock.compile(b.build(out), devices=[device], cache=None) as compiled:
        found: list[float] = compiled(np.array(values, np.float32))[0].tolist()
    return found


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [("NONE", [-4, 2, 8]), ("RELU", [0, 2, 8]), ("RELU6", [0, 2, 6]), ("RELU_N1_TO_1", [-1, 1, 1])],
)
def test_fused_activations_are_applied(activation: str, wanted: list[float]) -> None:
    assert run(Several(), "ADD", [-2, 1, 4], fused_activation_function=activation) == wanted


def test_several_outputs_come_as_a_tuple() -> None:
    class Halves(KernelDevice):
        name, version = "halves", "1"

        @kernel("SPLIT", dtypes=["float32", "int32"])
        def split(self, site: Site, axis: NDArray, x: NDArray) -> list[NDArray]:
            return np.split(x, site.attributes.integer("num_splits"), int(axis))

    b = ModelBuilder()
    axis, x = b.constant(np.array(0, np.int32)), b.input(F32, (4,), "x")
    model = b.build(b.operation("SPLIT", [axis, x], [(F32, (2,))] * 2, {"num_splits": 2}))
    with penstock.compile(model, devices=[Halves()], cache=None) as compiled:
        assert [a.tolist() for a in compiled(np.arange(4, dtype=np.float32))] == [[0, 1], [2, 3]]


def failing(result: Any) -> Device:
    """A device whose RELU gives *result*, or raises it."""

    class Failing(KernelDevice):
        name, version = "failing", "1"

        @kernel("RELU")
        def relu(self, site: Site, x: NDArray) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    return Failing()


@pytest.mark.parametrize(
    ("result", "error", "complaint"),
    [
        (np.zeros((2, 3)), GeneralFailure, r"gave float64\[2, 3\], not float32 of \[2, 3\]"),
        (np.zeros(6, np.float32), GeneralFailure, r"gave float32\[6\], not float32 of \[2, 3\]"),
        (None, GeneralFailure, "the kernel 'relu' returned None, not its result"),
        ((), GeneralFailure, "gave 0 results, not 1"),
        (
            np.ma.masked_less(np.arange(6, dtype=np.float32).reshape(2, 3), 3),
            GeneralFailure,
            r"gave a masked array.* filled\(\)",
        ),
        (ZeroDivisionError("by zero"), GeneralFailure, "ZeroDivisionError: by zero"),
        (MemoryError(), ResourceExhaustedTransient, "no memory left"),
        (GeneralFailure("engine lost"), GeneralFailure, "engine lost"),
        (Cancelled("stop"), Cancelled, "stop"),
    ],
)
def test_error_of_a_kernel_names_the_operation(
    result: Any, error: type[Exception], complaint: str
) -> None:
    model = model_of("RELU")
    case = Case("relu", model, (np.ones((2, 3), np.float32),), (np.ones((2, 3), np.float32),))
    with (
        closing(failing(result).prepare_model(model, PrepareConfig())) as prepared,
        Trial(case) as trial,
    ):
        with pytest.raises(error, match=complaint) as caught:
            prepared.execute(trial.request, PLAIN)
        trial.check_unwritten("by a run that failed")
    assert error is Cancelled or str(caught.value).startswith("operation 0 (RELU): ")


def test_a_kernel_cannot_change_its_inputs() -> None:
    class Scribbles(KernelDevice):
        name, version = "scribbles", "1"

        @kernel("RELU")
        def relu(self, site: Site, x: NDArray) -> NDArray:
            x[...] = 0
            return x

    with pytest.raises(GeneralFailure, match="read-only"):
        run_here(Scribbles())


def run_here(device: Device, config: ExecutionConfig = PLAIN) -> None:
    case = Case(
        "relu", model_of("RELU"), (np.ones((2, 3), np.float32),), (np.ones((2, 3), np.float32),)
    )
    with (
        closing(device.prepare_model(case.model, PrepareConfig())) as prepared,
        Trial(case) as trial,
    ):
        trial.run(prepared, config)


def test_a_deadline_that_passes_between_operations_is_noticed() -> None:
    import time

    class Slow(Several):
        @kernel("RELU")
        def relu(self, site: Site, x: NDArray) -> NDArray:
            while time.monotonic_ns() < deadline:
                time.sleep(0)
            return x

    b = ModelBuilder()
    x = b.input(F32, (2,), "x")
    (y,) = b.operation("RELU", [x], [(F32, (2,))])
    (z,) = b.operation("RELU", [y], [(F32, (2,))])
    array = np.ones(2, np.float32)
    case = Case("two", b.build([z]), (array,), (array,))
    with (
        closing(Slow().prepare_model(case.model, PrepareConfig())) as prepared,
        Trial(case) as trial,
    ):
        deadline = time.monotonic_ns() + 20_000_000
        with pytest.raises(MissedDeadlineTransient, match=r"before operation 1 \(RELU\)"):
            prepared.execute(trial.request, ExecutionConfig(deadline_ns=deadline))


def test_a_mark_needs_types_that_make_sense() -> None:
    with pytest.raises(InputError, match="no element type is named 'float31'"):
        kernel("RELU", dtypes=["float31"])
    with pytest.raises(InputError, match="needs the operations"):
        kernel()
    with pytest.raises(InputError, match=r"^kernel: no operation is named 'RELUU'; near it: RELU"):
        kernel("ADD", "RELUU")
    with pytest.raises(InputError, match=r"^kernel: no operation is named 'qqqq'$"):
        kernel("qqqq")
    with pytest.raises(InputError, match=r"^kernel: no operation is named 'relu'; near it: RELU"):
        kernel("relu")
    with pytest.raises(InputError, match=r"^kernel: dtypes is a list .*: dtypes=\['int8'\]$"):
        kernel("RELU", dtypes="int8")
    kernel("CUSTOM:mine", "CUSTOM")


def test_two_kernels_for_one_type_are_refused_where_the_class_is_made() -> None:
    with pytest.raises(InputError, match=r"^Twice: .*'floats' and 'integers'.* marked for ADD"):

        class Twice(KernelDevice):
            @kernel("ADD", "SUB", dtypes=["float32"])
            def floats(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
                return x

            @kernel("MUL", "ADD", dtypes=["int32"])
            def integers(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
                return x


def test_a_subclass_gives_a_type_a_kernel_of_another_name() -> None:
    class Other(Several):
        @kernel("RELU")
        def clip(self, site: Site, x: NDArray) -> NDArray:
            return np.full_like(x, 7)

    assert run(Other(), "RELU", [-1, 2]) == [7, 7]


class Flat(Several):
    """Its product takes every input for a matrix."""

    name = "flat"

    @kernel("FULLY_CONNECTED")
    def fully_connected(
        self, site: Site, x: NDArray, weights: NDArray, bias: NDArray | None
    ) -> NDArray:
        product = x @ weights.T
        return product if bias is None else product + bias


def test_the_contract_finds_a_product_that_takes_every_input_for_a_matrix() -> None:
    (check,) = [c for c in CHECKS if c.__name__ == "check_values"]
    check(Several())
    with pytest.raises(Exception, match=r"fully_connected_of_pictures|FULLY_CONNECTED"):
        check(Flat())


def test_kernel_device_runs_the_digits_network() -> None:
    """Its fully connected layer is given pictures."""
    network = ROOT / "examples" / "digits" / "digits_float32.tflite"
    policy = penstock.Policy(require={"FULLY_CONNECTED": "several"})
    devices: list[str | Device] = [Several(), "reference"]
    with (
        penstock.compile(network, devices=devices, policy=policy, cache=None) as ours,
        penstock.compile(network, devices=["reference"], cache=None) as wanted,
    ):
        shape = [d or 1 for d in wanted.model.inputs[0].shape or ()]
        value = np.random.default_rng(0).random(shape).astype(np.float32)
        np.testing.assert_allclose(ours(value)[0], wanted(value)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", ["run", "compile"])
def test_a_fall_back_names_the_operation_by_its_number_in_the_whole_model(stage: str) -> None:
    b = ModelBuilder()
    (y,) = b.operation("TANH", [b.input(F32, (2,), "x")], [(F32, (2,))])
    model = b.build(b.operation("RELU", [y], [(F32, (2,))]))
    policy = penstock.Policy(placement="nnapi", forbid={"RELU": "second"})

    class Second(KernelDevice):
        name, version = "second", "1"

        @kernel("TANH")
        def tanh(self, site: Site, x: NDArray) -> NDArray:
            return np.tanh(x)

    class First(Several):
        name = "first"

        def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedKernels:
            raise GeneralFailure("operation 0 (RELU): ValueError: off")

    first = failing(ValueError("off")) if stage == "run" else First()
    devices: list[str | Device] = [first, Second()]
    with penstock.compile(model, devices=devices, policy=policy, cache=None) as compiled:
        ran = compiled(np.ones(2, np.float32)).receipt.steps
        steps = ran if stage == "run" else compiled.receipt.steps
    assert [s.device for s in ran] == ["second", "reference"]
    assert steps[1].error == "GeneralFailure: operation 1 (RELU): ValueError: off"
