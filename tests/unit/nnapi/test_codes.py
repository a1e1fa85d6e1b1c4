"""NNAPI's numbers, and the result code of every error."""

from __future__ import annotations

import pickle

import pytest

from penstock import errors, hal, nnapi
from penstock.errors import DriverError, ErrorStatus, driver_error_classes
from penstock.nnapi.codes import STATUS_CODES, code_of, translated
from penstock.nnapi.lowering import rules
from penstock.nnapi.lowering.operation import ACTIVATIONS, PADDINGS


def test_result_codes_are_numbered_as_in_the_header() -> None:
    assert [code.value for code in nnapi.ResultCode] == list(range(15))
    assert (nnapi.ResultCode.BAD_DATA.value, nnapi.ResultCode.BAD_STATE.value) == (4, 6)


def test_every_operation_has_a_number_and_a_lowering() -> None:
    assert set(nnapi.OperationCode.__members__) - {"OEM_OPERATION"} == set(rules())
    assert sorted(nnapi.OperationCode) == [*range(106), 10000, 20000]


@pytest.mark.parametrize(("name", "first", "last"), [
    (1, 0, 28), (2, 29, 37), (3, 38, 94), (4, 95, 101), (6, 102, 103), (7, 104, 105)
])  # fmt: skip
def test_operations_are_numbered_by_feature_level(name: int, first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert rules()[nnapi.OperationCode(number).name].level == name


def test_preferences_and_priorities() -> None:
    assert [(p.name.lower(), p.value) for p in nnapi.Preference] == list(
        zip(hal.PREFERENCES, range(3), strict=True)
    )
    assert [(p.name.lower(), p.value) for p in nnapi.Priority] == list(
        zip(hal.PRIORITIES, (90, 100, 110), strict=True)
    )


def test_feature_levels() -> None:
    assert [level.value for level in nnapi.FeatureLevel] == [
        27,
        28,
        29,
        30,
        31,
        1000006,
        1000007,
        1000008,
    ]
    assert nnapi.FeatureLevel.of(1) is nnapi.FeatureLevel.LEVEL_1
    assert nnapi.FeatureLevel.of(9) is nnapi.FeatureLevel.LEVEL_8


def test_types_of_devices_and_codes_of_scalars() -> None:
    assert [kind.value for kind in nnapi.DeviceType] == [0, 1, 2, 3, 4]
    assert [code.name for code in nnapi.FuseCode] == ["NONE", "RELU", "RELU1", "RELU6"]
    assert len(ACTIVATIONS) == len(nnapi.FuseCode)
    assert {code.value: code.name for code in nnapi.PaddingCode} == PADDINGS
    assert nnapi.codes.MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES == 128


def test_every_status_has_a_result_code() -> None:
    assert set(STATUS_CODES) == set(ErrorStatus)


@pytest.mark.parametrize("kind", driver_error_classes().values(), ids=lambda kind: kind.__name__)
def test_driver_errors_keep_their_status(kind: type[DriverError]) -> None:
    expected = {
        ErrorStatus.DEVICE_UNAVAILABLE: nnapi.ResultCode.UNAVAILABLE_DEVICE,
        ErrorStatus.GENERAL_FAILURE: nnapi.ResultCode.OP_FAILED,
        ErrorStatus.INVALID_ARGUMENT: nnapi.ResultCode.BAD_DATA,
    }
    code = code_of(kind("the driver said no"))
    assert code is (expected.get(kind.status) or nnapi.ResultCode[kind.status.name])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidOperand("x"), nnapi.ResultCode.BAD_DATA),
        (errors.InputError("x"), nnapi.ResultCode.BAD_DATA),
        (errors.PlacementError("x"), nnapi.ResultCode.BAD_DATA),
        (errors.StateError("x"), nnapi.ResultCode.BAD_STATE),
        (errors.ClosedError("x"), nnapi.ResultCode.BAD_STATE),
        (errors.Cancelled("x"), nnapi.ResultCode.OP_FAILED),
        (MemoryError(), nnapi.ResultCode.OUT_OF_MEMORY),
    ],
)
def test_errors_of_other_kinds(error: errors.PenstockError, code: nnapi.ResultCode) -> None:
    with pytest.raises(nnapi.NnapiError) as caught, translated():
        raise error
    assert caught.value.code is code
    assert caught.value.message
    assert caught.value.__cause__ is error


def test_an_nnapi_error_is_translated_once_and_pickles() -> None:
    first = nnapi.NnapiError(nnapi.ResultCode.UNMAPPABLE, "no memory there")
    with pytest.raises(nnapi.NnapiError) as caught, translated():
        raise first
    assert caught.value is first
    again = pickle.loads(pickle.dumps(first))  # noqa: TID251  # our own bytes
    assert (again.code, str(again)) == (first.code, "UNMAPPABLE: no memory there")
