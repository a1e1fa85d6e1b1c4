"""Each rule of NNAPI's model calls and the result code of breaking it (NNAPI section 1.4)."""

from __future__ import annotations

import gc
import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.hal import Memory
from penstock.memory import MemoryPool
from penstock.nnapi import Compilation, Model, OperandType, OperationCode, ResultCode
from tests.checked import does_not_raise
from tests.unit.nnapi import building

PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
QUANT8 = OperandType.TENSOR_QUANT8_ASYMM

CHANGES: dict[str, Callable[[Model], object]] = {
    "add_operand": lambda m: m.add_operand(building.FLOAT, (1,)),
    "set_operand_value": lambda m: m.set_operand_value(0, bytes(24)),
    "set_operand_value_from_memory": lambda m: m.set_operand_value_from_memory(0, bytes(24), 0, 24),
    "set_operand_value_from_model": lambda m: m.set_operand_value_from_model(
        0, building.finished()
    ),
    "set_operand_symm_per_channel_quant_params": lambda m: (
        m.set_operand_symm_per_channel_quant_params(0, 0, [1.0])
    ),
    "set_operand_extension_data": lambda m: m.set_operand_extension_data(0, b"x", 1),
    "add_operation": lambda m: m.add_operation("ABS", [0], [1]),
    "identify_inputs_and_outputs": lambda m: m.identify_inputs_and_outputs([0], [1]),
    "relax": lambda m: m.relax_computation_float32_to_float16(True),
    "finish": Model.finish,
}


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("make", [building.finished, building.invalid])
def test_a_model_cannot_be_changed_after_finish(
    make: Callable[[], Model], call: Callable[[Model], object]
) -> None:
    with building.answers(building.BAD_STATE):
        call(make())


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES)
def test_closed_model_rejects_changes(call: Callable[[Model], object]) -> None:
    model = building.unfinished()
    model.close()
    model.close()
    with building.answers(building.BAD_STATE, "closed"):
        call(model)


NULLS: dict[str, Callable[[Any], object]] = {
    "type of an operand": lambda m: m.add_operand(None, (1,)),
    "index": lambda m: m.set_operand_value(None, 0),
    "scales": lambda m: m.set_operand_symm_per_channel_quant_params(0, 0, None),
    "value of some length": lambda m: m.set_operand_value(0, None, 24),
    "memory": lambda m: m.set_operand_value_from_memory(0, None, 0, 24),
    "model": lambda m: m.set_operand_value_from_model(0, None),
    "type of an operation": lambda m: m.add_operation(None, [0], [1]),
    "inputs": lambda m: m.add_operation("ABS", None, [1]),
    "outputs": lambda m: m.add_operation("ABS", [0], None),
    "one input": lambda m: m.add_operation("ABS", [None], [1]),
    "inputs of the model": lambda m: m.identify_inputs_and_outputs(None, [1]),
    "outputs of the model": lambda m: m.identify_inputs_and_outputs([0], None),
    "relaxation": lambda m: m.relax_computation_float32_to_float16(None),
}


@pytest.mark.parametrize("call", NULLS.values(), ids=NULLS)
def test_null_where_something_must_be(call: Callable[[Model], object]) -> None:
    with building.answers(building.UNEXPECTED_NULL):
        call(building.unfinished())


class TestAddOperand:
    def test_operand_indexes_count_from_0(self) -> None:
        model = Model()
        assert [model.add_operand(building.FLOAT, (i + 1,)) for i in range(3)] == [0, 1, 2]

    @pytest.mark.parametrize(
        "arguments",
        [
            (16,), (10000,), (10001,), (1 << 16,), (-1,), ("TENSOR_FLOAT32",), (True,),
            (building.INT, (1,)),
            (building.FLOAT, (-1,)),
            (building.FLOAT, (1.5,)),
            (building.FLOAT, ("1",)),
            (building.FLOAT, "12"),
            (building.FLOAT, 3),
            (building.FLOAT, (2**16, 2**14)),
            (building.FLOAT, (2**32,)),
            (building.FLOAT, (1,) * 33),
            (building.FLOAT, (1,), 0.5),
            (building.FLOAT, (1,), 0.0, 1),
            (building.FLOAT, (1,), "much"),
            (building.FLOAT, (1,), np.zeros(1)),
            (QUANT8, (1,), True),
            (QUANT8, (1,), 10**400),
            (building.FLOAT, (1,), 0.0, 0.5),
            (QUANT8, (1,)),
            (QUANT8, (1,), -1.0),
            (QUANT8, (1,), math.inf),
            (QUANT8, (1,), math.nan),
            (QUANT8, (1,), 0.5, 256),
            (QUANT8, (1,), 0.5, -1),
            (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, (1,), 0.5, 128),
            (OperandType.TENSOR_QUANT16_SYMM, (1,), 0.5, 1),
            (OperandType.TENSOR_QUANT16_ASYMM, (1,), 0.5, 65536),
            (PER_CHANNEL, (1,), 0.5),
            (PER_CHANNEL, (1,), 0.0, 1),
            (OperandType.TENSOR_INT32, (1,), -0.5),
            (OperandType.TENSOR_INT32, (1,), 0.5, 1),
            (OperandType.SUBGRAPH, (1,)),
            (OperandType.SUBGRAPH, (), 1.0),
        ],
    )  # fmt: skip
    def test_add_operand_rejects_invalid_operands(self, arguments: tuple[Any, ...]) -> None:
        model = Model()
        with building.answers(building.BAD_DATA):
            model.add_operand(*arguments)
        assert model.add_operand(building.FLOAT) == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            (3, (2, 3)),
            (np.int64(0),),
            (building.FLOAT, np.array([2, 3])),
            (building.FLOAT, (0, None, 3)),
            (building.FLOAT, ()),
            (building.FLOAT, None),
            (OperandType.TENSOR_INT32, (1,), 0.5),
            (QUANT8, (1,), np.float32(0.5), 255),
            (PER_CHANNEL, (4, 0)),
            (PER_CHANNEL, ()),
            (OperandType.SUBGRAPH,),
        ],
    )
    def test_add_operand_accepts_valid_operands(self, arguments: tuple[Any, ...]) -> None:
        assert Model().add_operand(*arguments) == 0

    def test_unknown_operand_types_are_explained(self) -> None:
        with building.answers(building.BAD_DATA, "extension"):
            Model().add_operand(1 << 16 | 3)


class TestChannels:
    def test_channel_scales_must_fit_the_operand(self) -> None:
        model = Model()
        filters = model.add_operand(PER_CHANNEL, (2, 3))
        unknown = model.add_operand(PER_CHANNEL, (0, 3))
        other = model.add_operand(OperandType.TENSOR_QUANT8_SYMM, (2, 3), 0.5)
        for index, dimension, scales in (
            (other, 0, [1.0, 1.0]),
            (filters, 2, [1.0, 1.0]),
            (filters, -1, [1.0, 1.0]),
            (filters, 0, [1.0]),
            (filters, 0, [1.0, 0.0]),
            (filters, 0, [1.0, -1.0]),
            (filters, 0, [1.0, math.inf]),
            (filters, 0, [1.0, "x"]),
            (filters, 0, 1.0),
            (unknown, 0, []),
            (9, 0, [1.0, 1.0]),
        ):
            with building.answers(building.BAD_DATA):
                model.set_operand_symm_per_channel_quant_params(index, dimension, scales)  # type: ignore[arg-type]
        model.set_operand_symm_per_channel_quant_params(filters, 0, np.ones(2, np.float32))  # type: ignore[arg-type]
        model.set_operand_symm_per_channel_quant_params(unknown, 1, [1, 2, 3])

    def test_channel_scales_must_be_given_before_finish(self) -> None:
        model = Model()
        x = model.add_operand(PER_CHANNEL, (2, 3))
        y = model.add_operand(building.FLOAT, (2, 3))
        model.add_operation("DEQUANTIZE", [x], [y])
        model.identify_inputs_and_outputs([x], [y])
        with building.answers(building.BAD_DATA, "scales for channels"):
            model.finish()


class TestSetOperandValue:
    @pytest.mark.parametrize(
        ("index", "value", "length"),
        [
            (7, b"", None),
            (-1, b"", None),
            (2**70, b"", None),
            (0, bytes(23), None),
            (0, bytes(25), None),
            (0, bytes(30), 25),
            (0, bytes(20), 24),
            (0, bytes(24), -1),
            (0, b"", None),
            (0, "text", None),
            (0, [0.0] * 6, None),
            (0, 0.0, None),
            (0, object(), None),
            (0, np.zeros((2, 3), np.int32), None),
            (0, np.zeros((2, 3), ">f4"), None),
            (0, np.zeros((2, 3), object), None),
            (0, memoryview(bytes(48))[::2], None),
            (3, 2**31, None),
            (3, 0.5, None),
            (3, True, None),
            (3, np.float32(1), None),
            (4, bytes(4), None),
            (5, bytes(4), None),
            (6, b"", None),
        ],
    )
    def test_set_operand_value_rejects_wrong_values(
        self, index: int, value: object, length: int | None
    ) -> None:
        model = building.unfinished()
        model.add_operand(building.FLOAT, (2, 0))
        model.add_operand(building.FLOAT)
        model.add_operand(OperandType.SUBGRAPH)
        with building.answers(building.BAD_DATA):
            model.set_operand_value(index, value, length)

    @pytest.mark.parametrize(
        ("kind", "value", "data"),
        [
            (OperandType.FLOAT32, 1.5, np.float32(1.5).tobytes()),
            (OperandType.FLOAT32, 1, np.float32(1).tobytes()),
            (OperandType.FLOAT16, -0.5, np.float16(-0.5).tobytes()),
            (OperandType.INT32, -3, np.int32(-3).tobytes()),
            (OperandType.UINT32, 2**32 - 1, b"\xff" * 4),
            (OperandType.BOOL, True, b"\1"),
            (OperandType.BOOL, 0, b"\0"),
            (OperandType.INT32, np.int32(7), np.int32(7).tobytes()),
            (OperandType.INT32, b"\1\0\0\0", b"\1\0\0\0"),
            (OperandType.INT32, bytearray(b"\1\0\0\0"), b"\1\0\0\0"),
            (OperandType.INT32, np.array([1, 0, 0, 0], np.uint8), b"\1\0\0\0"),
        ],
    )
    def test_scalar_operands_accept_numbers(
        self, kind: OperandType, value: object, data: bytes
    ) -> None:
        model = Model()
        index = model.add_operand(kind)
        model.set_operand_value(index, value)
        held = model._operands[index].value
        assert held is not None
        assert bytes(held) == data

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (OperandType.FLOAT32, 1e300),
            (OperandType.FLOAT16, 1e6),
            (OperandType.BOOL, 2),
            (OperandType.UINT32, -1),
            (OperandType.INT32, 10**40),
            (OperandType.FLOAT32, 10**400),
        ],
    )
    def test_scalar_operands_reject_numbers_out_of_range(
        self, kind: OperandType, value: float
    ) -> None:
        model = Model()
        with building.answers(building.BAD_DATA, "is no value of"):
            model.set_operand_value(model.add_operand(kind), value)

    def test_small_values_are_copied_at_once(self) -> None:
        assert _sum_with(np.ones(32, np.float32), 128) == 1.0

    def test_large_ones_when_the_model_is_finished(self) -> None:
        assert _sum_with(np.ones(33, np.float32), 132) == 5.0

    def test_a_large_value_lets_go_of_its_memory_then(self) -> None:
        model, memory = Model(), bytearray(4 * 40)
        x, c, y = (model.add_operand(building.FLOAT, (40,)) for _ in range(3))
        model.set_operand_value(c, memory)
        with pytest.raises(BufferError):
            memory.append(0)
        model.add_operation("ADD", [x, c, building.fuse(model)], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        memory.append(0)

    def test_setting_a_value_again_replaces_it(self) -> None:
        model = Model()
        x, y = (model.add_operand(building.FLOAT, (2,)) for _ in range(2))
        activation = building.fuse(model, 7)
        model.set_operand_value(activation, 1)
        model.add_operation("ADD", [x, x, activation], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        activations = [o.attributes["fused_activation_function"] for o in model.lowered.operations]
        assert activations == ["RELU"]

    def test_arrays_of_any_layout_are_read_in_order(self) -> None:
        transposed = np.arange(6, dtype=np.float32).reshape(3, 2).T
        model = building.unfinished()
        model.set_operand_value(0, transposed)
        held = model._operands[0].value
        assert held is not None
        assert bytes(held) == np.ascontiguousarray(transposed).tobytes()

    def test_masked_arrays_are_rejected(self) -> None:
        model, values = building.unfinished(), np.zeros((2, 3), np.float32)
        with building.answers(building.BAD_DATA, "is given a masked array"):
            model.set_operand_value(0, np.ma.masked_array(values, mask=True))
        model.set_operand_value(0, np.ma.masked_array(values, mask=False))

    def test_none_omits_an_optional_operand(self) -> None:
        model = Model()
        x = model.add_operand(building.FLOAT, (2, 3))
        order = model.add_operand(OperandType.TENSOR_INT32, (2,))
        y = model.add_operand(building.FLOAT, (3, 2))
        model.set_operand_value(order, None)
        with does_not_raise():
            model.add_operation("TRANSPOSE", [x, order], [y])
            model.identify_inputs_and_outputs([x], [y])
            model.finish()

    def test_an_operand_that_must_have_a_value(self) -> None:
        model = building.unfinished()
        model.set_operand_value(1, None, 0)
        model.identify_inputs_and_outputs([0], [2])
        with building.answers(building.BAD_DATA, "has no value"):
            model.finish()


def _sum_with(values: np.ndarray[Any, np.dtype[np.float32]], nbytes: int) -> float:
    """The first constant element of a model whose caller changes it before finish."""
    assert values.nbytes == nbytes
    model = Model()
    x, c, y = (model.add_operand(building.FLOAT, values.shape) for _ in range(3))
    model.set_operand_value(c, values)
    values[:] = 5
    model.add_operation("ADD", [x, c, building.fuse(model)], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    values[:] = 9
    (constant,) = [o for o in model.lowered.operands if o.is_constant]
    return float(model.lowered.constant(constant)[0])


class TestSetOperandValueFromMemory:
    def test_set_operand_value_from_memory_rejects_wrong_arguments(self) -> None:
        class DeviceBuffer:
            def copy_to(self, destination: object) -> None: ...

        for index, memory, offset, length in (
            (4, bytes(24), 0, 24),
            (0, bytes(24), 0, 23),
            (0, bytes(24), 1, 24),
            (0, bytes(24), -1, 24),
            (0, bytes(24), 2**70, 24),
            (0, bytes(23), 0, None),
            (0, b"", 0, 24),
            (0, 24, 0, 24),
            (0, DeviceBuffer(), 0, 24),
        ):
            with building.answers(building.BAD_DATA):
                building.unfinished().set_operand_value_from_memory(index, memory, offset, length)

    def test_memory_that_cannot_be_mapped_is_unmappable(self) -> None:
        for memory in (Memory("ashmem", -1, 24), Memory("stone", 1, 24)):
            with building.answers(ResultCode.UNMAPPABLE):
                building.unfinished().set_operand_value_from_memory(0, memory, 0, 24)

    def test_closed_pool_is_rejected(self) -> None:
        pool = MemoryPool.anonymous(24)
        pool.close()
        with building.answers(building.BAD_STATE):
            building.unfinished().set_operand_value_from_memory(0, pool, 0, 24)

    def test_constants_in_a_pool_are_not_copied(self) -> None:
        with MemoryPool.anonymous(4096) as pool:
            pool.view(np.float32, 40, 64)[:] = 3
            pool.view(np.float32, 1, 0)[:] = 4
            model = Model()
            x, c, s, t, y = (
                model.add_operand(building.FLOAT, shape)
                for shape in ((40,), (40,), (1,), (40,), (40,))
            )
            model.set_operand_value_from_memory(c, pool, 64, 160)
            model.set_operand_value_from_memory(s, pool.memory, 0, 4)
            model.add_operation("ADD", [x, c, building.fuse(model)], [t])
            model.add_operation("ADD", [t, s, building.fuse(model)], [y])
            model.identify_inputs_and_outputs([x], [y])
            model.finish()
            constants = [o for o in model.lowered.operands if o.is_constant]
            values = [model.lowered.constant(o) for o in constants]
            assert {float(v[0]) for v in values} == {3.0, 4.0}
            pool.view(np.float32, 40, 64)[:] = 7
            assert {float(v[0]) for v in values} == {7.0, 4.0}
            assert not any(v.flags.writeable for v in values)
            del values
            model.close()

    def test_several_constants_of_one_memory_share_a_pool_at_any_offset(self) -> None:
        memory = bytes(1) + np.arange(80, dtype=np.float32).tobytes()
        model = Model()
        x, c, d, t, y = (model.add_operand(building.FLOAT, (40,)) for _ in range(5))
        model.set_operand_value_from_memory(c, memory, 1, 160)
        model.set_operand_value_from_memory(d, memory, 161, 160)
        model.add_operation("ADD", [x, c, building.fuse(model)], [t])
        model.add_operation("SUB", [t, d, building.fuse(model)], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        assert [len(pool) for pool in model.lowered.pools] == [321]
        with Compilation(model) as compilation:
            compilation.finish()
            outputs = compilation.compiled.run([np.zeros(40, np.float32)])
            assert outputs[0].tolist() == [-40.0] * 40

    def test_constants_may_be_in_a_mapped_file(self, tmp_path: Path) -> None:
        path = tmp_path / "constants"
        path.write_bytes(np.full(6, 2, np.float32).tobytes())
        with path.open("rb") as file:
            region = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        model = building.unfinished()
        model.set_operand_value_from_memory(1, region, 0, 24)
        model.identify_inputs_and_outputs([0], [2])
        model.finish()
        (constant,) = [o for o in model.lowered.operands if o.is_constant]
        assert float(model.lowered.constant(constant)[0, 0]) == 2.0


class TestSetOperandValueFromModel:
    def test_set_operand_value_from_model_rejects_wrong_arguments(self) -> None:
        model = building.unfinished()
        branch = model.add_operand(OperandType.SUBGRAPH)
        with building.answers(building.BAD_DATA):
            model.set_operand_value_from_model(branch + 1, building.finished())
        with building.answers(building.BAD_DATA):
            model.set_operand_value_from_model(branch, "model")  # type: ignore[arg-type]
        for other in (building.unfinished(), building.invalid(), model):
            with building.answers(building.BAD_STATE):
                model.set_operand_value_from_model(branch, other)
        closed = building.finished()
        closed.close()
        with building.answers(building.BAD_STATE):
            model.set_operand_value_from_model(branch, closed)
        model.set_operand_value_from_model(branch, building.finished())

    def test_an_operand_of_another_type_is_found_by_finish(self) -> None:
        model = building.unfinished()
        model.set_operand_value_from_model(1, building.finished())
        model.identify_inputs_and_outputs([0], [2])
        with building.answers(building.BAD_DATA):
            model.finish()

    def test_finish_refuses_a_subgraph_operand_without_a_model(self) -> None:
        model = building.unfinished()
        model.add_operand(OperandType.SUBGRAPH)
        model.identify_inputs_and_outputs([0, 1], [2])
        with building.answers(building.BAD_DATA):
            model.finish()


@pytest.mark.parametrize(("data", "length"), [(b"abc", 3), (b"abc", None), (None, 0)])
def test_extension_data_belongs_to_extension_operands(data: bytes | None, length: int) -> None:
    with building.answers(building.BAD_DATA, "no extension's type"):
        building.unfinished().set_operand_extension_data(0, data, length)


class TestAddOperation:
    @pytest.mark.parametrize(
        ("kind", "inputs", "outputs"),
        [
            (106, [0], [1]),
            (-1, [0], [1]),
            (OperationCode.OEM_OPERATION, [0], [1]),
            (OperationCode.DENSIFY, [0], [1]),
            (1 << 16 | 1, [0], [1]),
            ("NOTHING", [0], [1]),
            (1.0, [0], [1]),
            ("ABS", [0, 1], [2]),
            ("ABS", [], [2]),
            ("ABS", [0], []),
            ("ABS", [4], [2]),
            ("ABS", [0], [-1]),
            ("ABS", [0.0], [2]),
            ("ABS", "0", [2]),
            ("ABS", 0, [2]),
            ("ABS", [3], [2]),
            ("ABS", [0], [3]),
            ("ADD", [0, 1, 2], [2]),
            ("LOGICAL_NOT", [0], [1]),
        ],
    )
    def test_add_operation_rejects_invalid_operations(
        self, kind: Any, inputs: Any, outputs: Any
    ) -> None:
        model = building.unfinished()
        with building.answers(building.BAD_DATA):
            model.add_operation(kind, inputs, outputs)
        model.identify_inputs_and_outputs([0, 1], [2])
        model.finish()
        assert len(model.lowered.operations) == 1

    @pytest.mark.parametrize("kind", [OperationCode.ABS, 38, np.int32(38), "ABS"])
    def test_an_operation_by_member_number_or_name(self, kind: Any) -> None:
        model = building.unfinished()
        y = model.add_operand(building.FLOAT, (2, 3))
        with does_not_raise():
            model.add_operation(kind, np.array([0]), (y,))  # type: ignore[arg-type]

    def test_shapes_that_do_not_fit_are_refused_at_once(self) -> None:
        model = Model()
        x, y, z = (model.add_operand(building.FLOAT, shape) for shape in ((2, 3), (2, 4), (2, 3)))
        with building.answers(building.BAD_DATA):
            model.add_operation("ADD", [x, y, building.fuse(model)], [z])

    def test_scales_and_fuse_codes_are_checked_at_once(self) -> None:
        model = Model()
        x = model.add_operand(QUANT8, (2,), 0.5)
        y = model.add_operand(QUANT8, (2,), 0.25)
        with building.answers(building.BAD_DATA, "scale"):
            model.add_operation("RELU", [x], [y])
        with building.answers(building.BAD_DATA, "fuse code"):
            model.add_operation("ADD", [x, x, building.fuse(model, 4)], [y])

    def test_values_may_be_set_after_add_operation(self) -> None:
        model = Model()
        x, y = (model.add_operand(building.FLOAT, (2,)) for _ in range(2))
        activation = model.add_operand(building.INT)
        model.add_operation("ADD", [x, x, activation], [y])
        model.set_operand_value(activation, 9)
        model.identify_inputs_and_outputs([x], [y])
        with building.answers(building.BAD_DATA, "fuse code 9"):
            model.finish()


class TestIdentify:
    @pytest.mark.parametrize(
        ("inputs", "outputs"),
        [
            ([4], [2]),
            ([0, 1], [-1]),
            ([0, 0], [2]),
            ([0, 1], [2, 2]),
            ([0, 2], [2]),
            ([0, 3], [2]),
            ([0, 1], [3]),
            (["x"], [2]),
            (0, [2]),
        ],
    )
    def test_identify_rejects_wrong_operands(self, inputs: Any, outputs: Any) -> None:
        model = building.unfinished()
        with building.answers(building.BAD_DATA):
            model.identify_inputs_and_outputs(inputs, outputs)
        model.identify_inputs_and_outputs([0, 1], [2])
        model.finish()

    def test_identify_rejects_a_second_call(self) -> None:
        model = building.unfinished()
        model.identify_inputs_and_outputs([0, 1], [2])
        with building.answers(building.BAD_DATA, "lifetime"):
            model.identify_inputs_and_outputs([0, 1], [2])

    @pytest.mark.parametrize(("inputs", "outputs"), [([], [2]), ([0, 1], []), ([], [])])
    def test_a_model_without_inputs_or_outputs_is_found_by_finish(
        self, inputs: list[int], outputs: list[int]
    ) -> None:
        model = building.unfinished()
        model.identify_inputs_and_outputs(inputs, outputs)
        with building.answers(building.BAD_DATA):
            model.finish()

    def test_finish_refuses_an_unwritten_output(self) -> None:
        model = building.unfinished()
        other = model.add_operand(building.FLOAT, (1,))
        model.identify_inputs_and_outputs([0, 1], [2, other])
        with building.answers(building.BAD_DATA):
            model.finish()

    def test_finish_refuses_a_constant_that_is_an_input(self) -> None:
        model = building.unfinished()
        model.identify_inputs_and_outputs([0, 1], [2])
        model.set_operand_value(0, bytes(24))
        with building.answers(building.BAD_DATA):
            model.finish()


@pytest.mark.parametrize("value", [2, "yes", 0.5, []])
def test_relaxation_is_true_or_false(value: Any) -> None:
    with building.answers(building.BAD_DATA):
        building.unfinished().relax_computation_float32_to_float16(value)


def test_the_lowered_model_is_there_once_it_is_finished() -> None:
    for model in (building.unfinished(), building.invalid()):
        with building.answers(building.BAD_STATE):
            _ = model.lowered
        assert not model.is_finished
    assert building.finished().is_finished
    assert [i.name for i in building.finished().lowered.inputs] == ["x", "y"]


class TestFree:
    """Everything may be freed at any time (NNAPI's free group)."""

    def test_unfinished_model_is_freed(self) -> None:
        building.unfinished().close()
        with Model():
            pass
        model: Model | None = building.unfinished()
        assert model is not None
        model = None
        gc.collect()

    def test_a_finished_model_before_what_refers_to_it(self) -> None:
        branch = building.finished()
        model = building.unfinished()
        operand = model.add_operand(OperandType.SUBGRAPH)
        model.set_operand_value_from_model(operand, branch)
        with does_not_raise():
            branch.close()
            model.identify_inputs_and_outputs([0, 1], [2])
            model.finish()
            model.close()
