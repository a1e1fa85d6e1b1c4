"""What drivers do at the boundaries of steps, after NNAPI's DynamicTemporariesTest and
FailingDriver (NNAPI section 4.10).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.hal import ExecutionConfig, ExecutionResult, HostMemory, PrepareConfig, Request
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.partitioning import Policy
from penstock.partitioning.policy import PlacementRule
from tests.support_devices import NumpyDevice, NumpyPrepared, evaluate
from tests.support_graphs import random_case
from tests.unit.partitioning.models import Net

RULES: list[PlacementRule] = ["cost", "nnapi"]
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


class WatchedDevice(NumpyDevice):
    """Calls *after* with each request once it has been executed, and *before* before that."""

    def __init__(
        self,
        name: str,
        *args: Any,
        before: Callable[[Request], None] = lambda _: None,
        after: Callable[[Request], None] = lambda _: None,
        **more: Any,
    ) -> None:
        super().__init__(name, *args, **more)
        self.before, self.after = before, after

    def prepare_model(self, model: Model, config: PrepareConfig) -> NumpyPrepared:
        return _Watched(super().prepare_model(model, config).model, self)


class _Watched(NumpyPrepared):
    def __init__(self, model: Model, device: WatchedDevice) -> None:
        super().__init__(model)
        self.device = device

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        self.device.before(request)
        result = super().execute(request, config)
        self.device.after(request)
        return result


def several_readers() -> Model:
    """One value that three steps read, a caller's input that two read, an output that is read
    inside.
    """
    net = Net()
    x = net.source("x")
    shared = net.add("shared", x, x)
    a = net.relu("a", shared)
    b = net.add("b", a, shared)
    c = net.op("MUL", "c", b, shared)
    return net.build([shared, net.relu("y", net.add("d", c, x)), b])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("private", ["guest", "reference"])
def test_stray_writes_of_a_separate_device_reach_no_other_step(
    rule: PlacementRule, private: str
) -> None:
    """It writes over its inputs and its outputs when it has returned, at once and again before each
    later run.
    """
    kept: list[NDArray] = []

    def scribble(request: Request) -> None:
        mine = [a.array for a in (*request.inputs, *request.outputs) if isinstance(a, HostMemory)]
        kept.extend(mine)

    def ruin(_: Request) -> None:
        for array in kept:
            array.flags.writeable = True
            array[...] = 99

    def scribble_inputs(request: Request) -> None:
        for argument in request.inputs:
            assert isinstance(argument, HostMemory)
            argument.array.flags.writeable = True
            argument.array[...] = 99
        scribble(request)

    own: dict[str, Any] = {"shares_host_memory": False, "transfer_bytes_per_second": 1e15}
    hooks: dict[str, Any] = {"before": ruin, "after": scribble_inputs}
    guest = WatchedDevice(
        "guest",
        {"ADD"},
        other=(0.01, 0.01),
        **({**own, **hooks} if private == "guest" else {"before": ruin}),
    )
    reference = WatchedDevice(
        "reference", **({**own, **hooks} if private == "reference" else {"before": ruin})
    )
    model = several_readers()
    x = X.copy()
    expected = evaluate(model, [X.copy()])
    with penstock.compile(
        model, devices=[guest, reference], policy=Policy(placement=rule), cache=False
    ) as compiled:
        assert {s.device for s in compiled.plan.steps} == {"guest", "reference"}
        for _ in range(3):
            outputs = compiled.run([x])
            for array in kept:
                array[...] = 98
            assert [o.tobytes() for o in outputs] == [e.tobytes() for e in expected]
            assert x.tobytes() == X.tobytes()
            entering = sum(len(s.inputs) for s in compiled.plan.steps if s.device == private)
            assert len([c for c in outputs.receipt.copies if c.nbytes]) >= entering


def test_devices_that_share_host_memory_copy_nothing() -> None:
    devices = [NumpyDevice("guest", {"ADD"}, other=(0.01, 0.01)), NumpyDevice("reference")]
    with penstock.compile(several_readers(), devices=devices, cache=False) as compiled:
        assert len(compiled.plan.steps) > 2
        assert sum(c.nbytes for c in compiled.run([X]).receipt.copies) == 0


def picking(outputs: str = "last") -> Model:
    """WHERE gives as many rows as are true; NEG of them, twice: the values between have no known
    size.
    """
    builder = ModelBuilder()
    x = builder.input(DType.BOOL, (40, 2), "x")
    unknown = Operand(DType.INT64, (None, 2), name="rows")
    (rows,) = builder.operation("WHERE", [x], [unknown])
    (less,) = builder.operation("NEG", [rows], [Operand(DType.INT64, (None, 2), name="less")])
    (more,) = builder.operation("NEG", [less], [Operand(DType.INT64, (None, 2), name="more")])
    return builder.build([rows, less, more] if outputs == "all" else [more])


def pickers(level: int = 8, **more: Any) -> list[NumpyDevice]:
    return [
        NumpyDevice("picker", {"WHERE"}, other=(0.01, 0.01), level=level, **more),
        NumpyDevice("negator", {"NEG"}, other=(0.01, 0.01)),
        NumpyDevice("reference"),
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("outputs", ["last", "all"])
def test_dynamic_temporaries(rule: PlacementRule, outputs: str) -> None:
    """Model outputs and temporaries whose size a run tells; each run another one."""
    model = picking(outputs)
    with penstock.compile(
        model, devices=pickers(), policy=Policy(placement=rule), cache=False
    ) as compiled:
        assert [s.device for s in compiled.plan.steps] == ["picker", "negator"]
        assert bool(compiled.plan.temporaries.dynamic) is (outputs == "last")
        for count in (80, 1, 7, 80, 33):
            x = (np.arange(80) < count).reshape(40, 2)
            expected = evaluate(model, [x])
            results = compiled.run([x])
            assert [r.shape for r in results] == [(count, 2)] * len(results)
            assert [r.tobytes() for r in results] == [e.tobytes() for e in expected]


@pytest.mark.parametrize("rule", RULES)
def test_a_dynamic_temporary_without_elements_goes_to_the_reference(rule: PlacementRule) -> None:
    model = picking()
    with penstock.compile(
        model, devices=pickers(), policy=Policy(placement=rule), cache=False
    ) as compiled:
        outputs = compiled.run([np.zeros((40, 2), bool)])
        assert outputs[0].shape == (0, 2)
        assert outputs.receipt.steps[-1].device == "reference"


def test_dynamic_temporaries_need_devices_that_support_them() -> None:
    """As below HAL 1.2: the device that would write it does not get the operation."""
    with penstock.compile(
        picking(), devices=pickers(dynamic_outputs=False), cache=False
    ) as compiled:
        reason = "the shape of an output is known at run time only, which the device does not take"
        assert compiled.plan.operations[0].reasons["picker"] == reason
        x = np.eye(40, 2, dtype=bool)
        assert compiled.run([x])[0].tobytes() == evaluate(picking(), [x])[0].tobytes()


def test_dynamic_temporaries_when_the_step_is_repeated() -> None:
    """A step that failed after it had learned a size is repeated elsewhere with the same values."""
    calls = itertools.count()

    def fail(_: Request) -> None:
        if next(calls) % 2:
            raise errors.GeneralFailure("every other time")

    devices = [
        NumpyDevice("picker", {"WHERE"}, other=(0.01, 0.01)),
        WatchedDevice("negator", {"NEG"}, other=(0.01, 0.01), after=fail),
        NumpyDevice("reference"),
    ]
    with penstock.compile(picking(), devices=devices, cache=False) as compiled:
        for count in (30, 2, 79, 5):
            x = (np.arange(80) < count).reshape(40, 2)
            assert compiled.run([x])[0].tobytes() == evaluate(picking(), [x])[0].tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_random_failures_in_random_plans_change_no_result(rule: PlacementRule) -> None:
    """NNAPI's TestPartitioningRandom with failures: every device fails now and then, before or
    after its work.
    """
    failures = 0
    rng = np.random.default_rng(7)

    def sometimes(_: Request) -> None:
        nonlocal failures
        if rng.random() < 0.15:
            failures += 1
            raise errors.ResourceExhaustedTransient("just now")

    for seed in range(40):
        case = random_case(seed)
        devices: list[NumpyDevice] = [
            WatchedDevice(
                device.name,
                device._wish,
                {
                    t: (p.execution_time, p.power_usage)
                    for t, p in device.capabilities.performance.items()
                },
                before=sometimes,
                after=sometimes,
            )
            for device in case.devices
            if device.name != "reference"
        ]
        devices.append(NumpyDevice("reference"))
        count = len(case.model.entry.ordinary_inputs)
        given, state = case.graph.arrays[:count], case.graph.arrays[count:]
        state = [np.zeros_like(a) for a in state]
        with penstock.compile(
            case.model, devices=devices, policy=Policy(placement=rule), cache=False
        ) as compiled:
            for _ in range(2):
                expected = evaluate(case.model, [*given, *state])
                outputs = compiled.run(given)
                ordinary = expected[: len(case.model.entry.ordinary_outputs)]
                state = expected[len(ordinary) :]
                assert [o.tobytes() for o in outputs] == [e.tobytes() for e in ordinary], seed
    assert failures >= 20


OUTCOMES: list[type[errors.DriverError] | None] = [
    None,
    errors.GeneralFailure,
    errors.OutputInsufficientSize,
    errors.DeviceUnavailable,
    errors.ResourceExhaustedTransient,
    errors.ResourceExhaustedPersistent,
]


@pytest.mark.parametrize("way", ["run", "submit", "run_async", "burst"])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("allowed", [True, False])
def test_timing(way: str, outcome: type[errors.DriverError] | None, allowed: bool) -> None:
    """NNAPI's TimingTest: whatever the driver answers, the receipt's times are those of who did the
    work.
    """

    def answer(_: Request) -> None:
        if outcome is not None:
            raise outcome("as asked")

    device = WatchedDevice("device", {"ADD"}, other=(0.01, 0.01), before=answer)
    net = Net()
    x = net.source("x")
    model = net.build([net.add("y", x, x)])
    policy = Policy(allow_fallback=allowed)
    with penstock.compile(
        model, devices=[device, "reference"], policy=policy, cache=False
    ) as compiled:

        def call() -> penstock.Outputs:
            if way == "run":
                return compiled.run([X])
            if way == "submit":
                return compiled.submit(X).result()
            if way == "burst":
                with compiled.burst() as burst:
                    return burst.run(X)
            return asyncio.run(compiled.run_async(X))

        if outcome is not None and not allowed:
            with pytest.raises(errors.DriverError):
                call()
            return
        outputs = call()
        (step,) = outputs.receipt.steps
        assert outputs[0].tobytes() == (X + X).tobytes()
        assert 0 < step.wall_ns <= outputs.receipt.wall_ns
        assert step.device == ("device" if outcome is None else "reference")
        if outcome is None:
            assert step.driver_ns is None
        else:
            assert 0 < (step.driver_ns or 0) <= step.wall_ns
            assert step.fallback_from == "device"
