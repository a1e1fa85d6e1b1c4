"""Independent images of a batch run one after another, in the code of one part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.llvm import LlvmDevice, backend
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.hal import ExecutionConfig, PrepareConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray, infer_shapes
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
    assert together.cache_report.artefact == "one part of the batch, 5 times"
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


@pytest.mark.parametrize(("images", "parts"), [(32, 2), (12, 1), (19, 1)])
def test_fully_connected_layers_take_rows_together(images: int, parts: int) -> None:
    random = np.random.default_rng(3)
    weights = random.standard_normal((24, 40)).astype(np.float32)
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (images, 40), "x")
    given = [x, builder.constant(weights)]
    model = builder.build(
        builder.operation("FULLY_CONNECTED", given, [(DType.FLOAT32, (images, 24))])
    )
    made = LlvmDevice().prepare_model(model, PrepareConfig(num_threads=1))
    assert isinstance(made, LlvmPreparedModel)
    assert made.executable is not None
    assert made.executable.code.manifest.images == parts
    array, result = random.random((images, 40), np.float32), np.zeros((images, 24), np.float32)
    request = hal.Request((hal.HostMemory(array),), (hal.HostMemory(result),))
    made.execute(request, ExecutionConfig())
    np.testing.assert_allclose(result, array @ weights.T, rtol=1e-5, atol=1e-5)
    made.close()
