"""The error tree and the HAL's statuses are one to one."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from penstock import errors
from penstock.errors import (
    DelegateError,
    DriverError,
    ErrorStatus,
    InvalidQuantization,
    ModelError,
    OutputInsufficientSize,
    PenstockError,
    Place,
    PlacementError,
    driver_error_classes,
)
from penstock.faults import Fault, FaultCode

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, PenstockError)
]


def made(kind: type[PenstockError]) -> PenstockError:
    return kind("it", "prepare") if kind is DelegateError else kind("what went wrong")


def test_every_status_but_none_has_exactly_one_class() -> None:
    table = driver_error_classes()
    assert set(table) == set(ErrorStatus) - {ErrorStatus.NONE}
    assert len(set(table.values())) == len(table)
    assert all(kind.status is status for status, kind in table.items())


def test_every_class_with_a_status_stands_in_the_table() -> None:
    with_status = {c for c in CLASSES if issubclass(c, DriverError) and "status" in vars(c)}
    assert with_status == set(driver_error_classes().values())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_error_pickles_as_itself(kind: type[PenstockError]) -> None:
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))  # noqa: TID251  # our own bytes
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_a_sentence_of_documentation_and_stands_in_the_tree(
    kind: type[PenstockError],
) -> None:
    assert kind.__doc__
    assert kind.__doc__.strip().endswith((".", ")"))
    assert errors.__doc__
    assert re.search(rf"\b{kind.__name__}\b", errors.__doc__)


def test_errors_are_what_python_calls_them() -> None:
    for name, base in (
        ("ModelError", ValueError),
        ("InputError", ValueError),
        ("MissedDeadlineTransient", TimeoutError),
        ("MissedDeadlinePersistent", TimeoutError),
        ("ResourceExhaustedTransient", MemoryError),
        ("ResourceExhaustedPersistent", MemoryError),
    ):
        assert issubclass(getattr(errors, name), base)


def test_a_model_error_names_its_place() -> None:
    assert str(ModelError("is wrong")) == "is wrong"
    assert str(ModelError("is wrong", where="operation 3")) == "operation 3: is wrong"
    assert str(ModelError("is wrong", offset=12)) == "file at byte 12: is wrong"
    error = ModelError("is wrong", where="operation 3", offset=12)
    assert str(error) == "operation 3 at byte 12: is wrong"
    assert (error.message, error.offset) == ("is wrong", 12)
    assert error.where == Place(text="operation 3")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(0), "subgraph 0"),
        (Place(1, 3, type="ADD"), "subgraph 1, operation 3 (ADD)"),
        (Place(0, 3, type="ADD", name="sum"), "subgraph 0, operation 3 (ADD 'sum')"),
        (Place(0, operator=2, type="CUSTOM"), "subgraph 0, operator 2 (CUSTOM)"),
        (Place(0, operand=0, name="x"), "subgraph 0, operand 0 (x)"),
        (Place(0, tensor=7), "subgraph 0, tensor 7"),
        (Place(operation=0, type="ADD", text="main"), "main, operation 0 (ADD)"),
    ],
)
def test_a_place_has_words_for_what_is_known(place: Place, words: str) -> None:
    assert str(place) == words
    assert str(ModelError("is wrong", where=place)) == f"{words}: is wrong"


def test_a_model_error_keeps_its_fault_at_another_place() -> None:
    fault = Fault(FaultCode.ZERO_POINT_COUNT, scales=3, zero_points=2)
    error = InvalidQuantization(fault).at(Place(0, tensor=1))
    assert str(error) == "subgraph 0, tensor 1: 3 scales and 2 zero points"
    again = pickle.loads(pickle.dumps(error))  # noqa: TID251  # our own bytes
    for each in (error, again):
        assert isinstance(each, InvalidQuantization)
        assert each.fault == fault
        assert each.fault.facts == {"scales": 3, "zero_points": 2}
        assert each.where == Place(0, tensor=1)


def test_every_fault_has_words_for_its_facts() -> None:
    for code in FaultCode:
        facts = dict.fromkeys(re.findall(r"{(\w+)}", code.value), 7)
        assert str(Fault(code, **facts)).count("7") == len(facts)


def test_a_placement_error_lists_reasons() -> None:
    error = PlacementError("no device runs ADD", {"sample": "no int8", "null": "not asked"})
    assert str(error) == "no device runs ADD\n  sample: no int8\n  null: not asked"
    assert error.reasons == {"sample": "no int8", "null": "not asked"}


def test_insufficient_outputs_carry_their_shapes() -> None:
    error = OutputInsufficientSize("small", [((2, 3), False)])
    assert error.output_shapes == (((2, 3), False),)
    assert OutputInsufficientSize("small").output_shapes == ()
