"""Clients of one host that prepare the same have it once, and cannot tell."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ClosedError
from penstock.hal import PrepareConfig
from penstock.ipc.device_sharing import ClientDevice, SharingDevice
from penstock.testing.contract.cases import every_case
from tests.unit.ipc.slow import SlowDevice, SlowPreparedModel, slow_model


class Counting(SlowDevice):
    """Counts what it prepares and what is closed."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0

    def prepare_model(self, model: Any, config: PrepareConfig) -> SlowPreparedModel:
        self.made += 1
        device = self

        class Prepared(SlowPreparedModel):
            def close(self) -> None:
                device.closed += 1

        return Prepared(model)


def test_equal_preparations_are_one_and_closed_by_the_last() -> None:
    device = Counting()
    shared = SharingDevice(device)
    assert shared.name == "slow"
    first, second = (shared.prepare_model(slow_model(), PrepareConfig()) for _ in range(2))
    assert device.made == 1
    assert first is not second
    first.close()
    first.close()
    assert device.closed == 0
    with pytest.raises(ClosedError):
        first.configure_burst()
    second.configure_burst().close()
    second.close()
    assert device.closed == 1
    shared.prepare_model(slow_model(), PrepareConfig()).close()
    assert (device.made, device.closed) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [
        PrepareConfig(accuracy="exact"),
        PrepareConfig(num_threads=2),
        PrepareConfig(preference="low_power"),
        PrepareConfig(priority="high"),
        PrepareConfig(options=(("a", "b"),)),
    ],
    ids=str,
)
def test_other_configurations_prepare_anew(other: PrepareConfig) -> None:
    device = Counting()
    shared = SharingDevice(device)
    one, two = (
        shared.prepare_model(slow_model(), PrepareConfig()),
        shared.prepare_model(slow_model(), other),
    )
    assert device.made == 2
    one.close()
    two.close()
    assert device.closed == 2


def test_other_models_prepare_anew() -> None:
    device = Counting()
    shared = SharingDevice(device)
    for case in every_case()[:4]:
        shared.prepare_model(case.model, PrepareConfig())
    assert device.made == 4


def test_client_that_prepares_twice_gets_two_models() -> None:
    device = Counting()
    shared = SharingDevice(device)
    one, other = ClientDevice(shared), ClientDevice(shared)
    first, again = (one.prepare_model(slow_model(), PrepareConfig()) for _ in range(2))
    assert first.inner is not again.inner
    assert other.prepare_model(slow_model(), PrepareConfig()).inner is first.inner
    first.close()
    assert one.prepare_model(slow_model(), PrepareConfig()).inner is first.entry.prepared
    assert device.made == 2
