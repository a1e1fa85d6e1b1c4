"""Files that ask for more memory than inputs and outputs may take."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import knobs, tflite
from penstock.errors import LimitExceeded
from tests.unit.loaders.files import FileBuilder
from tests.unit.tflite import models

MIB = 1 << 20


def opened(content: bytes) -> tflite.Interpreter:
    return tflite.Interpreter(model_content=content)


def wide(*shape: int, dtype: str = "FLOAT32", inputs: int = 1) -> bytes:
    """Its inputs, of one shape, are its outputs: nothing is computed."""
    file = FileBuilder()
    listed = [file.tensor(f"x{i}", shape, dtype) for i in range(inputs)]
    return file.finish(listed, listed)


@pytest.mark.parametrize(
    "content", [wide(MIB), wide(MIB, dtype="STRING"), wide(MIB // 4, inputs=4)]
)
def test_allocation_refuses_tensors_beyond_the_limit(content: bytes) -> None:
    interpreter = opened(content)
    with (
        knobs.override(tensor_limit_mib=3),
        pytest.raises(
            RuntimeError, match=r"inputs and outputs takes \d+ bytes.*tensor_limit_mib"
        ) as caught,
    ):
        interpreter.allocate_tensors()
    assert isinstance(caught.value.__cause__, LimitExceeded)
    with knobs.override(tensor_limit_mib=8):
        interpreter.allocate_tensors()


def test_a_resized_input_is_refused_and_can_be_undone() -> None:
    with knobs.override(tensor_limit_mib=1):
        interpreter = opened(models.chain())
        interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [MIB, 2])
        with pytest.raises(RuntimeError, match="tensor_limit_mib"):
            interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [1, 2])
        interpreter.allocate_tensors()


def test_strings_that_are_set_before_allocation() -> None:
    interpreter = opened(wide(MIB, dtype="STRING"))
    text = np.broadcast_to(np.array(b"", object), (MIB,))
    with knobs.override(tensor_limit_mib=3), pytest.raises(ValueError, match="tensor_limit_mib"):
        interpreter.set_tensor(0, text)


@pytest.mark.parametrize("seed", range(40))
def test_files_with_shapes_of_any_size_run_or_are_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    file = FileBuilder()
    shape = [int(2 ** random.uniform(0, 16)) for _ in range(2)]
    x, z, y, s = (
        file.tensor(n, d) for n, d in zip("xzys", (shape, [1, 1], shape, shape), strict=True)
    )
    file.operator("ADD", [x, z], [y], {})
    file.operator("SQRT", [y], [s])
    interpreter = opened(file.finish([x, z], [y, s]))
    needed = 4 * (3 * shape[0] * shape[1] + 1)
    with knobs.override(tensor_limit_mib=4):
        if needed > 4 * MIB:
            with pytest.raises(RuntimeError, match="tensor_limit_mib"):
                interpreter.allocate_tensors()
            return
        interpreter.allocate_tensors()
        details = interpreter.get_input_details()
        for detail in details:
            interpreter.set_tensor(detail["index"], np.ones(detail["shape"], np.float32))
        interpreter.invoke()
    assert (interpreter.get_tensor(s) == np.sqrt(np.float32(2))).all()


def test_a_machine_has_a_bound_of_its_own() -> None:
    with knobs.override(max_run_mib=1 << 30), pytest.raises(RuntimeError, match="tensor_limit_mib"):
        opened(wide(1 << 30, 1 << 7)).allocate_tensors()
