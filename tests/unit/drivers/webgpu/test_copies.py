"""The copies that runs of the driver `webgpu` report, and memory that the host maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.drivers.webgpu import running
from penstock.drivers.webgpu.mapped import Mapped
from penstock.drivers.webgpu.running import Run
from penstock.errors import GeneralFailure
from penstock.ir import DType, ModelBuilder, NDArray, Operand
from tests.support_webgpu import needs_webgpu, software
from tests.unit.drivers.webgpu.test_values import SHAPE, Domain, U, V, content, model

F32 = DType.FLOAT32


def listed(copies: Sequence[hal.ArgumentCopy]) -> list[tuple[int, bool, int, bool]]:
    return [(c.argument, c.out, c.nbytes, c.by_driver) for c in copies]


@needs_webgpu
def test_error_of_a_failed_run_lists_the_copies_that_were_made() -> None:
    domain = Domain()
    failure = GeneralFailure("a test")
    with patch.object(Run, "_perform", side_effect=failure), pytest.raises(GeneralFailure) as error:
        domain.execute([U, V], [np.empty(SHAPE, np.float32)])
    uploads = [(at, False, U.nbytes, True) for at in (0, 1)]
    assert listed(error.value.copies) == uploads
    request = hal.Request(
        (hal.HostMemory(U), hal.HostMemory(V)), (hal.HostMemory(np.empty(SHAPE, np.float32)),)
    )
    with patch.object(Run, "_perform", side_effect=GeneralFailure("a test")):
        fence = domain.prepared.execute_fenced(request, [], hal.ExecutionConfig())
    assert isinstance(fence.error(), GeneralFailure)
    assert listed(fence.copies) == uploads


@needs_webgpu
def test_copies_of_a_failed_run_count_forwarded_outputs() -> None:
    builder = ModelBuilder()
    u, v = (builder.input(F32, SHAPE, name) for name in "uv")
    added = builder.operation("ADD", [u, v], [Operand(F32, SHAPE, name="y")])
    domain = Domain(builder.build([u, *added]))
    outputs: list[NDArray | int] = [np.empty(SHAPE, np.float32) for _ in range(2)]

    def download(run: Run, given: Any, copies: list[hal.ArgumentCopy]) -> None:
        copies.append(hal.ArgumentCopy(0, True, 4, 0, 0, by_driver=True))
        raise GeneralFailure("a test")

    with patch.object(Run, "download", download), pytest.raises(GeneralFailure) as error:
        domain.execute([U, V], outputs)
    uploads = [(at, False, U.nbytes, True) for at in (0, 1)]
    assert listed(error.value.copies) == [*uploads, (1, True, 4, True)]


@needs_webgpu
def test_receipt_has_the_copies_of_a_failed_run_before_those_of_the_fallback() -> None:
    with penstock.compile(model(), devices=[software()], cache=False) as compiled:
        with patch.object(Run, "_perform", side_effect=GeneralFailure("a test")):
            outputs = compiled.run([U, V])
        assert np.array_equal(outputs[0], U + V)
        (step,) = outputs.receipt.steps
        assert step.device == "reference"
        assert [(c.nbytes, c.destination) for c in outputs.receipt.copies] == [
            (U.nbytes, "webgpu-software"),
            (V.nbytes, "webgpu-software"),
        ]


LARGE: Any = (1 << 16,)


def large(dtype: DType = F32) -> Any:
    builder = ModelBuilder()
    u, v = (builder.input(dtype, LARGE, name) for name in "uv")
    return builder.build(builder.operation("ADD", [u, v], [Operand(dtype, LARGE, name="y")]))


@needs_webgpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_large_arrays_go_through_memory_that_the_host_maps(
    dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAST_MAPPED", 1 << 16)
    domain = Domain(large(DType(np.dtype(dtype).name)))
    gpu = domain.prepared.executable.code.gpu
    assert gpu.shares_memory
    rng = np.random.default_rng(1)
    writes = list[int]()
    write = gpu.device.queue.write_buffer
    for shares in (True, False, True, True):
        gpu.shares_memory = shares
        u, v = (rng.normal(0, 1, LARGE).astype(dtype) for _ in "uv")
        output = np.empty(LARGE, dtype)
        request = hal.Request((hal.HostMemory(u), hal.HostMemory(v)), (hal.HostMemory(output),))
        with patch.object(gpu.device.queue, "write_buffer", wraps=write) as written:
            copies = domain.prepared.execute(request, hal.ExecutionConfig()).copies
        writes.append(written.call_count)
        assert np.array_equal(output, u + v)
        assert listed(copies) == [
            (at, out, u.nbytes, True) for at, out in ((0, False), (1, False), (0, True))
        ]
    assert writes == [0, 2, 0, 0]


@needs_webgpu
def test_arrays_that_are_mapped_and_device_buffers_serve_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "LEAST_MAPPED", 1)
    domain = Domain()
    domain.prepared.executable.code.gpu.shares_memory = True
    v, _ = domain.written(V, ("input", 1))
    y, result = domain.allocate(("output", 0))
    output = np.empty(SHAPE, np.float32)
    for given in (U, U + 1, U + 2):
        domain.execute([given, v], [output])
        assert np.array_equal(output, given + V)
        domain.execute([given, V], [y])
        assert np.array_equal(content(result), given + V)


@needs_webgpu
def test_run_that_ends_with_its_submit_waits_for_no_mapped_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "LEAST_MAPPED", 1)
    domain = Domain()
    y, result = domain.allocate(("output", 0))
    domain.execute([U, V], [y])
    request = hal.Request((hal.HostMemory(U), hal.HostMemory(V)), (hal.TokenArgument(y),))
    with patch.object(Mapped, "write") as written:
        fences = [
            domain.prepared.execute_fenced(request, [], hal.ExecutionConfig()) for _ in range(3)
        ]
    assert not written.called
    for fence in fences:
        assert fence.wait(60 * 10**9)
        assert fence.error() is None
    assert np.array_equal(content(result), U + V)
