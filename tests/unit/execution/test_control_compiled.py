"""Compiled models whose control flow is taken apart: memory of devices given to them, and a device
that fails behind it, after NNAPI's MemoryStepRoleTest and FailingDriver (NNAPI section 4.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.hal import Device
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.memory import InputRole, OutputRole, allocate
from penstock.testing.doubles import FaultyDevice
from tests.unit.execution import test_control
from tests.unit.execution.fakes import f32


def straight() -> Model:
    """relu(x) and x + relu(x): x is read by two devices, the first result by another than its
    writer.
    """
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, test_control.SHAPE, "x")
    (a,) = builder.operation("RELU", [x], [test_control.floats("a")])
    (b,) = builder.operation("ADD", [x, a], [test_control.floats("b")])
    return builder.build([a, b])


def nested() -> Model:
    """IF outer: (IF inner: doubled(x) else squared(x)) else squared(x)."""
    builder = ModelBuilder()
    outer, inner = (builder.input(DType.BOOL, (1,), name) for name in ("outer", "inner"))
    x = builder.input(DType.FLOAT32, test_control.SHAPE, "x")
    places = []
    for make in (test_control.doubled, test_control.squared):
        graph = builder.subgraph()
        places.append(builder.add_subgraph(graph.finish(make(graph))))
    attributes = {"then_subgraph_index": places[0], "else_subgraph_index": places[1]}
    around = builder.subgraph()
    flag, value = (
        around.input(DType.BOOL, (1,), "flag"),
        around.input(DType.FLOAT32, test_control.SHAPE, "value"),
    )
    results = around.operation(
        "IF", [flag, value], [test_control.floats("p"), test_control.floats("q")], attributes
    )
    then = builder.add_subgraph(around.finish(results))
    other = builder.subgraph()
    other.input(DType.BOOL, (1,), "unused")
    attributes = {
        "then_subgraph_index": then,
        "else_subgraph_index": builder.add_subgraph(other.finish(test_control.squared(other))),
    }
    outputs = [test_control.floats("a"), test_control.floats("b")]
    return builder.build(builder.operation("IF", [outer, inner, x], outputs, attributes))


TRUE: Final = np.array([True])
SCENARIOS: Final[dict[str, tuple[Model, Sequence[NDArray], Sequence[str | None]]]] = {
    "no control flow": (straight(), [test_control.X], [None, None, "a"]),
    "IF": (test_control.choosing(), [TRUE, test_control.X], [None, None, "a", "a"]),
    "WHILE": (test_control.looping(), [f32([0]), test_control.X], [None] * 5),
    "nested": (nested(), [TRUE, TRUE, test_control.X], [None] * 5),
}
"""A model, what it is given, and for each input and output the device on which memory for it lies
(None: a pool).
"""


def compiled(model: Model, *devices: Device) -> penstock.CompiledModel:
    every: list[Device | str] = [*devices, "reference"]
    return penstock.compile(model, every, cache=None, policy=penstock.Policy(placement="nnapi"))


def depth(plan: penstock.ExecutionPlan) -> int:
    """How many operations around each other are taken apart."""
    inner = [b for s in plan.steps if s.control is not None for b in s.control.branches]
    return 1 + max(map(depth, inner)) if inner else 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_input_and_output_may_be_memory_of_a_device(name: str) -> None:
    """Whoever reads or writes it: the steps of one device, of several, or control flow, for which
    it is a pool.
    """
    model, given, wheres = SCENARIOS[name]
    with compiled(model, test_control.only("a", "ADD")) as net:
        assert depth(net.plan) == {"IF": 1, "WHILE": 1, "nested": 2}.get(name, 0)
        wanted = [np.array(array) for array in net.run(given)]
        places = iter(wheres)
        for at, array in enumerate(given):
            with allocate([InputRole(net, at)]) as buffer:
                assert buffer.device == next(places), at
                buffer.copy_from(array)
                arguments = [*given[:at], buffer, *given[at + 1 :]]
                for got, want in zip(net.run(arguments), wanted, strict=True):
                    np.testing.assert_array_equal(got, want)
        for at, want in enumerate(wanted):
            with allocate([OutputRole(net, at)]) as buffer:
                assert buffer.device == next(places), at
                out = [buffer if k == at else None for k in range(len(wanted))]
                net.run(given, out=out)
                np.testing.assert_array_equal(buffer.numpy(), want)


def behind_a_loop() -> Model:
    """WHILE count < 3: value += kept; then the negated value."""
    builder = ModelBuilder()
    count = builder.input(DType.FLOAT32, (1,), "count")
    value = builder.input(DType.FLOAT32, test_control.SHAPE, "value")
    places = []
    for make in (test_control.below_three, test_control.one_more):
        graph = builder.subgraph()
        places.append(builder.add_subgraph(graph.finish(make(graph))))
    attributes = {"cond_subgraph_index": places[0], "body_subgraph_index": places[1]}
    kept = builder.constant(f32([10, 20]))
    outputs = [
        Operand(DType.FLOAT32, (1,), name="n"),
        test_control.floats("v"),
        test_control.floats("k"),
    ]
    _, v, _ = builder.operation("WHILE", [count, value, kept], outputs, attributes)
    return builder.build(builder.operation("NEG", [v], [test_control.floats("y")]))


@pytest.mark.parametrize("loops", [False, True], ids=["a simple plan", "behind a loop"])
@pytest.mark.parametrize("method", ["prepare_model", "execute"])
def test_control_flow_falls_back_from_a_failing_device(method: str, loops: bool) -> None:
    """FailAfterInterpretedWhile and SimplePlan."""
    model = behind_a_loop() if loops else straight()
    given = [f32([1]), test_control.X] if loops else [test_control.X]
    weak = FaultyDevice(test_control.only("weak", "NEG", "RELU"), {method: "always"})
    with compiled(model, test_control.only("a", "ADD"), weak) as net, compiled(model) as judge:
        assert depth(net.plan) == loops
        for _ in range(2):
            outputs, wanted = net.run(given), judge.run(given)
            for got, want in zip(outputs, wanted, strict=True):
                np.testing.assert_array_equal(got, want)
            failed = [f.device for s in outputs.receipt.steps for f in s.failures]
            assert failed == (["weak"] if method == "execute" else [])
        told = [f.device for s in net.receipt.steps for f in s.failures]
        assert told == (["weak"] if method == "prepare_model" else [])
