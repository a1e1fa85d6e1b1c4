"""The partition stage: pure functions from model, devices and policy to a plan."""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.partitioning.placement import place
    from penstock.partitioning.placements import Placement
    from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
    from penstock.partitioning.policy import Policy

__all__ = ["ExecutionPlan", "ExecutionStep", "Placement", "Policy", "place"]

__getattr__ = lazily(
    __name__,
    {
        "placement": "place",
        "placements": "Placement",
        "plan": "ExecutionPlan ExecutionStep",
        "policy": "Policy",
    },
)
