"""A refusal has a code, and no decision reads its words."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest

import penstock
from penstock import errors
from penstock.compilation.step_receipt import Failure
from penstock.execution.availability import lists_unavailable, refuse_unavailable, unanswered
from penstock.hal import Support
from penstock.ir import Model
from penstock.partitioning import Policy, place
from penstock.partitioning.greedy import laxer_class
from penstock.partitioning.support import collect_support
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32
from tests.unit.partitioning.models import chain


class Saying(NumpyDevice):
    """Refuses every operation with the words *said*."""

    def __init__(self, name: str, said: str) -> None:
        super().__init__(name)
        self.said = said

    def supported_operations(self, model: Model) -> list[Support]:
        return [Support(False, self.said) for _ in model.operations]


class Raising(NumpyDevice):
    """Raises *error* when it is asked."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.error = error

    def supported_operations(self, model: Model) -> list[Support]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "absent"),
    [
        (errors.DeadObject("gone"), True),
        (errors.MissedDeadlineTransient("late"), True),
        (errors.MissedDeadlinePersistent("late"), True),
        (errors.GeneralFailure("DeadObject: gone"), False),
        (ValueError("no"), False),
    ],
)
def test_a_device_is_absent_by_the_status_of_its_error(error: Exception, absent: bool) -> None:
    table = collect_support(chain(["ADD"]), [Raising("lab", error)], Policy())
    refusals = table.refusals(0)
    status = error.status if isinstance(error, errors.DriverError) else None
    detail = f"{type(error).__name__}: {error}"
    assert refusals == {"lab": errors.Refusal(errors.RefusalCode.NO_ANSWER, detail, status)}
    assert str(refusals["lab"]) == f"cannot be asked: {detail}"
    assert lists_unavailable(refusals) is absent


def test_a_refusal_in_the_words_of_an_absent_process_is_a_refusal() -> None:
    words = "cannot be asked: DeadObject: its process died"
    plan = place(chain(["ADD"]), [Saying("saying", words), NumpyDevice("both")])
    assert plan.operations[0].reasons == {"saying": words}
    assert not lists_unavailable(plan.operations[0].refusals)
    assert unanswered(plan) == {}
    refuse_unavailable(plan)


def test_a_refusal_in_the_words_of_the_policy_asks_for_no_laxer_class() -> None:
    words = "its accuracy there is relaxed; the policy asks for exact"
    table = collect_support(chain(["ADD"]), [Saying("saying", words)], Policy())
    assert laxer_class(table, [0]) == ""


def no_device(model: Model) -> Sequence[str]:
    with pytest.raises(errors.PlacementError) as caught:
        place(model, [Saying("saying", "no")])
    again = copy.copy(caught.value)
    assert again.refusals == caught.value.refusals
    return [why.code.value for why in again.refusals.values()]


def given_words(model: Model) -> Sequence[str]:
    error = errors.PlacementError("no", {"lab": "no room"})
    assert error.refusals == {"lab": errors.Refusal(errors.RefusalCode.OTHER, "no room")}
    return [why.code.value for why in error.refusals.values()]


@pytest.mark.parametrize(("act", "codes"), [(no_device, ["unsupported"]), (given_words, ["other"])])
def test_an_error_of_placement_has_codes(
    act: Callable[[Model], Sequence[str]], codes: Sequence[str]
) -> None:
    assert act(chain(["ADD"])) == codes


def test_the_json_of_a_plan_has_the_codes() -> None:
    devices = [NumpyDevice("adder", ["ADD"]), NumpyDevice("reference")]
    plan = place(chain(["ADD", "RELU"]), devices)
    told = json.loads(plan.to_json())["operations"]
    assert [o["codes"].keys() == o["reasons"].keys() for o in told] == [True, True]
    assert told[1]["codes"] == {"adder": "unsupported"}


class DeadObjectOfMine(errors.GeneralFailure):
    """Is named like the death of a process, and is none."""


def test_a_failure_is_an_absence_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise DeadObjectOfMine("no room")

    devices = [NumpyDevice("first"), NumpyDevice("second")]
    monkeypatch.setattr(devices[0], "prepare_model", refuse)
    one = f32([[1, 2, 3]] * 2)
    with penstock.compile(add_relu(), devices=devices, cache=False) as made:
        (failure,) = made.receipt.steps[0].failures
        assert failure == Failure(
            "first", "DeadObjectOfMine: no room", errors.ErrorStatus.GENERAL_FAILURE
        )
        assert made(one, one).receipt.steps[0].failures == ()
