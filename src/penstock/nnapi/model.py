"""`Model`: NNAPI's model, built call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.closing import Closing
from penstock.hal import AccuracyClass, Device as HalDevice
from penstock.ir import ConstantPool, DataLocation, Model as IrModel, infer_shapes
from penstock.nnapi import assembly, codes, parameters
from penstock.nnapi.description import (
    AnyType,
    ExtensionType,
    NnapiLifetime,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
)
from penstock.nnapi.devices import Device, choose_devices, identifier, operand_type, operation_type
from penstock.nnapi.lowering import lower_traced
from penstock.nnapi.values import constant_pool, value_bytes
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support, uses_extensions
from penstock.runtime.planning import trusted


class Model(Closing):
    """A model under construction, then finished: `ANeuralNetworksModel` (NNAPI section 1.4).

    Operands are numbered as they are added. `finish` validates and lowers the model. Before
    `finish` the model can only be changed, afterwards only be used. Every call raises `NnapiError`:
    BAD_STATE at the wrong time, UNEXPECTED_NULL for an invalid None, BAD_DATA for a broken rule. A
    failed call leaves the model unchanged; a failed `finish` makes it invalid.

    Not thread-safe until it is finished.
    """

    def __init__(self) -> None:
        self._operands: list[assembly.OperandSlot] = []
        self._operations: list[NnapiOperation] = []
        self._inputs: tuple[int, ...] = ()
        self._outputs: tuple[int, ...] = ()
        self._memories: dict[int, ConstantPool] = {}
        self._relaxed = False
        self._sealed: str = ""
        self._made: tuple[assembly.FinishedSubgraph, IrModel] | None = None
        self._became: tuple[range, ...] = ()

    def add_operand(
        self,
        type: AnyType | int,
        dimensions: Sequence[int | None] | None = (),
        scale: float = 0.0,
        zero_point: int = 0,
        *,
        name: str = "",
    ) -> int:
        """Adds an operand and returns its index.

        *type* may be the number of an extension type (`get_extension_operand_type`). *dimensions*
        of a tensor: 0 or None for an unknown one, an empty list for an unknown rank; a scalar has
        none. *name* is the name of an input or output in the compiled model.
        """
        self._check_open()
        kind = operand_type(type)
        slot = assembly.OperandSlot(
            NnapiOperand(
                kind,
                parameters.dimensions(dimensions, tensor=kind.is_tensor),
                scale=parameters.real(scale, "the scale"),
                zero_point=parameters.whole(zero_point, "the zero point"),
                name=parameters.text(name, "the name"),
            )
        )
        slot.check_type()
        if len(self._operands) == codes.MAX_NUMBER_OF_OPERANDS:
            raise codes.bad_data(f"a model has at most {codes.MAX_NUMBER_OF_OPERANDS} operands")
        self._operands.append(slot)
        return len(self._operands) - 1

    def set_operand_symm_per_channel_quant_params(
        self, index: int, channel_dim: int, scales: Sequence[float]
    ) -> None:
        """Sets the scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL along dimension *channel_dim*."""
        slot = self._slot(index)
        dimension = parameters.whole(channel_dim, "the channel dimension", 0)
        given = [parameters.real(s, "a scale") for s in parameters.listed(scales, "the scales")]
        slot.set_channels(dimension, given)

    def set_operand_value(self, index: int, value: object, length: int | None = None) -> None:
        """Makes the operand a constant; None omits an optional operand.

        *value* is a NumPy array of the operand's dtype, a buffer of raw little-endian bytes, or one
        number for a scalar. Up to 128 bytes are copied now; larger memory must stay unchanged until
        `finish` has copied it. *length* is in bytes, by default that of *value*. Setting a value
        again replaces it.
        """
        slot = self._slot(index)
        given = None if length is None else parameters.whole(length, "the length", 0, 2**63)
        if value is None:
            if given:
                raise codes.unexpected_null(f"the value of {given} bytes")
            slot.set(NnapiLifetime.NO_VALUE)
            return
        needed = slot.nbytes()
        view = value_bytes(value, slot.type)
        if given is not None and given > len(view):
            raise codes.bad_data(f"{given} bytes of a value that has {len(view)}")
        _check_length(len(view) if given is None else given, needed)
        view = view[:needed]
        if needed <= codes.MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES:
            view = memoryview(bytes(view))
        slot.set(NnapiLifetime.CONSTANT_COPY, value=view)

    def set_operand_value_from_memory(
        self, index: int, memory: object, offset: int = 0, length: int | None = None
    ) -> None:
        """Makes the operand a constant in *memory*, *length* bytes from byte *offset*.

        *memory* is a `Memory`, a `penstock.memory.MemoryPool`, a `hal.Memory` or another buffer (an
        `mmap`, an array). It is not copied: it must outlive the model, and its bytes must not
        change after `finish`. Raises BAD_DATA for bytes outside *memory*, hardware buffers that are
        not BLOBs, and memory made from a descriptor.
        """
        slot = self._slot(index)
        start = parameters.whole(offset, "the offset", 0, 2**63)
        given = None if length is None else parameters.whole(length, "the length", 0, 2**63)
        pool = self._memories.get(id(memory)) or constant_pool(memory)
        needed = slot.nbytes()
        _check_length(needed if given is None else given, needed)
        if start + needed > len(pool):
            raise codes.bad_data(f"bytes {start} to {start + needed} of a memory of {len(pool)}")
        self._memories[id(memory)] = pool
        place = DataLocation(0, start, needed)
        slot.set(NnapiLifetime.CONSTANT_POOL, memory=pool, location=place)

    def set_operand_value_from_model(self, index: int, model: Model) -> None:
        """Makes the operand refer to a finished *model*, for IF or WHILE."""
        slot = self._slot(index)
        slot.set(NnapiLifetime.SUBGRAPH, model=finished_model(model).made[0])

    def set_operand_extension_data(
        self, index: int, data: object, length: int | None = None
    ) -> None:
        """Attaches data to an operand of an extension type.

        The data are *length* bytes of the buffer *data* (all without *length*), copied now. None
        removes them. Raises BAD_DATA for an operand of another type, an empty buffer, and more than
        1 MiB; UNEXPECTED_NULL for a *length* without a buffer.
        """
        slot = self._slot(index)
        content = parameters.extension_bytes(data, length, "the extension data")
        if not isinstance(slot.type, ExtensionType):
            raise codes.bad_data(
                f"a {slot.type.name} is no extension's type and has no extension data"
            )
        slot.operand = replace(slot.operand, extension_data=content)

    def get_extension_operand_type(
        self, extension_name: str, operand_code_within_extension: int
    ) -> int:
        """The number of an extension's operand type in this process, for `add_operand`.

        Raises BAD_DATA if no usable device offers the extension, or devices declare it differently.
        """
        return self._identifier(extension_name, operand_code_within_extension, "operand type")

    def get_extension_operation_type(
        self, extension_name: str, operation_code_within_extension: int
    ) -> int:
        """The number of an extension's operation in this process, for `add_operation`.

        Only the device knows whether the operation exists: see
        `get_supported_operations_for_devices`.
        """
        return self._identifier(extension_name, operation_code_within_extension, "operation")

    def _identifier(self, extension_name: object, code: object, what: str) -> int:
        name = parameters.text(extension_name, "the extension's name")
        return identifier(name, parameters.code_within(code, f"the number of the {what}"))

    def add_operation(
        self, type: codes.OperationCode | int | str, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Adds an operation, in any order.

        Checks number and types of its operands, and everything else that later calls cannot change.
        `finish` checks the rest.
        """
        self._check_open()
        operation = NnapiOperation(
            operation_type(type),
            parameters.indexes(inputs, "an input", len(self._operands)),
            parameters.indexes(outputs, "an output", len(self._operands)),
        )
        assembly.check_operation(operation, self._operands)
        if len(self._operations) == codes.MAX_NUMBER_OF_OPERANDS:
            raise codes.bad_data(f"a model has at most {codes.MAX_NUMBER_OF_OPERANDS} operations")
        self._operations.append(operation)

    def identify_inputs_and_outputs(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Sets the inputs and outputs of the model, in order, once. They must have no value."""
        self._check_open()
        count, seen = len(self._operands), set()
        read = parameters.indexes(inputs, "an input", count)
        written = parameters.indexes(outputs, "an output", count)
        for index in (*read, *written):
            lifetime = self._operands[index].lifetime
            if index in seen:
                raise codes.bad_data(f"operand {index} is named twice")
            if lifetime is not NnapiLifetime.TEMPORARY_VARIABLE:
                raise codes.bad_data(f"operand {index} has the lifetime {lifetime.value} already")
            seen.add(index)
        for index in read:
            self._operands[index].set(NnapiLifetime.SUBGRAPH_INPUT)
        for index in written:
            self._operands[index].set(NnapiLifetime.SUBGRAPH_OUTPUT)
        self._inputs, self._outputs = read, written

    def relax_computation_float32_to_float16(self, allow: bool) -> None:
        """Sets whether float32 may be computed with the range and precision of float16.

        Compilations then accept the arithmetic of every device (the accuracy class "relaxed").
        """
        self._check_open()
        self._relaxed = parameters.flag(allow, "allow")

    def finish(self) -> None:
        """Sorts, validates and lowers the model. After BAD_DATA the model stays invalid."""
        self._check_open()
        self._sealed = "invalid"
        try:
            with codes.translated():
                order = assembly.in_run_order(self._operands, self._operations)
                packing = assembly.Packing()
                operands = tuple(map(packing.operand, self._operands))
                operations = tuple(self._operations[i] for i in order)
                finished = packing.finished(
                    NnapiSubgraph(operands, operations, self._inputs, self._outputs)
                )
                lowered, became = lower_traced(assembly.assemble(finished, relaxed=self._relaxed))
        finally:
            self._release()
        by_place = dict(zip(order, became, strict=True))
        self._became = tuple(by_place[i] for i in range(len(order)))
        self._made, self._sealed = (finished, lowered), "finished"

    def get_supported_operations_for_devices(
        self, devices: Sequence[Device | HalDevice | str]
    ) -> list[bool]:
        """Whether *devices* together support each operation, in order of addition."""
        model = self.lowered
        _, chosen = choose_devices(devices)
        with codes.translated():
            model = infer_shapes(model)
            policy = policy_of(self)
            table = collect_support(model, trusted(chosen, policy), policy)
        taken = [bool(table.takers(i)) for i in range(len(model.operations))]
        return [all(taken[i] for i in became) for became in self._became]

    @property
    def is_finished(self) -> bool:
        """Whether `finish` has succeeded."""
        return self._made is not None

    @property
    def made(self) -> tuple[assembly.FinishedSubgraph, IrModel]:
        """The finished model, and the lowered one; BAD_STATE unless it is finished and valid."""
        if self._made is None:
            raise codes.bad_state(f"the model is {self._sealed or 'not finished'}")
        return self._made

    @property
    def lowered(self) -> IrModel:
        """The lowered model; BAD_STATE unless it is finished and valid."""
        return self.made[1]

    @property
    def is_relaxed(self) -> bool:
        """Whether float32 may be computed with the range and precision of float16."""
        return self._relaxed

    def close(self) -> None:
        """Frees it, finished or not. Its compilations stay valid. A second call has no effect."""
        self._release()
        self._operands, self._operations, self._sealed, self._made = [], [], "closed", None

    def _release(self) -> None:
        """Drops references to callers' memory and models."""
        self._memories.clear()
        for slot in self._operands:
            slot.value = slot.memory = slot.model = None

    def _check_open(self) -> None:
        if self._sealed:
            raise codes.bad_state(f"the model is {self._sealed} and can no longer be changed")

    def _slot(self, index: object) -> assembly.OperandSlot:
        """Operand *index*, to be changed."""
        self._check_open()
        return self._operands[parameters.index(index, "operand", len(self._operands))]


def finished_model(model: object) -> Model:
    """*model* if it is finished and valid. Raises UNEXPECTED_NULL for None, else BAD_STATE."""
    found = parameters.instance(model, Model, "the model")
    _ = found.made
    return found


def policy_of(model: Model, *, allow_fallback: bool = True) -> Policy:
    """The policy for compiling *model*: NNAPI's placement, and the model's accuracy.

    A model with extensions does not fall back to the processor (NNAPI section 4.6).
    """
    accuracy: AccuracyClass = "relaxed" if model.is_relaxed else "faithful"
    allow = allow_fallback and not uses_extensions(model.lowered)
    return Policy(placement="nnapi", accuracy=accuracy, allow_fallback=allow)


def _check_length(given: int, needed: int) -> None:
    if given != needed:
        raise codes.bad_data(f"{given} bytes of value, where {needed} are needed")
