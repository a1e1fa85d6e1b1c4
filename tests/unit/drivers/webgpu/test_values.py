"""Device buffers of the driver `webgpu`: runs use them where they lie, in the device's memory."""

from __future__ import annotations

import gc
import sys
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import hal
from penstock.drivers.webgpu.binding import MOST_KEPT, readers_of
from penstock.drivers.webgpu.calls import Binding
from penstock.drivers.webgpu.engine import Gpu
from penstock.drivers.webgpu.running import Plan, Run
from penstock.errors import DeadObject, GeneralFailure, ResourceExhaustedPersistent
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.memory import InputRole, MemoryPool, OutputRole, allocate
from tests.support_webgpu import needs_webgpu, software

F32 = DType.FLOAT32
Role: TypeAlias = tuple[Literal["input", "output"], int]
SHAPE = (3, 5)
U, V = np.arange(15, dtype=np.float32).reshape(SHAPE), np.full(SHAPE, 3, np.float32)


def model(kind: str = "ADD", inputs: str = "uv", dtype: DType = F32) -> Model:
    builder = ModelBuilder()
    given = [builder.input(dtype, SHAPE, name) for name in inputs]
    return builder.build(builder.operation(kind, given, [Operand(dtype, SHAPE, name="y")]))


class Domain:
    """A prepared model, and buffers for all its inputs and outputs."""

    def __init__(self, source: Model | None = None) -> None:
        self.device = software()
        self.prepared: Any = self.device.prepare_model(source or model(), hal.PrepareConfig())

    def allocate(self, *roles: Role) -> tuple[int, hal.Buffer]:
        wanted = [hal.BufferRole(self.prepared, *role) for role in roles]
        return self.device.allocate(hal.BufferDesc(), wanted)

    def written(self, value: NDArray, *roles: Role) -> tuple[int, hal.Buffer]:
        token, buffer = self.allocate(*roles)
        with MemoryPool.anonymous(value.nbytes) as pool:
            pool.view(value.dtype, value.shape)[...] = value
            buffer.copy_from(pool.memory, value.shape)
        return token, buffer

    def execute(self, inputs: list[NDArray | int], outputs: list[NDArray | int]) -> None:
        given, wanted = (
            tuple(
                hal.TokenArgument(one) if isinstance(one, int) else hal.HostMemory(one)
                for one in each
            )
            for each in (inputs, outputs)
        )
        self.prepared.execute(hal.Request(given, wanted), hal.ExecutionConfig())


def content(buffer: hal.Buffer, dtype: type = np.float32) -> NDArray:
    with MemoryPool.anonymous(15 * np.dtype(dtype).itemsize) as pool:
        buffer.copy_to(pool.memory)
        return np.array(pool.view(np.dtype(dtype), SHAPE))


@needs_webgpu
def test_run_on_device_buffers_alone_moves_nothing_between_host_and_device() -> None:
    domain = Domain()
    u, _ = domain.written(U, ("input", 0))
    v, _ = domain.written(V, ("input", 1))
    y, result = domain.allocate(("output", 0))
    domain.execute([U, V], [np.empty(SHAPE, np.float32)])
    queue, planned = domain.prepared.executable.code.gpu.device.queue, list[Plan]()
    (run,) = domain.prepared.executable.pool._free
    plan_of = run._planned

    def noted(*arguments: Any, **options: Any) -> Plan:
        planned.append(plan_of(*arguments, **options))
        return planned[0]

    with patch.object(queue, "write_buffer") as written, patch.object(run, "_planned", noted):
        domain.execute([u, v], [y])
    (plan,) = planned
    assert not written.called
    assert (plan.copied, plan.stored, plan.downloads) == ([], [], [])
    assert np.array_equal(content(result), U + V)


@needs_webgpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_arguments_lie_in_buffers_and_in_arrays_in_any_mixture(dtype: type) -> None:
    kind = "ADD" if dtype is not np.int8 else "MAXIMUM"
    domain = Domain(model(kind, dtype=DType(np.dtype(dtype).name)))
    u: NDArray = U.astype(dtype)
    v: NDArray = V.astype(dtype)
    wanted = u + v if kind == "ADD" else np.maximum(u, v)
    tokens = [domain.written(x, ("input", i))[0] for i, x in enumerate((u, v))]
    y, result = domain.allocate(("output", 0))
    for chosen in range(8):
        output: NDArray = np.empty(SHAPE, dtype)
        inputs = [
            t if chosen >> i & 1 else x for i, (t, x) in enumerate(zip(tokens, (u, v), strict=True))
        ]
        domain.execute(inputs, [y if chosen & 4 else output])
        found = content(result, dtype) if chosen & 4 else output
        assert np.array_equal(found, wanted), chosen


@needs_webgpu
def test_one_buffer_is_two_inputs_of_a_run() -> None:
    domain = Domain()
    u, _ = domain.written(U, ("input", 0), ("input", 1))
    output = np.empty(SHAPE, np.float32)
    domain.execute([u, u], [output])
    assert np.array_equal(output, U + U)


@needs_webgpu
def test_buffers_are_copied_on_the_device_where_a_kernel_binds_all_memory() -> None:
    domain = Domain()
    code = domain.prepared.executable.code
    code.readers.clear()
    u, _ = domain.written(U, ("input", 0))
    y, result = domain.allocate(("output", 0))
    domain.execute([u, V], [y])
    assert np.array_equal(content(result), U + V)


@needs_webgpu
def test_no_buffer_stands_for_a_place_that_a_kernel_binds_with_others() -> None:
    manifest = Domain().prepared.executable.code.manifest
    assert sorted(readers_of(manifest)) == sorted(
        (*manifest.layout.inputs, *manifest.layout.outputs)
    )
    (call,) = manifest.calls
    whole = (Binding("memory", 0, manifest.layout.memory),)
    mixed = replace(manifest, calls=(replace(call, bindings=whole),))
    assert readers_of(mixed) == {}


@needs_webgpu
def test_output_that_forwards_an_input_is_right_in_any_memory() -> None:
    builder = ModelBuilder()
    u, v = (builder.input(F32, SHAPE, name) for name in "uv")
    domain = Domain(
        builder.build([*builder.operation("ADD", [u, v], [Operand(F32, SHAPE, name="y")]), u])
    )
    token, _ = domain.written(U, ("input", 0))
    forwarded, result = domain.allocate(("output", 1))
    y, output = np.empty(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    for given in (token, U):
        domain.execute([given, V], [y, forwarded])
        assert np.array_equal(content(result), U)
        domain.execute([given, V], [y, output])
        assert np.array_equal(output, U)
        assert np.array_equal(y, U + V)


@needs_webgpu
def test_failed_run_leaves_its_output_buffer_without_a_value() -> None:
    domain = Domain()
    y, result = domain.allocate(("output", 0))
    domain.execute([U, V], [y])
    failure = GeneralFailure("the inputs have no result")
    with patch.object(Run, "download", side_effect=failure), pytest.raises(GeneralFailure):
        domain.execute([U, V], [y])
    with pytest.raises(GeneralFailure, match="never written"):
        content(result)


@needs_webgpu
def test_bindings_of_buffers_are_kept_between_runs_and_freed_with_the_buffers() -> None:
    domain = Domain()
    buffers = [domain.written(U + k, ("input", 0)) for k in range(MOST_KEPT + 2)]
    made = list[object]()
    device = domain.prepared.executable.code.gpu.device
    make = device.create_bind_group

    def counted(**options: object) -> object:
        made.append(options)
        return make(**options)

    output = np.empty(SHAPE, np.float32)
    with patch.object(device, "create_bind_group", counted):
        domain.execute([buffers[0][0], V], [output])
        known = len(made)
        for _ in range(3):
            domain.execute([buffers[0][0], V], [output])
        assert len(made) == known
        for token, _ in buffers:
            domain.execute([token, V], [output])
    (run,) = domain.prepared.executable.pool._free
    assert len(run._bindings._kept) == MOST_KEPT
    for _, buffer in buffers:
        buffer.close()
    gc.collect()
    assert not run._bindings._kept


@needs_webgpu
def test_allocate_reports_that_the_device_has_no_memory() -> None:
    domain = Domain()
    full = ResourceExhaustedPersistent("no memory")
    with patch.object(Gpu, "buffer", side_effect=full), pytest.raises(ResourceExhaustedPersistent):
        domain.allocate(("input", 0))
    assert domain.device.domain is not None
    assert domain.device.domain.live == 0


@needs_webgpu
def test_buffer_on_a_lost_device_is_dead_for_copies_and_runs() -> None:
    domain = Domain()
    token, buffer = domain.written(U, ("input", 0))
    gpu = domain.prepared.executable.code.gpu
    gpu.device.destroy()
    with pytest.raises(DeadObject, match="is lost"):
        domain.execute([token, V], [np.empty(SHAPE, np.float32)])
    with pytest.raises(DeadObject, match="is lost"):
        content(buffer)
    old, domain.prepared = (
        domain.prepared,
        domain.device.prepare_model(model(), hal.PrepareConfig()),
    )
    roles = [hal.BufferRole(one, "input", 0) for one in (old, domain.prepared)]
    shared, buffer = domain.device.allocate(hal.BufferDesc(), roles)
    with MemoryPool.anonymous(U.nbytes) as pool:
        pool.view(U.dtype, SHAPE)[...] = U
        buffer.copy_from(pool.memory, SHAPE)
    output = np.empty(SHAPE, np.float32)
    domain.execute([shared, V], [output])
    assert np.array_equal(output, U + V)
    domain.prepared = old
    with pytest.raises(DeadObject, match="is lost"):
        domain.execute([shared, V], [output])


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
@pytest.mark.parametrize("isolate", [False, True])
def test_pipeline_of_two_models_and_a_state_stay_on_the_device(isolate: bool) -> None:
    options: Any = {"devices": ["webgpu-software"], "cache": None, "isolate": isolate}
    with (
        penstock.compile(model("TANH", "u"), **options) as first,
        penstock.compile(model("ADD"), **options) as second,
        penstock.compile(model("ADD"), **options) as adding,
        allocate(roles=[OutputRole(first, "y"), InputRole(second, "u")]) as between,
    ):
        assert between.device == "webgpu-software"
        before = first.run([U], out=[between]).receipt
        after = second.run({"u": between, "v": V})
        assert np.allclose(after[0], np.tanh(U) + 3, atol=1e-6)
        # The input of the first run, and both arrays of the second.
        arrays = [("u", U.nbytes), ("v", V.nbytes), ("y", U.nbytes)]
        for reason in ("has memory of its own", *(["lives in another process"] if isolate else [])):
            told = [
                (model_.entry.operands[copy.operand or 0].name, copy.nbytes)
                for model_, receipt in ((first.model, before), (second.model, after.receipt))
                for copy in receipt.copies
                if copy.reason == f"device webgpu-software {reason}"
            ]
            assert told == arrays
        state = adding.bind_state({"y": "u"})
        assert state.device("u") == "webgpu-software"
        for _ in range(3):
            adding(V)
        assert np.array_equal(state.read("u"), 3 * V)
