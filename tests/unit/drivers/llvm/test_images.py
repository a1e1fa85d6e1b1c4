"""Independent images of a batch run one after another, in the code of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.llvm import LlvmDevice, backend
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.hal import ExecutionConfig, PrepareConfig
from penstock.ir import DType, Model, NDArray, infer_shapes
from tests.support_llvm import needs_llvm
from tests.support_threads_llvm import CLASSES, SIZE, network

pytestmark = needs_llvm


def batched(images: int, layers: int = 2) -> Model:
    """`network` for so many images."""
    return infer_shapes(network(layers), {0: (images, *SIZE[1:])})


def prepared(images: int, threads: int, layers: int = 2) -> LlvmPreparedModel:
    config = PrepareConfig(num_threads=threads)
    made = LlvmDevice().prepare_model(batched(images, layers), config)
    assert isinstance(made, LlvmPreparedModel)
    return made


def answer(model: LlvmPreparedModel, array: NDArray) -> NDArray:
    result = np.zeros((len(array), CLASSES), np.float32)
    given, wanted = hal.HostMemory(array), hal.HostMemory(result)
    model.execute(hal.Request((given,), (wanted,)), ExecutionConfig())
    return result


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_image_of_a_batch_is_computed_as_if_alone(threads: int) -> None:
    array = np.random.default_rng(2).standard_normal((5, *SIZE[1:])).astype(np.float32)
    alone, together = prepared(1, 1), prepared(5, threads)
    assert together.executable is not None
    assert together.executable.code.manifest.images == 5
    assert together.cache_report.artefact == "one image, 5 times"
    expected = np.concatenate([answer(alone, array[i : i + 1]) for i in range(5)])
    for _ in range(5):
        assert answer(together, array).tobytes() == expected.tobytes()
    alone.close()
    together.close()


def test_a_measured_batch_has_one_time_for_each_kernel() -> None:
    model = prepared(3, 1)
    array = np.zeros((3, *SIZE[1:]), np.float32)
    result = hal.HostMemory(np.zeros((3, CLASSES), np.float32))
    request = hal.Request((hal.HostMemory(array),), (result,))
    timing = model.execute(request, ExecutionConfig(measure=True)).timing
    measured = [t for t in timing.operations if t.operations]
    assert len(timing.operations) - 1 == len(model.kernels)
    assert sum(t.duration_ns for t in measured) > 0
    model.close()


def test_a_batch_of_another_size_takes_the_same_object_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    compile_object: Callable[..., bytes] = backend.compile_object

    def counted(text: str, *arguments: object) -> bytes:
        compiled.append(text)
        return compile_object(text, *arguments)

    monkeypatch.setattr(backend, "compile_object", counted)
    for images in (6, 7, 8):
        model = prepared(images, 1, layers=5)
        assert answer(model, np.zeros((images, *SIZE[1:]), np.float32)).dtype == DType.FLOAT32.numpy
        model.close()
    assert len(compiled) == 1
