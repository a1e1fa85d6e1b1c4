"""Memory of devices: allocated for inputs and outputs, given where arrays are, copied, and refused
where it is wrong.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors, ir, nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.drivers.sample import SampleDevice
from penstock.execution.results import Copying
from penstock.hal import Buffer, BufferDesc, BufferRole, Device, Support
from penstock.memory import (
    DeviceBuffer,
    HardwareBuffer,
    InputRole,
    MemoryPool,
    OutputRole,
    allocate,
)
from penstock.memory.buffer import BoundBuffer, fetch_value, put_value
from penstock.memory.copies import CopyReceipt
from penstock.memory.storage import OnDevice
from penstock.testing import assert_no_copies
from penstock.testing.doubles import FaultyDevice, RecordingDevice
from penstock.testing.lab import LabDevice

F32 = ir.DType.FLOAT32
VALUE = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def named(name: str, shape: ir.Shape, kind: ir.DType = F32) -> ir.Operand:
    return ir.Operand(kind, shape, ir.Lifetime.TEMPORARY_VARIABLE, name)


def relu(shape: tuple[int | None, ...] | None = (2, 3), kind: ir.DType = F32) -> ir.Model:
    b = ir.ModelBuilder()
    x = b.input(kind, shape, "x")
    return b.build(b.operation("RELU", [x], [named("y", shape, kind)]))


def add(shape: tuple[int | None, ...] | None = (2, 3)) -> ir.Model:
    b = ir.ModelBuilder()
    u, v = b.input(F32, shape, "u"), b.input(F32, shape, "v")
    return b.build(b.operation("ADD", [u, v], [named("sum", shape)]))


def compiled_on(model: ir.Model, *devices: Any, **more: Any) -> penstock.CompiledModel:
    return penstock.compile(model, devices=list(devices), cache=None, **more)


@pytest.fixture(params=["reference", "sample"])
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = ReferenceDevice() if request.param == "reference" else SampleDevice()
    return made


@pytest.fixture
def compiled(device: Device) -> Iterator[penstock.CompiledModel]:
    with compiled_on(relu(), device) as made:
        yield made


class Only(ReferenceDevice):
    """A device for some operations."""

    def __init__(self, name: str, *types: str) -> None:
        super().__init__()
        self.name, self._types = name, types

    def supported_operations(self, model: ir.Model) -> Any:
        answers = super().supported_operations(model)
        return [
            a if o.type in self._types else Support(False, "not mine")
            for a, o in zip(answers, model.operations, strict=True)
        ]


def test_a_value_stays_on_the_device_between_models(device: Device) -> None:
    """An encoder's output that is a decoder's input: no byte is copied by the runtime."""
    with (
        compiled_on(relu(), device) as encoder,
        compiled_on(add(), device) as decoder,
        allocate([OutputRole(encoder, "y", frequency=1.0), InputRole(decoder, "u", 0.5)]) as state,
        decoder.allocate(inputs=["v"]) as other,
        decoder.allocate(outputs=["sum"]) as result,
        encoder.allocate(inputs=[0]) as given,
    ):
        assert [b.device for b in (state, other, result, given)] == [device.name] * 4
        given.copy_from(VALUE)
        other.copy_from(VALUE)
        with assert_no_copies():
            outputs = encoder.run([given], out=[state])
            assert list(outputs) == [state]
            decoder.run({"u": state, "v": other}, out={"sum": result})
        assert np.array_equal(result.numpy(), np.maximum(VALUE, 0) + VALUE)
        assert state.shape == (2, 3)


class Early(ReferenceDevice):
    """A device of an early feature *level*, whose `allocate` answers all the same, and counts how
    often.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self.feature_level, self.asked = level, 0

    def allocate(self, desc: Any, roles: Any) -> Any:
        self.asked += 1
        return super().allocate(desc, roles)


def nnapi_memory(device: Device) -> nnapi.MemoryDesc:
    """A descriptor of memory for the output of RELU on *device* alone."""
    model = nnapi.Model()
    kind = nnapi.OperandType.TENSOR_FLOAT32
    x, y = (model.add_operand(kind, (2, 3)) for _ in range(2))
    model.add_operation(nnapi.OperationCode.RELU, [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    compilation = nnapi.Compilation.create_for_devices(model, [device])
    compilation.finish()
    desc = nnapi.MemoryDesc()
    desc.add_output_role(compilation, 0)
    desc.finish()
    return desc


@pytest.mark.parametrize("level", range(1, 9))
def test_below_hal_1_3_no_door_asks_a_device_for_memory_of_its_own(level: int) -> None:
    """Feature level 4 is HAL 1.3, the first with memory domains."""
    has_domains, device = level >= 4, Early(level)
    told = f"device reference has feature level {level}; memory of its own needs 4"
    with compiled_on(relu(), device) as compiled:
        with compiled.allocate(outputs=["y"]) as buffer:
            assert buffer.device == ("reference" if has_domains else None)
            assert buffer.fallback_reason == ("" if has_domains else told)
            outputs = compiled.run([VALUE], out=[buffer])
            assert np.array_equal(buffer.numpy(), np.maximum(VALUE, 0))
            assert any(told in note for note in outputs.receipt.notes) is not has_domains
        role = OutputRole(compiled, "y")
        if has_domains:
            allocate([role], fallback=False).close()
        else:
            with pytest.raises(errors.PlacementError, match=told):
                allocate([role], fallback=False)
    assert (device.asked > 0) is has_domains
    device.asked = 0
    desc = nnapi_memory(device)
    if has_domains:
        with nnapi.Memory.create_from_desc(desc) as memory:
            assert memory.is_in_device
    else:
        with pytest.raises(nnapi.NnapiError, match=told):
            nnapi.Memory.create_from_desc(desc)
    assert (device.asked > 0) is has_domains


def test_bursts_take_buffers_without_copies(device: Device) -> None:
    with (
        compiled_on(relu(), device) as compiled,
        compiled.allocate(inputs=["x"]) as given,
        compiled.allocate(outputs=["y"]) as result,
        compiled.burst() as burst,
    ):
        given.copy_from(VALUE)
        for _ in range(3):
            # Any memory will do.
            outputs = burst.run([given], out=[result])  # type: ignore[list-item]
            assert not outputs.receipt.copies
        assert np.array_equal(result.numpy(), np.maximum(VALUE, 0))


def test_a_buffer_of_another_use_is_refused_and_nothing_changes(
    compiled: penstock.CompiledModel, device: Device
) -> None:
    out = np.full((2, 3), 7, np.float32)
    with compiled.allocate(inputs=["x"]) as buffer, compiled_on(relu(), device) as other:
        with pytest.raises(errors.InputError, match="was not allocated for output 0"):
            compiled.run([VALUE], out=[buffer])
        with pytest.raises(errors.StateError, match="has no value"):
            compiled.run([buffer], out=[out])
        buffer.copy_from(VALUE)
        with pytest.raises(errors.InputError, match="was not allocated for input 0"):
            other.run([buffer], out=[out])
        buffer.close()
        buffer.close()
        with pytest.raises(errors.ClosedError):
            compiled.run([buffer], out=[out])
    assert np.array_equal(out, np.full((2, 3), 7, np.float32))


def test_a_buffer_that_is_written_serves_one_argument(device: Device) -> None:
    with compiled_on(relu(), device) as model, model.allocate(inputs=["x"], outputs=["y"]) as both:
        both.copy_from(VALUE)
        with pytest.raises(errors.InputError, match="an input and as an output"):
            model.run([both], out=[both])
        assert np.array_equal(both.numpy(), VALUE)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("given", ["x", 0, None])
def test_buffer_names_of_a_wrong_type_are_refused_with_the_remedy(
    compiled: penstock.CompiledModel, kind: str, given: Any
) -> None:
    with pytest.raises(errors.InputError) as caught:
        compiled.allocate(**{kind: given})
    one = "" if given is None else f"; for one, [{given!r}]"
    assert str(caught.value) == f"{kind} takes a list of names or positions, not {given!r}{one}"


def test_roles_that_make_no_sense_are_refused(compiled: penstock.CompiledModel) -> None:
    for match, roles, dimensions in (
        ("at least one role", [], None),
        ("takes a list of InputRole and OutputRole, not 3", 3, None),
        ("no input is named", [InputRole(compiled, "nobody")], None),
        ("no output 1|has 1", [OutputRole(compiled, 1)], None),
        ("no compiled model", [InputRole(3, "x")], None),
        ("must be an InputRole", ["x"], None),
        ("there already", [InputRole(compiled, "x"), InputRole(compiled, 0)], None),
        ("rank", [InputRole(compiled, "x")], (6,)),
        ("dimensions takes a tuple, .*, not 3", [InputRole(compiled, "x")], 3),
        ("dimensions", [InputRole(compiled, "x")], (2, 4)),
        ("make no sense", [InputRole(compiled, "x")], (2, -3)),
    ):
        with pytest.raises(errors.InputError, match=match):
            allocate(roles, dimensions)  # type: ignore[arg-type]


@pytest.mark.parametrize("frequency", [0.0, 0, -0.5, 10.0, float("nan"), True, "often"])
@pytest.mark.parametrize("role", [InputRole, OutputRole])
def test_a_frequency_that_makes_no_sense_is_refused_at_once(role: Any, frequency: Any) -> None:
    with pytest.raises(errors.InputError, match="frequency of a role is above 0 and at most 1"):
        role(None, "x", frequency)


def test_roles_that_disagree_are_refused() -> None:
    b = ir.ModelBuilder()
    quantised = ir.Quantization((0.5,), (1,))
    x = b.input(ir.DType.INT8, (2, 3), "x", quantised)
    y = b.input(ir.DType.INT8, (2, 3), "y", ir.Quantization((0.25,), (1,)))
    s = b.input(F32, (), "s")
    z = b.input(ir.DType.INT8, (2, 3), "z", ir.Quantization((0.5,), (2,)))
    outs = [b.operation("DEQUANTIZE", [i], [(F32, (2, 3))])[0] for i in (x, y, z)] + b.operation(
        "RELU", [s], [(F32, ())]
    )
    with compiled_on(b.build(outs), "reference") as one, compiled_on(relu(), "reference") as other:
        for match, roles in (
            ("elements", [InputRole(one, "x"), InputRole(other, "x")]),
            ("quantised", [InputRole(one, "x"), InputRole(one, "y")]),
            ("quantised", [InputRole(one, "x"), InputRole(one, "z")]),
            ("rank", [InputRole(one, "s"), InputRole(other, "x")]),
        ):
            with pytest.raises(errors.InputError, match=match):
                allocate(roles)
        with pytest.raises(errors.InputError, match="rank"):
            allocate([InputRole(one, "s")], (1,))
        with allocate([InputRole(one, "s")]) as scalar:
            scalar.copy_from(np.array(3, np.float32))
            assert scalar.numpy() == 3


def test_copies_check_size_type_and_value(compiled: penstock.CompiledModel) -> None:
    with compiled.allocate(inputs=["x"]) as buffer:
        with pytest.raises(errors.StateError, match="has no value"):
            buffer.copy_to(VALUE.copy())
        with pytest.raises(errors.InputError, match="float64"):
            buffer.copy_from(VALUE.astype(np.float64))
        with pytest.raises(errors.InputError, match=r"\(3, 2\)"):
            buffer.copy_from(VALUE.reshape(3, 2))
        with MemoryPool.anonymous(28) as longer, pytest.raises(errors.InputError, match="24 bytes"):
            buffer.copy_from(longer)
        with pytest.raises(errors.InputError, match="no memory to copy from"):
            buffer.copy_from([1, 2])
        with pytest.raises(errors.InputError, match=r"gets a masked array, .* filled\(\)"):
            buffer.copy_from(np.ma.masked_array(VALUE, mask=True))
        buffer.copy_from(VALUE)
        fixed = VALUE.copy()
        fixed.flags.writeable = False
        with pytest.raises(errors.InputError, match="writable"):
            buffer.copy_to(fixed)
        with pytest.raises(
            errors.InputError, match=r"is copied to a masked array, .* give its data"
        ):
            buffer.copy_to(np.ma.masked_array(VALUE.copy(), mask=True))
        assert buffer.is_initialized
        assert np.array_equal(buffer.numpy(), VALUE)


def pools() -> Iterator[Any]:
    yield MemoryPool.anonymous(24)
    yield MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(24))


def test_copies_to_and_from_pools_of_every_kind(
    compiled: penstock.CompiledModel, tmp_path: Any
) -> None:
    (tmp_path / "value").write_bytes(bytes(31))
    kinds = [*pools(), MemoryPool.from_file(tmp_path / "value", 7, 24)]
    assert {k.memory.name for k in kinds} == {"ashmem", "hardware_buffer_blob", "mmap_fd"}
    for pool in kinds:
        with pool, compiled.allocate(inputs=["x"]) as buffer:
            pool.view(np.float32, (2, 3))[...] = VALUE
            buffer.copy_from(pool)
            pool.view(np.float32, (2, 3))[...] = 0
            buffer.copy_to(pool)
            assert np.array_equal(pool.view(np.float32, (2, 3)), VALUE)
    with (
        HardwareBuffer.allocate(6, 1, format=1) as image,
        compiled.allocate(inputs=["x"]) as buffer,
        pytest.raises(errors.InputError, match="an image has no bytes"),
    ):
        buffer.copy_from(image)


def test_copies_between_buffers(compiled: penstock.CompiledModel) -> None:
    with compiled.allocate(inputs=["x"]) as one, compiled.allocate(outputs=["y"]) as other:
        with pytest.raises(errors.StateError):
            one.copy_from(other)
        one.copy_from(VALUE)
        one.copy_to(other)
        other.copy_from(other)
        assert np.array_equal(other.numpy(), VALUE)


def test_buffer_without_a_common_device_is_a_pool_and_noted(device: Device) -> None:
    with (
        compiled_on(relu(), device) as first,
        compiled_on(
            add(), ReferenceDevice() if device.name == "sample" else SampleDevice()
        ) as then,
    ):
        roles: list[InputRole | OutputRole] = [OutputRole(first, "y"), InputRole(then, "u")]
        with allocate(roles) as shared:
            assert shared.device is None
            assert "several devices" in shared.fallback_reason
            outputs = first.run([VALUE], out=[shared])
            assert any("lies in a pool" in note for note in outputs.receipt.notes)
            assert "lies in a pool" in outputs.receipt.show()
            (total,) = then.run([shared, VALUE])
            assert np.array_equal(total, np.maximum(VALUE, 0) + VALUE)
        with pytest.raises(errors.PlacementError, match="several devices"):
            allocate(roles, fallback=False)


@pytest.mark.parametrize("error", [errors.GeneralFailure, errors.ResourceExhaustedTransient])
def test_a_refused_allocation_becomes_a_pool(error: type[Exception], device: Device) -> None:
    weak = FaultyDevice(device, {"allocate": "always"}, error=error)
    with compiled_on(relu(), weak) as compiled, compiled.allocate(inputs=["x"]) as buffer:
        assert buffer.device is None
        assert error.__name__ in buffer.fallback_reason
        buffer.copy_from(VALUE)
        assert np.array_equal(compiled.run([buffer])[0], np.maximum(VALUE, 0))
        with pytest.raises(error):
            allocate([InputRole(compiled, "x")], fallback=False)


@pytest.mark.parametrize("answer", [(0, "buffer"), (1, None), ("1", "buffer")])
def test_an_allocation_that_lies_becomes_a_pool(answer: tuple[Any, Any]) -> None:
    class Liar(ReferenceDevice):
        def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
            _, buffer = super().allocate(desc, roles)
            buffer.close()
            return answer[0], None if answer[1] is None else buffer  # type: ignore[return-value]

    with compiled_on(relu(), Liar()) as compiled, compiled.allocate(inputs=["x"]) as buffer:
        assert "it answered with the token" in buffer.fallback_reason


def test_a_step_that_falls_back_copies_its_buffers_through_a_pool_both_ways(device: Device) -> None:
    weak = FaultyDevice(device, {"execute": 2}, name="weak")
    with (
        compiled_on(relu(), weak) as compiled,
        compiled.allocate(inputs=["x"]) as given,
        compiled.allocate(outputs=["y"]) as result,
    ):
        given.copy_from(VALUE)
        assert not compiled.run([given], out=[result]).receipt.copies
        second = compiled.run([given], out=[result]).receipt
        assert [(c.nbytes, c.destination == "host", c.step) for c in second.copies] == [
            (24, True, 0),
            (24, False, 0),
        ]
        assert second.steps[0].fallback_from == "weak"
        assert "does not take it" in second.copies[0].reason
        assert np.array_equal(result.numpy(), np.maximum(VALUE, 0))
        # And back on the device without a copy.
        assert not compiled.run([given], out=[result]).receipt.copies


def test_a_run_that_fails_leaves_its_outputs_without_a_value(device: Device) -> None:
    weak = FaultyDevice(device, {"execute": 2})
    policy = penstock.Policy(allow_fallback=False)
    with (
        compiled_on(relu(), weak, policy=policy) as compiled,
        compiled.allocate(outputs=["y"]) as result,
    ):
        compiled.run([VALUE], out=[result])
        assert result.is_initialized
        with pytest.raises(errors.GeneralFailure):
            compiled.run([VALUE], out=[result])
        assert not result.is_initialized
        with pytest.raises(errors.StateError):
            result.numpy()


@pytest.mark.parametrize("shape", [(None, 3), None])
def test_a_buffer_of_unknown_shape_takes_that_of_what_is_written(
    shape: tuple[int | None, ...] | None,
) -> None:
    with (
        compiled_on(relu(shape), "reference") as compiled,
        compiled.allocate(inputs=["x"], outputs=["y"]) as one,
        compiled.allocate(inputs=["x"], outputs=["y"]) as other,
    ):
        assert one.device == "reference"
        assert one.shape == shape
        assert ("of unknown rank" in repr(one)) == (shape is None)
        for rows in (4, 2, 7):
            given = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) - 5
            compiled.run([given], out=[one])
            assert one.shape == (rows, 3)
            compiled.run([one], out=[other])
            assert np.array_equal(other.numpy(), np.maximum(given, 0))
        with MemoryPool.anonymous(24) as pool:
            with pytest.raises(errors.InputError, match="give dimensions"):
                one.copy_from(pool)
            one.copy_from(pool, (2, 3))
            assert one.shape == (2, 3)


def test_a_buffer_that_knows_more_of_its_shape_than_the_model_refuses_others() -> None:
    with (
        compiled_on(relu((None, 3)), "reference") as compiled,
        compiled.allocate(outputs=["y"], dimensions=(2, 3)) as buffer,
    ):
        compiled.run([VALUE], out=[buffer])
        with pytest.raises(errors.InputError):
            buffer.copy_from(np.zeros((4, 3), np.float32))
        with pytest.raises(errors.GeneralFailure, match="does not fit"):
            compiled.run([np.zeros((4, 3), np.float32)], out=[buffer])
        assert not buffer.is_initialized


def test_the_receipt_remarks_on_a_buffer_that_the_host_touches_every_run(
    compiled: penstock.CompiledModel,
) -> None:
    with compiled.allocate(outputs=["y"]) as result, compiled.allocate(inputs=["x"]) as given:
        given.copy_from(VALUE)
        notes: list[tuple[str, ...]] = []
        for _ in range(4):
            notes.append(compiled.run([given], out=[result]).receipt.notes)
            result.numpy()
        assert not notes[0]
        assert any("after every run" in note and "a pool" in note for note in notes[3])
        assert not any("before every run" in note for note in notes[3])


def test_a_buffer_is_of_this_process_and_does_not_pickle(compiled: penstock.CompiledModel) -> None:
    with compiled.allocate(inputs=["x"]) as buffer:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(buffer)
        buffer.stored._process += 1
        with pytest.raises(errors.StateError, match="before a fork"):
            compiled.run([buffer])
        buffer.stored._process -= 1
        assert "float32" in repr(buffer)


def test_forwarded_value_is_copied_to_its_buffer(device: Device) -> None:
    """An input that is an output, too, is written by no step."""
    b = ir.ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("RELU", [x], [(F32, (2, 3))])
    with (
        compiled_on(b.build([y, x]), device) as compiled,
        compiled.allocate(inputs=["x"]) as given,
        allocate([OutputRole(compiled, 1)]) as kept,
    ):
        given.copy_from(VALUE)
        outputs = compiled.run([given], out=[None, kept])
        assert np.array_equal(outputs[0], np.maximum(VALUE, 0))
        assert np.array_equal(kept.numpy(), VALUE)
        moved = [c for c in outputs.receipt.copies if c.step is None]
        assert [(c.source == "host", c.destination == "host") for c in moved] == [
            (False, True),
            (True, False),
        ]


def test_an_output_that_another_step_reads_stays_on_the_device_for_it() -> None:
    """Two steps on one device, with another between: the value is fetched for the one that has no
    such memory.
    """

    b = ir.ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("RELU", [x], [(F32, (2, 3))])
    (z,) = b.operation("TANH", [y], [(F32, (2, 3))])
    with compiled_on(
        b.build([y, z]),
        Only("one", "RELU"),
        Only("two", "TANH"),
        policy=penstock.Policy(min_partition_size=1),
    ) as compiled:
        roles = allocate([OutputRole(compiled, 0)])
        assert "several devices (one, two)" in roles.fallback_reason
        given: ir.NDArray = VALUE
        outputs = compiled.run([given], out=[roles, None])
        assert isinstance(outputs[0], DeviceBuffer)
        assert np.allclose(outputs[1], np.tanh(np.maximum(VALUE, 0)))
        roles.close()


WITH_DOMAINS: dict[str, Callable[[], Device]] = {
    "reference": ReferenceDevice,
    "sample": SampleDevice,
    "lab": LabDevice,
    "lab, tiles": lambda: LabDevice(layout="tiles"),
}


@pytest.fixture(params=WITH_DOMAINS)
def domains(request: pytest.FixtureRequest) -> Any:
    """A device of each kind that has memory of its own."""
    return WITH_DOMAINS[request.param]()


def test_use_initialise_a_state(domains: Any) -> None:
    """The first value of a state is copied to the device once; from then on it goes round there."""
    with compiled_on(add(), domains) as compiled:
        roles: list[InputRole | OutputRole] = [
            InputRole(compiled, "u"),
            OutputRole(compiled, "sum"),
        ]
        with allocate(roles) as one, allocate(roles) as two, compiled.allocate(inputs=["v"]) as v:
            one.copy_from(VALUE * 10)
            v.copy_from(VALUE)
            with assert_no_copies():
                for read, written in ((one, two), (two, one)) * 2:
                    compiled.run({"u": read, "v": v}, out={"sum": written})
            assert np.array_equal(one.numpy(), VALUE * 14)


def test_use_cache_an_intermediate(domains: Any) -> None:
    """What one model has computed serves many runs of another, and never leaves the device."""
    with (
        compiled_on(relu(), domains) as encoder,
        compiled_on(add(), domains) as decoder,
        allocate([OutputRole(encoder, "y"), InputRole(decoder, "u", 1.0)]) as features,
    ):
        encoder.run([VALUE], out=[features])
        for number in range(3):
            outputs = decoder.run({"u": features, "v": VALUE * number})
            assert np.array_equal(outputs[0], np.maximum(VALUE, 0) + VALUE * number)
            assert not any("features" in c.source for c in outputs.receipt.copies)
        assert np.array_equal(features.numpy(), np.maximum(VALUE, 0))


def test_use_fall_back_to_the_cpu(domains: Any) -> None:
    """The device fails for one run: the next device computes it, from and into the same buffers."""
    weak = FaultyDevice(domains, {"execute": [2, 3]}, name="weak")
    with (
        compiled_on(relu(), weak) as compiled,
        compiled.allocate(inputs=["x"]) as given,
        compiled.allocate(outputs=["y"]) as result,
    ):
        for number in range(1, 5):
            given.copy_from(VALUE * number)
            receipt = compiled.run([given], out=[result]).receipt
            assert np.array_equal(result.numpy(), np.maximum(VALUE * number, 0))
            assert [s.device for s in receipt.steps] == [
                "reference" if number in {2, 3} else "weak"
            ]
            assert len(receipt.copies) == (2 if number in {2, 3} else 0)


def test_unusable_buffer_of_the_last_step_is_refused_before_the_first_step() -> None:
    first, second = (RecordingDevice(one) for one in (Only("one", "RELU"), Only("two", "ADD")))
    b = ir.ModelBuilder()
    x, w = b.input(F32, (2, 3), "x"), b.input(F32, (2, 3), "w")
    (y,) = b.operation("RELU", [x], [named("y", (2, 3))])
    (z,) = b.operation("ADD", [y, w], [named("z", (2, 3))])
    out = np.full((2, 3), 7, np.float32)
    with (
        compiled_on(b.build([y, z]), first, second) as compiled,
        compiled.allocate(inputs=["w"]) as late,
        compiled.allocate(outputs=["z"]) as result,
    ):
        assert [s.device for s in compiled.plan.steps] == ["one", "two"]
        assert (late.device, result.device) == ("two", "two")
        with pytest.raises(errors.StateError, match="has no value"):
            compiled.run({"x": VALUE, "w": late}, out={"y": out})
        late.copy_from(VALUE)
        with pytest.raises(errors.InputError, match="was not allocated"):
            compiled.run({"x": VALUE, "w": result}, out={"y": out})
        with pytest.raises(errors.InputError, match="was not allocated"):
            compiled.run({"x": VALUE, "w": late}, out={"y": out, "z": late})
        assert np.array_equal(out, np.full((2, 3), 7, np.float32))
        assert first.count("execute") == 0
        compiled.run({"x": VALUE, "w": late}, out={"y": out, "z": result})
        assert np.array_equal(result.numpy(), np.maximum(VALUE, 0) + VALUE)
        assert first.count("execute") == second.count("execute") == 1


@pytest.mark.parametrize(("maps", "extra"), [(True, 0), (False, 1)])
def test_copies_on_the_way_to_a_device_and_back_have_receipts(
    monkeypatch: pytest.MonkeyPatch, maps: bool, extra: int
) -> None:
    monkeypatch.setattr(OnDevice, "_maps", lambda *_: maps)
    copies: list[CopyReceipt] = []
    copying = Copying(0, "cpu", copies)
    with compiled_on(relu(), ReferenceDevice()) as compiled:
        buffer = compiled.allocate(inputs=["x"])
        assert buffer.device == "reference"
        bound = BoundBuffer(buffer, "x", None)
        copying.put(bound, VALUE, 1)
        assert [c.destination for c in copies] == ["x"] + ["host"] * (1 + extra)
        assert {c.nbytes for c in copies} == {VALUE.nbytes}
        copies.clear()
        np.testing.assert_array_equal(copying.fetch(bound, 1), VALUE)
        assert [c.source for c in copies] == ["x"] + ["host"] * extra
        with MemoryPool.anonymous(VALUE.nbytes) as pool:
            lying = pool.view(np.dtype(np.float32), VALUE.shape)
            lying[...] = VALUE
            copies.clear()
            copying.put(bound, lying, 1)
            assert len(copies) == 1 + extra
            assert put_value(buffer, lying) == 1 + extra
            assert fetch_value(buffer)[1] == 2 + extra
            del lying
