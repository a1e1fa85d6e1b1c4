"""The partition stage: pure functions from model, devices and policy to a plan."""

from penstock.partitioning.placement import place
from penstock.partitioning.placements import Placement
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.partitioning.policy import Policy

__all__ = ["ExecutionPlan", "ExecutionStep", "Placement", "Policy", "place"]
