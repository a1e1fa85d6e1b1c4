"""The extension through `penstock.nnapi`, in this process and behind messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from penstock_example import create, fixed

from penstock import nnapi
from penstock.hal import Device
from penstock.testing.loopback import LoopbackDevice

GIVEN = np.array([1.5, -2.7, 0.3, 1e30, -1e30, np.nan], np.float32)


@pytest.fixture(params=[lambda device: device, LoopbackDevice], ids=["plain", "encoded"])
def device(request: pytest.FixtureRequest) -> Device:
    wrap: Callable[[Device], Device] = request.param
    found = wrap(create())
    nnapi.register_extensions(found)
    return found


def model_of(data: bytes = fixed.fraction_bits(8), count: int = len(GIVEN)) -> nnapi.Model:
    """float32 to FIXED_TENSOR and back; both are outputs."""
    model = nnapi.Model()
    x = model.add_operand(nnapi.OperandType.TENSOR_FLOAT32, (len(GIVEN),))
    kind = model.get_extension_operand_type(fixed.NAME, fixed.FIXED_TENSOR)
    y = model.add_operand(kind, (count,))
    model.set_operand_extension_data(y, data)
    z = model.add_operand(nnapi.OperandType.TENSOR_FLOAT32, (count,))
    for code, given, made in ((fixed.TO_FIXED, x, y), (fixed.TO_FLOAT, y, z)):
        operation = model.get_extension_operation_type(fixed.NAME, code)
        model.add_operation(operation, [given], [made])
    model.identify_inputs_and_outputs([x], [y, z])
    model.finish()
    return model


def run(compilation: nnapi.Compilation) -> tuple[list[int], list[float]]:
    numbers, floats = np.zeros(len(GIVEN), np.int64), np.zeros(len(GIVEN), np.float32)
    with nnapi.Execution(compilation) as execution:
        execution.set_input(0, GIVEN)
        execution.set_output(0, numbers)
        execution.set_output(1, floats)
        execution.compute()
    return numbers.tolist(), floats.tolist()


@pytest.mark.parametrize(
    ("rounding", "second"), [(None, -691), (b"down", -692), (b"nonsense", -691)]
)
def test_numbers_are_rounded_as_the_attribute_says(
    rounding: bytes | None, second: int, device: Device
) -> None:
    with nnapi.Compilation.create_for_devices(model_of(), [device]) as compilation:
        if rounding is not None:
            compilation.add_extension_attribute(fixed.NAME, fixed.ROUNDING, rounding)
        compilation.finish()
        numbers, floats = run(compilation)
    third = 76 if rounding == b"down" else 77
    assert numbers == [384, second, third, 1 << 62, -(1 << 62), 0]
    assert floats[:3] == [1.5, second / 256, third / 256]


@pytest.mark.parametrize(
    "model",
    [
        lambda: model_of(b"abc"),
        lambda: model_of(fixed.fraction_bits(53)),
        lambda: model_of(b"nonsense"),
        lambda: model_of(count=2),
    ],
)
def test_what_makes_no_sense_is_refused(model: Callable[[], nnapi.Model], device: Device) -> None:
    made = model()
    assert made.get_supported_operations_for_devices([device])[0] is False
    with (
        nnapi.Compilation.create_for_devices(made, [device]) as compilation,
        pytest.raises(nnapi.NnapiError, match="BAD_DATA"),
    ):
        compilation.finish()


@pytest.mark.usefixtures("device")
def test_other_devices_leave_it_alone() -> None:
    assert model_of().get_supported_operations_for_devices(["reference"]) == [False, False]
