"""The one device of a plan needs no rule: it gets what every rule would give it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import PlacementError
from penstock.ir import Model
from penstock.partitioning import ExecutionPlan, Policy, place, placement
from penstock.partitioning.policy import PlacementRule
from tests.support_devices import NumpyDevice
from tests.support_graphs import random_case


def placed(model: Model, device: NumpyDevice, policy: Policy, **more: Any) -> ExecutionPlan | str:
    try:
        return place(model, [device], policy, **more)
    except PlacementError as error:
        return str(error)


@pytest.mark.parametrize("rule", ["cost", "nnapi"])
@pytest.mark.parametrize("name", ["reference", "other"])
def test_single_device_gets_the_plan_of_every_rule(
    rule: PlacementRule, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = placement._on_the_only_one
    used = 0
    for seed in range(60):
        model = random_case(seed).model
        device = NumpyDevice(name, {"ADD"}) if seed % 5 == 0 else NumpyDevice(name)
        policy = Policy(
            placement=rule,
            min_partition_size=1 + seed % 7,
            max_partitions=None if seed % 2 else 1,
            min_coverage=(seed % 3) / 2,
        )
        preference = "low_power" if seed % 4 == 3 else "fast_single_answer"
        answers = []
        for way in (skipped, lambda *_: None):
            monkeypatch.setattr(placement, "_on_the_only_one", way)
            answers.append(placed(model, device, policy, preference=preference))
        assert answers[0] == answers[1], seed
        used += isinstance(answers[0], ExecutionPlan)
    assert used > 10
