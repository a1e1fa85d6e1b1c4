"""Chrome traces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.cli.trace import chrome_trace
from penstock.compilation import Receipt, StepReceipt


def test_stages_follow_each_other_and_steps_lie_inside_them() -> None:
    plan: Any = SimpleNamespace(
        operations=[SimpleNamespace(type=t) for t in ("ADD", "MUL", "RELU")]
    )
    compiled = Receipt(
        (StepReceipt("fast", (0, 1), 3000), StepReceipt("slow", (2,), 1000)), 2, (), 4000
    )
    run = Receipt(
        (StepReceipt("fast", (0, 1), 500, 400), StepReceipt("slow", (2,), 700)), 0, (), 1300
    )
    trace = chrome_trace({"load": 10_000, "compile": 5000, "run": 1300}, compiled, run, plan)
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events}
    assert spans["load"] == (0, 10)
    assert spans["compile"] == (10, 15)
    assert spans["run"] == (15, 16.3)
    assert spans["compile step 0"] == (10, 13)
    assert spans["run step 1"] == (15.5, 16.2)
    rows = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert set(rows) == {"runtime", "fast", "slow"}
    assert {e["tid"] for e in events if e["args"].get("device") == "slow"} == {rows["slow"]}
    first = next(e for e in events if e["name"] == "run step 0")
    assert first["args"]["operations"] == ["0 ADD", "1 MUL"]
    assert first["args"]["driver_ns"] == 400
