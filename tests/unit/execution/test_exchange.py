"""Arrays of other libraries: by DLPack or the buffer protocol, as inputs and in `out=`; what is
read-only is not written.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import InputError
from penstock.ir import DType, ModelBuilder
from penstock.testing import assert_no_copies

F32 = DType.FLOAT32


class Foreign:
    """An array that knows DLPack alone."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Elsewhere(Foreign):
    """One in memory that the host does not see."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it lies on a device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.fixture(scope="module")
def compiled() -> Iterator[penstock.CompiledModel]:
    b = ModelBuilder()
    x = b.input(F32, (4,), "x")
    model = b.build(b.operation("RELU", [x], [(F32, (4,))]))
    with penstock.compile(model, devices=["reference"], cache=None) as made:
        yield made


def values() -> Any:
    return np.array([-1, 2, -3, 4], np.float32)


def test_dlpack_comes_in_and_is_written_where_it_lies(compiled: penstock.CompiledModel) -> None:
    x, y = Foreign(values()), Foreign(np.zeros(4, np.float32))
    with assert_no_copies():
        outputs = compiled.run([x], out=[y])
    assert y.values.tolist() == [0, 2, 0, 4]
    assert np.shares_memory(outputs[0], y.values)


def test_buffers_come_in_and_are_written_where_they_lie(compiled: penstock.CompiledModel) -> None:
    x, y = array.array("f", values()), array.array("f", [0] * 4)
    with assert_no_copies():
        compiled.run([x], out=[y])
        compiled.run({"x": memoryview(x)}, out={"": memoryview(y)})
    assert y.tolist() == [0, 2, 0, 4]


def test_read_only_arrays_are_inputs_only(compiled: penstock.CompiledModel) -> None:
    fixed = values()
    fixed.flags.writeable = False
    with assert_no_copies():
        assert compiled(Foreign(fixed))[0].tolist() == [0, 2, 0, 4]
    for target in (Foreign(fixed), memoryview(fixed), bytes(16)):
        with pytest.raises(InputError, match="must be a writable C-contiguous float32 array"):
            compiled.run([values()], out=[target])
    with pytest.raises(InputError, match="not read-only float32"):
        compiled.run([values()], out=[fixed])
    assert fixed.tolist() == values().tolist()


@pytest.mark.parametrize("device", ["reference", "xnnpack"])
def test_device_buffers_copy_to_and_from_foreign_arrays(device: str) -> None:
    """Each copy of the value stands beside the buffer, whether it is on the device or in a pool."""
    if device == "xnnpack" and find_spec("ai_edge_litert") is None:
        pytest.skip("LiteRT is not installed")
    b = ModelBuilder()
    model = b.build(b.operation("RELU", [b.input(F32, (4,), "x")], [(F32, (4,))]))
    fixed = values()
    fixed.flags.writeable = False
    with (
        penstock.compile(model, devices=[device], cache=None) as compiled,
        compiled.allocate(inputs=["x"]) as buffer,
    ):
        source: Any
        target: Any
        for source in (Foreign(fixed), array.array("f", fixed), memoryview(fixed)):
            buffer.copy_from(np.zeros(4, np.float32))
            buffer.copy_from(source)
            assert {copy.nbytes for copy in buffer.copies} == {16}
            for target in (Foreign(np.zeros(4, np.float32)), array.array("f", [0] * 4)):
                buffer.copy_to(target)
                held = target.values if isinstance(target, Foreign) else target
                assert held.tolist() == fixed.tolist()
        for target in (Foreign(fixed), memoryview(fixed), bytes(16)):
            with pytest.raises(InputError):
                buffer.copy_to(target)
        for source in (Elsewhere(fixed), bytes(16), [1, 2]):
            with pytest.raises(InputError):
                buffer.copy_from(source)
        assert buffer.numpy().tolist() == values().tolist()


def test_memory_elsewhere_is_refused(compiled: penstock.CompiledModel) -> None:
    with pytest.raises(InputError, match="Elsewhere"):
        compiled(Elsewhere(values()))
    with pytest.raises(InputError, match="not Elsewhere"):
        compiled.run([values()], out=[Elsewhere(values())])


def test_memory_that_is_shared_is_found_out(compiled: penstock.CompiledModel) -> None:
    x = values()
    with pytest.raises(InputError, match="shares memory with an input"):
        compiled.run([x], out=[Foreign(x)])
