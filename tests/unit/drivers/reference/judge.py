"""LiteRT's reference kernels as the judge: its models as sites, and every tensor of a run.

The reading here goes through LiteRT's own generated schema, so that a mistake of Penstock's loader
cannot hide one of its kernels.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference.ops.kernel import Site
from penstock.ir import Attributes, DType, Lifetime, NDArray, Operand, Operation, Quantization
from penstock.ir.operations import OPERATIONS

schema: Any = pytest.importorskip(
    "ai_edge_litert.schema_py_generated", reason="ai-edge-litert, the judge, is not installed"
)
interpreter: Any = pytest.importorskip("ai_edge_litert.interpreter")

TYPES = {v: DType(k.lower()) for k, v in vars(schema.TensorType).items() if not k.startswith("__")}
CODES = {v: k for k, v in TYPES.items()}
OPERATORS = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("__")}
ENUMS = {
    "padding": schema.Padding,
    "fused_activation_function": schema.ActivationFunctionType,
    "quantized_bias_type": schema.TensorType,
    "weights_format": schema.FullyConnectedOptionsWeightsFormat,
    "type": schema.LSHProjectionType,
    "mode": schema.MirrorPadMode,
    "in_data_type": schema.TensorType,
    "out_data_type": schema.TensorType,
    "kernel_type": schema.LSTMKernelType,
    "combiner": schema.CombinerType,
}


@dataclass(frozen=True)
class Step:
    """One operator of a model and the tensors it reads (-1: omitted) and writes."""

    site: Site
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model to be made; *value* makes it a constant."""

    dtype: DType
    shape: tuple[int, ...]
    quantization: Quantization | None = None
    value: NDArray | None = field(default=None, compare=False)


def steps(content: bytes, shapes: Mapping[int, tuple[int, ...]] | None = None) -> list[Step]:
    """The operators of the main subgraph, each with its site; *shapes* replace the tensors' own."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    operands = [_operand(model, t, (shapes or {}).get(i)) for i, t in enumerate(graph.tensors)]
    found = []
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        kind = OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)]
        inputs, outputs = (
            tuple(map(int, x if x is not None else ())) for x in (operator.inputs, operator.outputs)
        )
        options = _attributes(operator.builtinOptions)
        attributes = OPERATIONS[kind].complete(options) if kind in OPERATIONS else Attributes()
        site = Site(
            Operation(kind, inputs, outputs, attributes),
            tuple(None if i < 0 else operands[i][0] for i in inputs),
            tuple(operands[i][0] for i in outputs),
            _Values([None if i < 0 else operands[i][1] for i in inputs]),
        )
        found.append(Step(site, inputs, outputs))
    return found


@dataclass(frozen=True)
class _Values:
    arrays: Sequence[NDArray | None]

    def __call__(self, index: int) -> NDArray | None:
        return self.arrays[index]


def _operand(
    model: Any, tensor: Any, shape: tuple[int, ...] | None
) -> tuple[Operand, NDArray | None]:
    dtype = TYPES[tensor.type]
    if shape is None:
        shape = tuple(int(d) for d in tensor.shape) if tensor.shape is not None else ()
    q, quantization = tensor.quantization, None
    if q is not None and q.scale is not None and len(q.scale) and np.any(q.scale):
        scales = tuple(float(s) for s in q.scale)
        zero_points = q.zeroPoint if q.zeroPoint is not None else [0]
        if len(zero_points) != len(scales):
            zero_points = [zero_points[0]] * len(scales)
        dimension = int(q.quantizedDimension) if len(scales) > 1 else None
        quantization = Quantization(scales, tuple(map(int, zero_points)), dimension)
    data = model.buffers[tensor.buffer].data
    value = None
    lifetime = Lifetime.TEMPORARY_VARIABLE
    if data is not None and len(data) and not tensor.isVariable and dtype.bits:
        value = unpack(np.asarray(data, np.uint8), dtype, shape)
        lifetime = Lifetime.CONSTANT_POOL
    return Operand(dtype, shape, lifetime, (tensor.name or b"").decode(), quantization), value


def unpack(data: NDArray, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    if dtype is not DType.INT4:
        return np.frombuffer(data.tobytes(), dtype.numpy).reshape(shape)
    nibbles = np.stack([data & 15, data >> 4], -1).reshape(-1)[: int(np.prod(shape))]
    return ((nibbles.astype(np.int8) ^ 8) - 8).astype(dtype.numpy).reshape(shape)


def _attributes(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(options).items() if options is not None else ():
        key = re.sub(r"(?<=[a-z0-9])([A-Z])|([A-Z])(?=[a-z])", r"_\1\2", name).lower()
        if key in ENUMS:
            names = {v: k for k, v in vars(ENUMS[key]).items() if not k.startswith("_")}
            found[key] = names[value]
        elif isinstance(value, np.ndarray | list):
            found[key] = tuple(x.item() if hasattr(x, "item") else x for x in value)
        elif value is not None:
            found[key] = value
    return found


def single(
    kind: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    options: str = "",
    **values: Any,
) -> bytes:
    """A model of one operator; *options* names its options table, *values* its fields."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = 1
    model.operatorCodes = [code]
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs = [], [], []
    operator = schema.OperatorT()
    operator.inputs, operator.outputs = [], []
    for group, indexes, ends in (
        (inputs, operator.inputs, graph.inputs),
        (outputs, operator.outputs, graph.outputs),
    ):
        for tensor in group:
            if tensor is None:
                indexes.append(-1)
                continue
            indexes.append(len(graph.tensors))
            if tensor.value is None:
                ends.append(len(graph.tensors))
            graph.tensors.append(_tensor(model, tensor, f"t{len(graph.tensors)}"))
    if options:
        table = getattr(schema, options + "T")()
        for key, value in values.items():
            if not hasattr(table, key):
                raise AttributeError(f"{options} has no {key}")
            snake = re.sub(r"([A-Z])", r"_\1", key).lower()
            setattr(table, key, getattr(ENUMS[snake], value) if isinstance(value, str) else value)
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        operator.builtinOptions = table
    graph.operators = [operator]
    model.subgraphs = [graph]
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(model: Any, tensor: Tensor, name: str) -> Any:
    made = schema.TensorT()
    made.shape, made.type, made.name = list(tensor.shape), CODES[tensor.dtype], name
    made.buffer = 0
    if tensor.value is not None:
        buffer = schema.BufferT()
        value = np.asarray(tensor.value)
        if tensor.dtype is DType.INT4:
            flat = value.astype(np.int8).reshape(-1).view(np.uint8) & 15
            flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
            data = flat[::2] | flat[1::2] << 4
        else:
            data = np.frombuffer(value.tobytes(), np.uint8)
        buffer.data = data
        made.buffer = len(model.buffers)
        model.buffers.append(buffer)
    if (q := tensor.quantization) is not None:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale = list(q.scales)
        made.quantization.zeroPoint = list(q.zero_points)
        made.quantization.quantizedDimension = q.dimension or 0
    return made


class Run:
    """A model on LiteRT's reference kernels, every tensor of its main subgraph kept."""

    def __init__(self, content: bytes) -> None:
        self._interpreter = interpreter.Interpreter(
            model_content=content,
            experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_REF,
            experimental_preserve_all_tensors=True,
            num_threads=1,
        )
        self._interpreter.allocate_tensors()

    @property
    def inputs(self) -> list[dict[str, Any]]:
        return list(self._interpreter.get_input_details())

    def __call__(self, inputs: Sequence[NDArray]) -> None:
        for detail, value in zip(self.inputs, inputs, strict=True):
            if tuple(detail["shape"]) != value.shape:
                self._interpreter.resize_tensor_input(detail["index"], value.shape)
        self._interpreter.allocate_tensors()
        for detail, value in zip(self.inputs, inputs, strict=True):
            self._interpreter.set_tensor(detail["index"], value)
        self._interpreter.invoke()

    def tensor(self, index: int) -> NDArray:
        """The value after the run, in the operand's array form."""
        array: NDArray = self._interpreter.get_tensor(index)
        return array

    @property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        details = self._interpreter.get_tensor_details()
        return {d["index"]: tuple(map(int, d["shape"])) for d in details}


def with_attributes(site: Site, **attributes: Any) -> Site:
    """The same site with some attributes replaced."""
    operation = dataclasses.replace(
        site.operation, attributes=Attributes({**site.attributes, **attributes})
    )
    return dataclasses.replace(site, operation=operation)
