"""A plan as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from penstock.partitioning.plan import Control, ExecutionPlan


def plan_to_json(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.to_json`."""
    return msgspec.json.encode(_content(plan)).decode()


def _content(plan: ExecutionPlan) -> dict[str, Any]:
    return {
        "devices": plan.devices,
        "steps": [
            {
                "index": step.index,
                "device": step.device,
                "operations": step.operations,
                "inputs": step.inputs,
                "outputs": step.outputs,
                "fallbacks": step.fallbacks,
                "no_fallback": step.no_fallback,
                "predicted_ns": step.predicted_ns,
                "control": _control(step.control),
            }
            for step in plan.steps
        ],
        "operations": [
            {
                "index": placement.index,
                "type": placement.type,
                "name": placement.name,
                "device": placement.device,
                "accuracy": placement.accuracy,
                "reasons": dict(placement.reasons),
                "codes": {name: why.code for name, why in placement.refusals.items()},
            }
            for placement in plan.operations
        ],
        "forwards": plan.forwards,
        "temporaries": {
            "nbytes": plan.temporaries.nbytes,
            "alignment": plan.temporaries.alignment,
            "offsets": {str(key): place for key, place in plan.temporaries.offsets.items()},
            "dynamic": plan.temporaries.dynamic,
        },
        "predicted_ns": plan.predicted_ns,
        "predicted_energy": plan.predicted_energy,
        "alternatives": plan.alternatives,
        "tuned": plan.tuned,
        "accuracy": plan.accuracy,
        "doubts": dict(plan.doubts),
        "apart": dict(plan.apart),
    }


def _control(control: Control | None) -> dict[str, Any] | None:
    if control is None:
        return None
    return {"kind": control.kind, "branches": [_content(branch) for branch in control.branches]}
