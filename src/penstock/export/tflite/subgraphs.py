"""The subgraphs of a model as tables of the file: operators, options, and initial values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.errors import NotExportable, Place
from penstock.export.tflite.encoding import Buffers
from penstock.export.tflite.fields import BLOCK_SCALED, OPTIONS_OF_OPERATOR, TFLITE, Field, Kind
from penstock.export.tflite.state import SubgraphState, plan_state, ports_by_variable
from penstock.interrupts import polled
from penstock.ir.builder import pack_strings
from penstock.ir.model import Model
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.operation import AttributeValue, Operation
from penstock.ir.subgraph import StatePort
from penstock.ir.transforms import renumber_references
from penstock.ir.types import DType, Quantization, byte_size, element_count

Values: TypeAlias = "dict[str, Any]"

PLACEHOLDER: Final = 127

INTERMEDIATES: Final = frozenset({"intermediate_scales", "intermediate_zero_points"})
"""Attributes that TFLite stores as tensors of the operator instead of options."""


class OperatorCodes:
    """Collects the operator codes of a file without duplicates."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []
        self._known: dict[tuple[int, int, str], int] = {}

    def index(self, operation: Operation) -> int:
        """The index of the code of *operation*. Raises `NotExportable` if TFLite has no such
        operator.
        """
        number = TFLITE.numbers("BuiltinOperator").get(operation.type)
        if number is None:
            raise NotExportable(f"TFLite has no operator {operation.key}")
        origin = operation.origin
        own = origin is not None and origin.opcode == number and origin.version
        custom = operation.attributes.text("custom_code") if operation.type == "CUSTOM" else ""
        return self.add(operation.type, own or 1, custom)

    def add(self, kind: str, version: int = 1, custom: str = "") -> int:
        """The index of the code of operator type *kind*."""
        number = TFLITE.number("BuiltinOperator", kind)
        key = (number, version, custom)
        if key not in self._known:
            self._known[key] = len(self.tables)
            self.tables.append({
                "deprecated_builtin_code": min(number, PLACEHOLDER),
                "custom_code": custom or None,
                "version": version,
                "builtin_code": number,
            })  # fmt: skip
        return self._known[key]


def options(operation: Operation) -> dict[str, Any]:
    """The fields of an operator table for the attributes of *operation*."""
    attributes = operation.attributes
    if operation.type == "CUSTOM":
        return {"custom_options": attributes.get("custom_options") or None}
    name = OPTIONS_OF_OPERATOR.get(operation.type)
    if name is None:
        return {}
    fields = TFLITE.table(name).by_name
    for attribute in attributes:
        if attribute not in fields and attribute not in INTERMEDIATES:
            raise NotExportable(f"TFLite's {operation.type} has no attribute {attribute!r}")
    values = {k: _value(fields[k], v) for k, v in attributes.items() if k in fields}
    return _options_field(name, values)


def _options_field(name: str, values: Values) -> Values:
    """The field of an operator with the options table called *name*."""
    suffix = "2" if name in TFLITE.unions["BuiltinOptions2"] else ""
    kind = TFLITE.unions[f"BuiltinOptions{suffix}"].index(name)
    return {f"builtin_options{suffix}_type": kind, f"builtin_options{suffix}": values}


def _value(field: Field, value: AttributeValue) -> Any:
    if field.enum and field.kind is Kind.SCALAR:
        number = TFLITE.numbers(field.enum).get(str(value))
        if number is None:
            raise NotExportable(f"{field.name} {value!r} is not a {field.enum}")
        return number
    return value


def blockwise(scales: int, size: int) -> dict[str, Any]:
    """The `QuantizationParameters` of a tensor in blocks of *size* elements, whose scales are
    tensor *scales*.
    """
    return {
        "details_type": TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization"),
        "details": {"scales": scales, "zero_points": -1, "block_size": size},
    }


OMITTED: Final = -1


class FileParts:
    """What the subgraphs of one file share. *numbers* has the file's index of each subgraph in
    *order*.
    """

    def __init__(self, model: Model, order: Sequence[int]) -> None:
        self.model = model
        self.numbers = {index: at for at, index in enumerate(order)}
        self.codes, self.buffers = OperatorCodes(), Buffers(model)
        self.ports = ports_by_variable(model)


class _Graph:
    """Tensors and operators of one subgraph of the file."""

    def __init__(self, parts: FileParts) -> None:
        self.model, self.codes, self.buffers = parts.model, parts.codes, parts.buffers
        self.tensors: list[Values] = []
        self.operators: list[Values] = []

    def emit(self, kind: str, inputs: list[int], outputs: list[int], **options: Any) -> None:
        """Appends an operator that the model does not have."""
        fields = _options_field(OPTIONS_OF_OPERATOR[kind], options) if options else {}
        self.operators.append({
            "opcode_index": self.codes.add(kind), "inputs": inputs, "outputs": outputs, **fields
        })  # fmt: skip

    def add_tensor(self, operand: Operand, buffer: int = 0, *, variable: bool = False) -> int:
        self.tensors.append(tensor_table(operand, buffer, variable=variable))
        return len(self.tensors) - 1

    def handle(self, variable: int) -> int:
        """A resource tensor that refers to *variable*."""
        name = shared_name(self.model, variable)
        tensor = self.add_tensor(Operand(DType.RESOURCE, (), name=name))
        self.emit("VAR_HANDLE", [], [tensor], container="", shared_name=name)
        return tensor

    def finish(self, name: str, inputs: list[int], outputs: list[int]) -> Values:
        """The `SubGraph` table."""
        return {
            "tensors": self.tensors,
            "inputs": inputs,
            "outputs": outputs,
            "operators": self.operators,
            "name": name or None,
        }


class SubgraphWriter(_Graph):
    """Writes subgraph *index* of the model."""

    def __init__(self, parts: FileParts, index: int) -> None:
        super().__init__(parts)
        self.index, self.numbers = index, parts.numbers
        self.subgraph = parts.model.subgraphs[index]
        self.state: SubgraphState = plan_state(parts.model, index, parts.ports)
        self.known: dict[int, int] = {}
        self.hashtables: dict[tuple[int, int | None], int] = {}

    @property
    def has_initial_values(self) -> bool:
        """Whether any resource variable of this subgraph gets a value before the first run."""
        return any(has_initial_value(self.model, p) for p in self.state.resources)

    def table(self, init: int | None, *, outputs_first: bool = False) -> Values:
        """The `SubGraph` table. *init* is the subgraph of initial values, entered first. With
        *outputs_first* the tensors of outputs follow the tensors of inputs.
        """
        subgraph = self.subgraph
        state_inputs = {p.input for p in subgraph.states}
        inputs = [self.tensor_of(i) for i in subgraph.inputs if i not in state_inputs]
        if outputs_first:
            for i in subgraph.ordinary_outputs:
                self.tensor_of(i)
        if self.has_initial_values and init is not None:
            self.emit("CALL_ONCE", [], [], init_subgraph_index=init)
        handles = {port.variable: self.read_variable(port) for port in self.state.resources}
        for at, operation in enumerate(polled(subgraph.operations)):
            self.operation(at, operation)
        for port in self.state.resources:
            if port.output is not None:
                self.emit(
                    "ASSIGN_VARIABLE", [handles[port.variable], self.tensor_of(port.output)], []
                )
        outputs = [self.tensor_of(i) for i in subgraph.ordinary_outputs]
        return self.finish(subgraph.name, inputs, outputs)

    def tensor_of(self, index: int) -> int:
        """The tensor for operand *index*, created on first use; -1 for an omitted operand."""
        operand = self.subgraph.operands[index]
        if operand.lifetime is Lifetime.NO_VALUE:
            return OMITTED
        if index not in self.known:
            if operand.extension is not None:
                raise NotExportable(
                    f"operand {operand.name!r} has an extension's type, {operand.extension.name}, "
                    "which TFLite does not have",
                    where=Place(self.index),
                )
            buffer, variable = self.buffers.constant(operand), index in self.state.variable_tensors
            self.known[index] = self.add_tensor(operand, buffer, variable=variable)
        return self.known[index]

    def operation(self, at: int, operation: Operation) -> None:
        try:
            if operation.type in ("HASHTABLE_FIND", "HASHTABLE_SIZE"):
                self.lookup(operation)
            else:
                self.ordinary(at, operation)
        except NotExportable as error:
            raise error.at(Place(self.index, at, type=operation.type)) from None

    def ordinary(self, at: int, operation: Operation) -> None:
        kept = self.state.kept_inputs.get(at, len(operation.inputs))
        blocks = BLOCK_SCALED.get(operation.type, kept)
        if blocks < kept:
            kept = blocks
            self.scale_by_blocks(operation, blocks)
        inputs = [self.tensor_of(i) for i in operation.inputs[:kept]]
        mutated = self.state.mutated.get(at, ())
        values: Values = {
            "opcode_index": self.codes.index(operation),
            "inputs": inputs,
            "outputs": [
                self.tensor_of(i) for i in operation.outputs if i not in self.state.dropped
            ],
            **options(renumber_references(operation, self.numbers)),
        }
        if mutated:
            values["mutating_variable_inputs"] = [i in mutated for i in range(len(inputs))]
        if scales := operation.attributes.get("intermediate_scales"):
            values["intermediates"] = self.intermediates(
                scales, operation.attributes.integers("intermediate_zero_points")
            )
        self.operators.append(values)

    def scale_by_blocks(self, operation: Operation, position: int) -> None:
        """Makes the weights of *operation* refer to the scales of blocks, its input at
        *position*.
        """
        weights, scales = (operation.inputs[i] for i in (1, position))
        shapes = [self.subgraph.operands[i].shape for i in (weights, scales)]
        depth, blocks = (s[1] if s is not None and len(s) == 2 else None for s in shapes)
        if not depth or not blocks or not self.subgraph.operands[scales].is_constant:
            raise NotExportable(
                "TFLite's scales of blocks are constants, of weights of known shape"
            )
        table = self.tensors[self.tensor_of(weights)]
        table["quantization"] = blockwise(self.tensor_of(scales), depth // blocks)

    def read_variable(self, port: StatePort) -> int:
        handle = self.handle(port.variable)
        if port.input is not None:
            self.emit("READ_VARIABLE", [handle], [self.tensor_of(port.input)])
        return handle

    def lookup(self, operation: Operation) -> None:
        """HASHTABLE_FIND or HASHTABLE_SIZE of constants: an imported table, then the operator."""
        find = operation.type == "HASHTABLE_FIND"
        content = operation.inputs[:2] if find else operation.inputs[:1]
        if not all(self.subgraph.operands[i].is_constant for i in content):
            raise NotExportable(
                "TFLite's tables are filled once; these keys or values are not constant"
            )
        keys = content[0]
        values = content[1] if find else self.values_beside(keys)
        handle = self.hash_table(keys, values)
        inputs = [handle, *(self.tensor_of(i) for i in operation.inputs[len(content) :])]
        self.emit(operation.type, inputs, [self.tensor_of(i) for i in operation.outputs])

    def values_beside(self, keys: int) -> int | None:
        """The values that other operations of this subgraph look up with the same keys."""
        for operation in self.subgraph.operations:
            if operation.type == "HASHTABLE_FIND" and operation.inputs[0] == keys:
                values = operation.inputs[1]
                return values if self.subgraph.operands[values].is_constant else None
        return None

    def hash_table(self, keys: int, values: int | None) -> int:
        """The handle tensor of the table with these constants."""
        if (keys, values) not in self.hashtables:
            known = self.subgraph.operands[keys]
            if values is None:
                beside = unasked_values(known)
                tensor = self.add_tensor(beside, self.buffers.constant(beside))
            else:
                beside, tensor = self.subgraph.operands[values], self.tensor_of(values)
            if 0 in (known.shape or ()) or 0 in (beside.shape or ()):
                raise NotExportable("TFLite has no form for a table without entries")
            number = self.buffers.table_number(known, beside)
            key, value = (element_type(o.dtype) for o in (known, beside))
            handle = self.add_tensor(Operand(DType.RESOURCE, (), name=f"table_{number}"))
            types = {"key_dtype": key, "value_dtype": value}
            self.emit("HASHTABLE", [], [handle], table_id=number, **types)
            self.emit("HASHTABLE_IMPORT", [handle, self.tensor_of(keys), tensor], [])
            self.hashtables[keys, values] = handle
        return self.hashtables[keys, values]

    def intermediates(self, scales: Any, zero_points: tuple[int, ...]) -> list[int]:
        """Tensors whose quantisation has the scales inside an integer LSTM. The tensor for a scale
        of 0 has no quantisation.
        """
        known = [
            Quantization((scale,), (zero,)) if scale else None
            for scale, zero in zip(scales, zero_points, strict=True)
        ]
        plain = Operand(DType.INT16, (), name="intermediate")
        return [self.add_tensor(replace(plain, quantization=each)) for each in known]


def has_initial_value(model: Model, port: StatePort) -> bool:
    """Whether a constant can give the variable of *port* its initial value."""
    variable = model.variables[port.variable]
    if not variable.assigned:
        return False
    if variable.value is not None:
        return bool(variable.value)
    if variable.shape is None or None in variable.shape:
        return False
    return bool(byte_size(variable.dtype, variable.shape))


def shared_name(model: Model, variable: int) -> str:
    """The name of a variable in the file: its name, made unique."""
    name = model.variables[variable].name
    return f"{name}#{variable}" if _names_of(model)[name] > 1 else name


def _names_of(model: Model) -> Counter[str]:
    """The number of variables of *model* with each name, counted once."""
    known: Counter[str] | None = model.__dict__.get("_variable_names")
    if known is None:
        known = model.__dict__["_variable_names"] = Counter(v.name for v in model.variables)
    return known


def element_type(dtype: DType) -> int:
    """The format's number of an element type."""
    return TFLITE.number("TensorType", dtype.value.upper())


def tensor_table(operand: Operand, buffer: int, *, variable: bool = False) -> Values:
    """The `Tensor` table of an operand.

    A shape that the loaded file did not declare is not declared here either, because LiteRT's
    choices depend on it. The shape of an input is always declared, because a caller must know it.
    """
    is_declared = operand.shape_declared or operand.lifetime is Lifetime.SUBGRAPH_INPUT
    shape = (operand.shape or ()) if is_declared else ()
    table: Values = {
        "shape": [1 if d is None else d for d in shape],
        "type": element_type(operand.dtype),
        "buffer": buffer,
        "name": operand.name or None,
        "is_variable": variable,
        "has_rank": is_declared and operand.shape is not None,
    }
    if None in shape:
        table["shape_signature"] = [-1 if d is None else d for d in shape]
    q = operand.quantization
    if q is not None:
        table["quantization"] = {
            "scale": q.scales,
            "zero_point": q.zero_points,
            "quantized_dimension": q.dimension or 0,
        }
    return table


def initial_values(parts: FileParts, writers: list[SubgraphWriter]) -> Values:
    """A subgraph that assigns the initial value to each resource variable that has one, once."""
    graph, model, buffers = _Graph(parts), parts.model, parts.buffers
    for index in dict.fromkeys(
        p.variable for w in writers for p in w.state.resources if has_initial_value(model, p)
    ):
        variable, handle = model.variables[index], graph.handle(index)
        zeros = bytes(byte_size(variable.dtype, variable.shape or ()) or 0)
        buffer = buffers.constant(variable) or buffers.blob(zeros)
        name = f"{shared_name(model, index)}/initial"
        value = Operand(
            variable.dtype, variable.shape, name=name, quantization=variable.quantization
        )
        graph.emit("ASSIGN_VARIABLE", [handle, graph.add_tensor(value, buffer)], [])
    return graph.finish("initial_values", [], [])


def unasked_values(keys: Operand) -> Operand:
    """Values for a table whose *keys* alone are read: int64 for strings, strings for int64."""
    shape = tuple(d or 0 for d in keys.shape or ())
    count = element_count(shape)
    if keys.dtype is DType.STRING:
        return Operand(DType.INT64, shape, Lifetime.CONSTANT_COPY, value=bytes(8 * count))
    value = pack_strings(np.full(count, b"", object))
    return Operand(DType.STRING, shape, Lifetime.CONSTANT_COPY, value=value)
