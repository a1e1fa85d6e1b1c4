"""Receipts as text and as a Chrome trace, on one clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.compilation import CopyReceipt, Failure, KernelReceipt, Receipt, Span, StepReceipt
from penstock.compilation.receipt import chrome_trace
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.partitioning import Policy
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, add_relu, f32

X = f32([[1, -2, 3], [-4, 5, -6]])
MS = 1_000_000


def spans_of(trace: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Name -> (begin, end) in microseconds."""
    timed = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    return {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in timed}


def rows_of(trace: dict[str, Any]) -> dict[str, set[str]]:
    """Row -> the names of what lies in it."""
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    found: dict[str, set[str]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault(rows[event["tid"]], set()).add(event["name"])
    return found


def test_trace_has_all_events_on_one_clock() -> None:
    compiled = Receipt(
        (StepReceipt("npu", (0, 1), 2 * MS, step=0, start_ns=12 * MS),),
        1,
        (),
        4 * MS,
        11 * MS,
        (
            Span("partition", "", None, 10 * MS, MS),
            Span("cache", "load step 0", "npu", 12 * MS, MS),
            Span("compile", "step 0", "npu", 13 * MS, MS),
        ),
        "compile",
    )
    kernel = KernelReceipt("fused_7", (0, 1), ("CONV_2D a", "RELU b"), 21 * MS, MS)
    run = Receipt(
        (
            StepReceipt("npu", (0, 1), 2 * MS, step=0, start_ns=21 * MS, kernels=(kernel,)),
            StepReceipt(
                "reference", (2,), MS, None, failures=(Failure("npu", "Hot: h"),), start_ns=24 * MS
            ),
        ),
        0,
        (CopyReceipt(24, "host", "npu", "apart", 0, 5, 20 * MS, MS),),
        6 * MS,
        20 * MS,
    )
    trace = chrome_trace([compiled, run], None, [Span("load", "net.tflite", None, 5 * MS, 3 * MS)])
    spans = spans_of(trace)
    assert spans == {
        "load net.tflite": (0, 3000),
        "partition": (5000, 6000),
        "compile": (6000, 10_000),
        "cache load step 0": (7000, 8000),
        "prepare step 0": (7000, 9000),
        "compile step 0": (8000, 9000),
        "run": (15_000, 21_000),
        "copy host -> npu": (15_000, 16_000),
        "execute step 0": (16_000, 18_000),
        "CONV_2D a + RELU b": (16_000, 17_000),
        "execute the whole model": (19_000, 20_000),
    }
    assert rows_of(trace) == {
        "runtime": {"load net.tflite", "partition", "compile", "run", "copy host -> npu"},
        "npu": {"prepare step 0", "cache load step 0", "compile step 0", "execute step 0"},
        "npu kernels": {"CONV_2D a + RELU b"},
        "reference": {"execute the whole model"},
    }
    (fallen,) = [e for e in trace["traceEvents"] if e["name"] == "execute the whole model"]
    assert fallen["args"]["errors"] == ["npu: Hot: h"]
    assert json.loads(json.dumps(trace)) == trace


class TestOfRealRuns:
    def test_trace_events_lie_inside_their_parents(self, tmp_path: Path) -> None:
        with penstock.compile(add_relu(), devices=["reference"], cache=tmp_path) as compiled:
            outputs = compiled.run([X, X], measure=True)
            receipts = [compiled.receipt, outputs.receipt]
            spans = spans_of(chrome_trace(receipts, compiled.plan))
        assert {"partition", "compile", "compile step 0", "run", "execute step 0"} <= set(spans)
        assert spans["partition"][1] <= spans["compile"][0]
        assert spans["compile"][1] <= spans["run"][0]
        for inner, outer in (
            ("prepare step 0", "compile"),
            ("compile step 0", "prepare step 0"),
            ("execute step 0", "run"),
            ("ADD sum", "execute step 0"),
            ("RELU relu", "execute step 0"),
        ):
            assert spans[outer][0] <= spans[inner][0]
            assert spans[inner][1] <= spans[outer][1] + 0.001
        assert spans["ADD sum"][1] <= spans["RELU relu"][0] + 0.001

    def test_trace_has_the_load_of_a_compile(self, tmp_path: Path) -> None:
        from penstock.export.tflite import write

        path = tmp_path / "net.tflite"
        path.write_bytes(write(add_relu()))
        with penstock.compile(path, devices=["reference"], cache=False) as compiled:
            stages = [span.stage for span in compiled.receipt.spans]
        assert stages == ["load", "partition", "compile"]

    def test_kernels_only_where_they_were_asked_for(self) -> None:
        with penstock.compile(add_relu(), devices=["reference"], cache=False) as compiled:
            asked, not_asked = compiled.run([X, X], measure=True), compiled.run([X, X])
        (step,) = asked.receipt.steps
        assert [(k.operations, k.names) for k in step.kernels] == [
            ((0,), ("ADD sum",)),
            ((1,), ("RELU relu",)),
        ]
        assert not_asked.receipt.steps[0].kernels == ()

    def test_a_receipt_alone_is_a_trace(self) -> None:
        with penstock.compile(add_relu(), devices=["reference"], cache=False) as compiled:
            trace = compiled(X, X).receipt.trace(compiled.plan)
        (step,) = [e for e in trace["traceEvents"] if e["name"] == "execute step 0"]
        assert step["args"]["operations"] == ["0 ADD sum", "1 RELU relu"]

    def test_trace_names_fused_operations(self) -> None:
        from penstock.testing.lab import LabDevice

        device = LabDevice(mode="staged", uses=1)
        with penstock.compile(one_after_the_other(), devices=[device], cache=False) as compiled:
            first, second = (compiled.run([X], measure=True).receipt for _ in range(2))
        assert [k.names for k in first.steps[0].kernels] == [("ADD sum",), ("RELU relu",)]
        assert [k.names for k in second.steps[0].kernels] == [("ADD sum", "RELU relu")]
        assert "ADD sum + RELU relu" in spans_of(second.trace())


class Timed(NumpyDevice):
    """Says of its kernels what it is given."""

    def __init__(self, name: str, kind: str, operations: Any) -> None:
        super().__init__(name, only=[kind])
        self._operations = operations

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        prepared = super().prepare_model(model, config)
        inner = prepared.execute

        def execute(request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
            inner(request, config)
            return hal.ExecutionResult((), hal.Timing(5, 10, self._operations))

        prepared.execute = execute  # type: ignore[method-assign]  # a driver that times
        return prepared


class TestWhatDriversSay:
    def kernels(self, operations: Any) -> tuple[KernelReceipt, ...]:
        devices = [NumpyDevice("a", only=["ADD"]), Timed("b", "RELU", operations)]
        policy = Policy(placement="nnapi")
        with penstock.compile(add_relu(), devices=devices, cache=False, policy=policy) as compiled:
            steps = compiled.run([X, X], measure=True).receipt.steps
        assert [s.step for s in steps] == [0, 1]
        assert steps[1].driver_ns == 10
        return steps[1].kernels

    def test_kernel_times_name_operations_of_the_plan(self) -> None:
        (kernel,) = self.kernels((hal.OperationTiming((0,), "clamp", 2, 3),))
        assert (kernel.kernel, kernel.operations, kernel.names) == ("clamp", (1,), ("RELU relu",))
        assert kernel.duration_ns == 3

    @pytest.mark.parametrize(
        "nonsense",
        [
            None,
            [hal.OperationTiming((0,), "clamp", 2, 3)],
            ("clamp",),
            (hal.OperationTiming((1,), "beyond", 2, 3),),
            (hal.OperationTiming((-1,), "before", 2, 3),),
            (hal.OperationTiming((0,), "clamp", "soon", 3),),  # type: ignore[arg-type]  # a lie
        ],
    )
    def test_is_left_out_where_it_makes_no_sense(self, nonsense: Any) -> None:
        assert self.kernels(nonsense) == ()


class TestCopies:
    def test_copies_for_a_separate_device_stand_at_boundaries(self) -> None:
        apart = hal.Capabilities(shares_host_memory=False)
        devices = [NumpyDevice("a", only=["ADD"]), NumpyDevice("b", ["RELU"], capabilities=apart)]
        policy = Policy(placement="nnapi")
        with penstock.compile(add_relu(), devices=devices, cache=False, policy=policy) as compiled:
            total, relu = (compiled.model.entry.outputs[i] for i in (1, 0))
            receipt = compiled(X, X).receipt
        assert [(c.source, c.destination, c.step, c.operand, c.nbytes) for c in receipt.copies] == [
            ("host", "b", 1, total, X.nbytes),
            ("b", "host", 1, relu, X.nbytes),
        ]
        assert all(c.start_ns >= receipt.start_ns and c.wall_ns > 0 for c in receipt.copies)
        assert "copy 24 bytes, host -> b at step 1, operand 2" in receipt.show()

    @pytest.mark.parametrize("in_place", [False, True])
    def test_late_writes_of_a_device_reach_no_output(self, in_place: bool) -> None:
        kept: list[Any] = []

        def keep(request: hal.Request, config: hal.ExecutionConfig) -> None:
            kept.extend(
                a.array
                for a in (*request.inputs, *request.outputs)
                if isinstance(a, hal.HostMemory)
            )

        apart = hal.Capabilities(shares_host_memory=False)
        late = NumpyDevice("late", ["RELU"], before=keep, capabilities=apart)
        devices = [NumpyDevice("a", only=["ADD"]), late]
        policy = Policy(placement="nnapi")
        given = [np.empty_like(X), np.empty_like(X)] if in_place else None
        with penstock.compile(add_relu(), devices=devices, cache=False, policy=policy) as compiled:
            outputs = compiled.run([X, X], out=given)
        for array in kept:
            array.flags.writeable = True
            array.fill(99)
        np.testing.assert_array_equal(outputs[0], np.maximum(X + X, 0))
        np.testing.assert_array_equal(outputs[1], X + X)


def test_the_examples_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "receipts.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    with penstock.compile(one_input(), devices=["reference"], cache=False) as compiled:
        names: dict[str, Any] = {"compiled": compiled, "image": X}
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, "receipts.md", "exec"), names)  # our own documentation
    events = json.loads((tmp_path / "out.json").read_text("utf-8"))["traceEvents"]
    assert {"compile", "run"} <= {event["name"] for event in events}


def one_after_the_other() -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    (total,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2, 3), name="sum")])
    (y,) = builder.operation("RELU", [total], [Operand(DType.FLOAT32, (2, 3), name="relu")])
    return builder.build([y])


def one_input() -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    return builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (2, 3))]))
