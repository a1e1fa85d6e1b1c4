"""Stages of a compile: of devices in this process, behind messages, and without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal.stages import check_stage, dump, explanations, stages_of
from penstock.ir import Model
from penstock.testing.contract.cases import every_case
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.loopback import LoopbackDevice
from tests.support_devices import NumpyDevice

MODEL = every_case()[0].model
PLAIN = hal.PrepareConfig()


class Staged(NumpyDevice):
    """Prints two stages."""

    stages: tuple[str, ...] = ("cut", "sewn")

    def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> str:
        return f"{stage}: {len(model.operations)} operations"

    def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
        return [f"by hand, {operation.key}" for operation in model.operations]


def device(stages: tuple[str, ...] = ("cut", "sewn")) -> Staged:
    made = Staged("tailor")
    made.stages = stages
    return made


@pytest.mark.parametrize("wrap", [lambda d: d, LoopbackDevice], ids=["here", "behind-messages"])
def test_stage_is_printed(wrap: Any) -> None:
    printer = wrap(device())
    assert stages_of(printer) == ("cut", "sewn")
    text = dump(printer, MODEL, PLAIN, "sewn")
    assert text == f"sewn: {len(MODEL.operations)} operations"


@pytest.mark.parametrize("wrap", [lambda d: d, LoopbackDevice], ids=["here", "behind-messages"])
def test_unknown_stage_is_refused_with_the_known_ones(wrap: Any) -> None:
    printer = wrap(device())
    with pytest.raises(InvalidArgument, match="no stage 'lunch'; its stages are cut, sewn"):
        dump(printer, MODEL, PLAIN, "lunch")


def test_unknown_stage_of_a_message_is_refused_by_the_device_side() -> None:
    remote = LoopbackDevice(device())
    with pytest.raises(InvalidArgument, match="no stage 'lunch'; its stages are cut, sewn"):
        remote.dump(MODEL, PLAIN, "lunch")


@pytest.mark.parametrize("wrap", [lambda d: d, LoopbackDevice], ids=["here", "behind-messages"])
def test_device_without_stages_is_refused_by_name(wrap: Any) -> None:
    plain = wrap(NumpyDevice("plain"))
    assert stages_of(plain) == ()
    with pytest.raises(GeneralFailure, match="device 'plain' prints no stages"):
        check_stage(plain, "cut")


@pytest.mark.parametrize("wrap", [lambda d: d, LoopbackDevice], ids=["here", "behind-messages"])
def test_operations_are_explained(wrap: Any) -> None:
    wanted = tuple(f"by hand, {operation.key}" for operation in MODEL.operations)
    assert explanations(wrap(device()), MODEL, PLAIN) == wanted
    assert explanations(wrap(NumpyDevice("plain")), MODEL, PLAIN) == ()


def test_explanations_of_other_operations_are_refused() -> None:
    class Short(Staged):
        def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
            return ["by hand"] * (len(model.operations) + 1)

    with pytest.raises(GeneralFailure, match="'short' explains"):
        explanations(Short("short"), MODEL, PLAIN)


def test_stages_that_are_not_text_are_refused() -> None:
    class Odd(Staged):
        def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> Any:
            return b"bytes"

    with pytest.raises(GeneralFailure, match="'odd' dumps bytes instead of text"):
        dump(Odd("odd"), MODEL, PLAIN, "cut")


def test_name_of_a_stage_that_cannot_be_printed_ends_the_connection() -> None:
    with pytest.raises(GeneralFailure, match="a device's capability is up to"):
        LoopbackDevice(device(("cut\n",)))


def test_double_around_a_device_prints_no_stages() -> None:
    assert stages_of(InterceptingDevice(device())) == ()
