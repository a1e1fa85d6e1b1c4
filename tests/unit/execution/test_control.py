"""IF and WHILE whose branches are planned: carried out step by step, with what a step of theirs may
meet.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.compilation import CompileOptions, compile_plan
from penstock.errors import GeneralFailure, MissedDeadlineTransient
from penstock.execution.run import Run
from penstock.execution.variant import Variant
from penstock.hal import Capabilities, Device, ExecutionConfig, PerformanceInfo, PrepareConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.ir.builder import SubgraphBuilder
from penstock.partitioning import Policy, place
from penstock.partitioning.plan import Control
from penstock.testing import assert_no_copies
from penstock.testing.devices import find_devices
from penstock.testing.doubles import FaultyDevice, SubsetDevice
from tests.unit.execution.fakes import f32

X = f32([1, -2])
SHAPE = (2,)


def floats(name: str = "") -> Operand:
    return Operand(DType.FLOAT32, SHAPE, name=name)


def doubled(graph: SubgraphBuilder) -> list[int]:
    """relu(x + x), and x itself."""
    x = graph.input(DType.FLOAT32, SHAPE, "x")
    (total,) = graph.operation("ADD", [x, x], [floats("twice")])
    (positive,) = graph.operation("RELU", [total], [floats("positive")])
    return [positive, x]


def squared(graph: SubgraphBuilder) -> list[int]:
    """x * x, twice."""
    x = graph.input(DType.FLOAT32, SHAPE, "x")
    (square,) = graph.operation("MUL", [x, x], [floats("square")])
    return [square, square]


def below_three(graph: SubgraphBuilder) -> list[int]:
    """count < 3."""
    count = graph.input(DType.FLOAT32, (1,), "count")
    for name in ("value", "kept"):
        graph.input(DType.FLOAT32, SHAPE, name)
    limit = graph.constant(f32([3]))
    return graph.operation("LESS", [count, limit], [Operand(DType.BOOL, (1,), name="go")])


def one_more(graph: SubgraphBuilder) -> list[int]:
    """count + 1, value + kept, kept."""
    count = graph.input(DType.FLOAT32, (1,), "count")
    value, kept = (graph.input(DType.FLOAT32, SHAPE, name) for name in ("value", "kept"))
    one = graph.constant(f32([1]))
    (more,) = graph.operation("ADD", [count, one], [Operand(DType.FLOAT32, (1,), name="more")])
    (total,) = graph.operation("ADD", [value, kept], [floats("total")])
    return [more, total, kept]


def alone(make: Any) -> Model:
    """A branch as a model of its own."""
    builder = ModelBuilder()
    return builder.build(make(builder))


def choosing() -> Model:
    """IF flag: doubled(x) else squared(x); then the sum of both results."""
    builder = ModelBuilder()
    flag = builder.input(DType.BOOL, (1,), "flag")
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    places = []
    for make in (doubled, squared):
        graph = builder.subgraph()
        places.append(builder.add_subgraph(graph.finish(make(graph))))
    attributes = {"then_subgraph_index": places[0], "else_subgraph_index": places[1]}
    a, b = builder.operation("IF", [flag, x], [floats("a"), floats("b")], attributes)
    (total,) = builder.operation("ADD", [a, b], [floats("sum")])
    return builder.build([total, a])


def looping() -> Model:
    """WHILE count < 3: value += kept."""
    builder = ModelBuilder()
    count = builder.input(DType.FLOAT32, (1,), "count")
    value = builder.input(DType.FLOAT32, SHAPE, "value")
    places = []
    for make in (below_three, one_more):
        graph = builder.subgraph()
        places.append(builder.add_subgraph(graph.finish(make(graph))))
    attributes = {"cond_subgraph_index": places[0], "body_subgraph_index": places[1]}
    kept = builder.constant(f32([10, 20]))
    outputs = [Operand(DType.FLOAT32, (1,), name="n"), floats("v"), floats("k")]
    return builder.build(builder.operation("WHILE", [count, value, kept], outputs, attributes))


class Cheap(SubsetDevice):
    """Claims to be faster than it is, so that it gets what it supports."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(default_performance=PerformanceInfo(0.1, 0.1))


def only(name: str, *kinds: str) -> Cheap:
    return Cheap(
        find_devices("reference")[0], name, lambda model, i: model.operations[i].type in kinds
    )


@contextmanager
def running(
    model: Model, kind: Any, branches: list[Any], *devices: Device, allow: bool = True
) -> Iterator[Variant]:
    """*model* on *devices* and reference, its control flow carried out by the runtime."""
    policy = Policy(placement="nnapi")
    every = [*devices, *find_devices("reference")]
    plan = place(model, every, policy)
    control = Control(kind, tuple(place(alone(make), every, policy) for make in branches))
    steps = tuple(
        replace(step, control=control)
        if model.operations[step.operations[0]].type == kind
        else step
        for step in plan.steps
    )
    named = {device.name: device for device in every}
    compilation = compile_plan(
        replace(plan, steps=steps), named, PrepareConfig(), CompileOptions(allow_fallback=allow)
    )
    variant = Variant(compilation, named, PrepareConfig(), allow)
    try:
        yield variant
    finally:
        variant.close()


def choose(variant: Variant, flag: bool, out: Any = None) -> tuple[list[NDArray], Run]:
    run = Run(ExecutionConfig())
    return variant.run(run, [np.array([flag]), X], out), run


def parts(trace: Run) -> list[tuple[str, str, int]]:
    """Of every inner step: the branch, the device, and how often it ran."""
    return [
        (inner.part, inner.first.prepared.device.name, inner.runs)
        for step in trace.steps
        for inner in step.inner
    ]


ADDER, BOTH = ("a", "ADD"), [doubled, squared]
THEN, ELSE = np.maximum(X + X, 0), X * X


class TestIf:
    @pytest.mark.parametrize("in_place", [False, True])
    def test_runs_the_branch_that_was_chosen(self, in_place: bool) -> None:
        with running(choosing(), "IF", BOTH, only(*ADDER)) as variant:
            for flag, (a, b) in ((True, (THEN, X)), (False, (ELSE, ELSE)), (True, (THEN, X))):
                out = [np.empty_like(X), np.empty_like(X)] if in_place else None
                results, trace = choose(variant, flag, out)
                np.testing.assert_array_equal(results[0], a + b)
                np.testing.assert_array_equal(results[1], a)
                assert out is None or all(r is o for r, o in zip(results, out, strict=True))
                expected = [("then", "a", 1), ("then", "reference", 1)]
                assert parts(trace) == (expected if flag else [("else", "reference", 1)])
                # One branch hands its input on as an output, the other has one value for two
                # outputs.
                assert [c.nbytes for c in trace.copies] == [X.nbytes]

    def test_results_are_the_callers_own(self) -> None:
        with running(choosing(), "IF", BOTH, only(*ADDER)) as variant:
            (_, first), _ = choose(variant, True)
            (_, other), _ = choose(variant, False)
            before = [np.array(array) for array in (first, other)]
            variant.run(Run(ExecutionConfig()), [np.array([False]), X + 5])
        np.testing.assert_array_equal(first, THEN)
        np.testing.assert_array_equal([first, other], before)

    def test_a_step_of_a_branch_falls_back_by_itself(self) -> None:
        weak = FaultyDevice(only(*ADDER), {"execute": 1})
        with running(choosing(), "IF", BOTH, weak) as variant:
            (total, _), trace = choose(variant, True)
        np.testing.assert_array_equal(total, THEN + X)
        (inner, _) = trace.steps[0].inner
        assert [f.device for f in inner.first.failures] == ["a"]
        assert trace.steps[0].failures == ()

    def test_without_leave_the_branchs_error_is_the_runs(self) -> None:
        weak = FaultyDevice(only(*ADDER), {"execute": 1})
        with (
            running(choosing(), "IF", BOTH, weak, allow=False) as variant,
            pytest.raises(GeneralFailure, match="a: execute fails"),
        ):
            choose(variant, True)

    def test_a_branch_that_does_not_compile_is_run_whole(self) -> None:
        weak = FaultyDevice(only("a", "ADD", "MUL"), {"prepare_model": "always"})
        with running(choosing(), "IF", BOTH, weak) as variant:
            (step, _) = variant.compilation.plan.steps
            assert step.control is not None
            (moved,) = step.control.branches[1].steps
            assert moved.device == "reference"
            (total, _), _ = choose(variant, False)
        np.testing.assert_array_equal(total, ELSE + ELSE)


def loop(
    variant: Variant, count: float = 0, out: Any = None, **config: Any
) -> tuple[list[NDArray], Run]:
    run = Run(ExecutionConfig(**config))
    return variant.run(run, [f32([count]), X], out), run


LOOP = [below_three, one_more]


class TestWhile:
    @pytest.mark.parametrize("in_place", [False, True])
    @pytest.mark.parametrize(("count", "rounds"), [(0, 3), (2, 1), (3, 0)])
    def test_runs_until_its_condition_fails(self, count: int, rounds: int, in_place: bool) -> None:
        kept = f32([10, 20])
        with running(looping(), "WHILE", LOOP, only(*ADDER)) as variant:
            out = [np.empty(1, np.float32), *np.empty((2, 2), np.float32)] if in_place else None
            loop(variant, 0, out)
            (n, v, k), trace = loop(variant, count, out)
        assert n.tolist() == [count + rounds]
        np.testing.assert_array_equal(v, X + rounds * kept)
        np.testing.assert_array_equal(k, kept)
        body = [("body", "a", rounds)] if rounds else []
        assert parts(trace) == [("condition", "reference", rounds + 1), *body]

    def test_results_are_the_callers_own(self) -> None:
        with running(looping(), "WHILE", LOOP, only(*ADDER)) as variant:
            (n, v, k), _ = loop(variant, 3)
            for array in (n, v, k):
                assert array.flags.writeable
                array.fill(7)
            (_, v, k), _ = loop(variant, 2)
        np.testing.assert_array_equal(v, X + f32([10, 20]))
        np.testing.assert_array_equal(k, f32([10, 20]))
        assert X.tolist() == [1, -2]

    def test_while_past_its_timeout_has_no_fallback(self) -> None:
        with (
            running(looping(), "WHILE", LOOP, only(*ADDER)) as variant,
            pytest.raises(MissedDeadlineTransient, match="a WHILE ran longer than its timeout"),
        ):
            loop(variant, -1e30, loop_timeout_ns=1_000_000)

    def test_without_one_it_takes_as_long_as_it_takes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, looks = time.monotonic_ns, iter(range(10**6))
        with running(looping(), "WHILE", LOOP, only(*ADDER)) as variant:
            monkeypatch.setattr(time, "monotonic_ns", lambda: real() + next(looks) * 20 * 10**9)
            (n, _, _), _ = loop(variant)
        assert n.tolist() == [3]

    def test_receipt_of_a_loop_sums_many_copies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Pooled(Cheap):
            @property
            def capabilities(self) -> Capabilities:
                return replace(super().capabilities, accepts_host_memory=False)

        pooled = Pooled(find_devices("reference")[0], "a", lambda *_: True)
        totals, counts = [], []
        for most in (1000, 4):
            monkeypatch.setattr("penstock.execution.control.MOST_COPIES", most)
            with (
                running(looping(), "WHILE", LOOP, pooled) as variant,
                assert_no_copies(1 << 20) as watch,
            ):
                _, trace = loop(variant)
            sums = Counter[object]()
            for copy in trace.copies:
                sums[copy.source, copy.destination, copy.operand] += copy.nbytes
            totals.append(sums)
            counts.append(len(trace.copies))
            assert sum(sums.values()) == sum(c.nbytes for c in watch)
        assert totals[0] == totals[1]
        assert counts[0] > 3 * counts[1]

    @pytest.mark.parametrize("failing_call", [1, 2, 3])
    def test_a_step_of_its_body_falls_back_in_whichever_round(self, failing_call: int) -> None:
        weak = FaultyDevice(only(*ADDER), {"execute": failing_call})
        with running(looping(), "WHILE", LOOP, weak) as variant:
            (n, v, _), trace = loop(variant)
        assert n.tolist() == [3]
        np.testing.assert_array_equal(v, X + 3 * f32([10, 20]))
        assert sorted(runs for part, _, runs in parts(trace) if part == "body") == [1, 2]


def test_receipts_have_the_steps_of_branches(tmp_path: Path) -> None:
    with running(looping(), "WHILE", LOOP, only(*ADDER)) as variant:
        compiled = variant.compilation.receipt
        _, trace = loop(variant)
        receipt = trace.receipt()
    assert [(s.part, s.device) for s in compiled.steps[0].inner] == [
        ("condition", "reference"),
        ("body", "a"),
    ]
    assert compiled.compiles == 2
    (step,) = receipt.steps
    assert [(s.part, s.device, s.runs) for s in step.inner] == [
        ("condition", "reference", 4),
        ("body", "a", 3),
    ]
    assert step.wall_ns >= sum(s.wall_ns for s in step.inner)
    assert "body" in receipt.show()
    assert penstock.compilation.Receipt(steps=receipt.steps).trace()["traceEvents"]
