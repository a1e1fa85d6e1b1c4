"""LiteRT's reference kernels as the judge: every operation of a file as it ran, or one operation
alone.

for recorded in record(path):                        # each operation of a file on given or seeded
inputs
    check(recorded)
recorded = run_alone("ADD", [Given(a, q), Given(b, q)], [Wanted("int8", q)], pot_scale_int16=False)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import flatbuffers
import numpy as np
import pytest

from penstock.drivers.reference.kernel import Kernel, Site, Unsupported, build
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Kind
from penstock.ir import Attributes, DType, NDArray, Operand, Operation, Quantization
from penstock.ir.builder import pack
from penstock.ir.operand import Lifetime
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import PACKED, dtype_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

VERSIONS: Final = {"BROADCAST_TO": 2}
"""Operator versions where the first one is gone."""

TYPES: Final = {number: DType[name] for name, number in TFLITE.numbers("TensorType").items()}
TYPE_NUMBERS: Final = {dtype: number for number, dtype in TYPES.items()}

IN_OTHER_SUBGRAPHS: Final = (
    "such operations of the file lie in its other subgraphs alone, whose "
    "values the judge does not hand out"
)


@dataclass(frozen=True, eq=False)
class Recorded:
    """One operation as LiteRT ran it: *given* arrays (None: omitted input) and *wanted* ones."""

    index: int
    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    given: tuple[NDArray | None, ...]
    wanted: tuple[NDArray, ...]

    @property
    def site(self) -> Site:
        return Site(self.operation, self.inputs, self.outputs, self._value)

    def _value(self, position: int) -> NDArray | None:
        operand = self.inputs[position]
        return self.given[position] if operand is not None and operand.is_constant else None

    @property
    def kernel(self) -> Kernel:
        return build(self.site)

    def run(self) -> list[NDArray]:
        """The reference kernel's results for the recorded inputs, which it must not write."""
        given = [None if a is None else a.copy() for a in self.given]
        for array in given:
            if array is not None:
                array.flags.writeable = False
        return list(self.kernel(given))


def assert_agrees(recorded: Recorded, tolerance: float = 2e-6) -> None:
    """The reference driver's kernel gives what LiteRT gave: integers bit for bit, floats within
    *tolerance* of the largest finite output, in the same types and shapes.
    """
    for got, wanted in zip(recorded.run(), recorded.wanted, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), recorded.operation
        if wanted.dtype.kind not in "fc":
            np.testing.assert_array_equal(got, wanted, str(recorded.operation))
            continue
        largest = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=1e-30)
        np.testing.assert_allclose(
            got, wanted, 0, tolerance * largest, err_msg=str(recorded.operation)
        )


def every(dtype: DType) -> NDArray:
    """Every value of an integer type of at most 16 bits, ascending."""
    info = np.iinfo(dtype.numpy)
    return np.arange(info.min, info.max + 1).astype(dtype.numpy)


def uniform(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> NDArray:
    """Integers over the whole range of their type; floats in [-4, 4]; booleans."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return rng.uniform(-4, 4, shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def any_quantization(
    rng: np.random.Generator, dtype: DType, least: float = 1e-3, most: float = 1.0
) -> Quantization:
    """A scale between bounds, and a zero point that the type may have (0 for int16)."""
    scale = float(np.exp(rng.uniform(np.log(least), np.log(most))))
    info = np.iinfo(dtype.numpy)
    return q(scale, 0 if dtype is DType.INT16 else int(rng.integers(info.min, info.max + 1)))


@dataclass(frozen=True, eq=False)
class Given:
    """An input of an operation to run alone; *dtype* where the array's own does not say it."""

    value: NDArray | None
    quantization: Quantization | None = None
    constant: bool = False
    dtype: DType | None = None


@dataclass(frozen=True)
class Wanted:
    """An output of an operation to run alone."""

    dtype: DType
    quantization: Quantization | None = None


def q(scale: float, zero_point: int = 0) -> Quantization:
    """Per-tensor quantisation with the scale rounded to float32, as files hold it."""
    return Quantization((float(np.float32(scale)),), (zero_point,))


def interpreter(model: bytes) -> Any:
    """An interpreter with LiteRT's reference kernels that keeps every intermediate value.

    The few operators that have no reference registration (ROUND) run by the only kernels they have.
    """
    resolvers = litert.OpResolverType
    for resolver in (resolvers.BUILTIN_REF, resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        try:
            return litert.Interpreter(
                model_content=model,
                num_threads=1,
                experimental_op_resolver_type=resolver,
                experimental_preserve_all_tensors=True,
            )
        except ValueError as error:
            if "Didn't find op" not in str(error) or resolver is not resolvers.BUILTIN_REF:
                raise
    raise AssertionError


def record(
    model: Path | bytes, inputs: Sequence[NDArray] | None = None, seed: int = 0
) -> list[Recorded]:
    """The operations of a file's main subgraph as LiteRT ran them, on *inputs* or on seeded random
    ones.

    Operations that touch a tensor LiteRT does not hand out (resources, variants) are left out.
    """
    content = model if isinstance(model, bytes) else model.read_bytes()
    parsed = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    graph = parsed.subgraphs[0]
    runner = interpreter(content)
    runner.allocate_tensors()
    details = runner.get_input_details()
    arrays = (
        inputs
        if inputs is not None
        else [_random(d, np.random.default_rng(seed + k)) for k, d in enumerate(details)]
    )
    for detail, array in zip(details, arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            runner.resize_tensor_input(detail["index"], array.shape)
    runner.allocate_tensors()
    for detail, array in zip(details, arrays, strict=True):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    found: list[Recorded] = []
    values: dict[int, NDArray | None] = {}
    for index, operator in enumerate(graph.operators or []):
        code = parsed.operatorCodes[operator.opcodeIndex]
        taken, made = _indexes(operator.inputs), _indexes(operator.outputs)
        for tensor in {*taken, *made} - {-1} - values.keys():
            values[tensor] = _value(runner, tensor, graph.tensors[tensor])
        if any(values[t] is None for t in (*taken, *made) if t >= 0):
            continue
        operands = {
            t: _operand(graph.tensors[t], values[t], parsed.buffers)
            for t in (*taken, *made)
            if t >= 0
        }
        kind, attributes = _attributes(code, operator)
        given = [values[t] if t >= 0 else None for t in taken]
        if kind == "DENSIFY":
            given = [values[made[0]]]
        found.append(
            Recorded(
                index,
                Operation(kind, taken, made, attributes),
                tuple(operands[t] if t >= 0 else None for t in taken),
                tuple(operands[t] for t in made),
                tuple(given),
                tuple(v for t in made if (v := values[t]) is not None),
            )
        )
    return found


def case_inputs(corpus: Path, entry: Mapping[str, Any]) -> list[list[NDArray]]:
    """The recorded inputs of a manifest entry: one list of arrays for each case without a
    signature.
    """
    file = entry.get("golden", {}).get("file")
    if file is None:
        return []
    with np.load(corpus / "models" / file, allow_pickle=False) as arrays:
        return [
            [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
            for case in entry["golden"]["cases"]
            if "signature" not in case
        ]


def run_alone(
    kind: str,
    given: Sequence[Given],
    wanted: Sequence[Wanted],
    options: bytes = b"",
    **attributes: AttributeValue,
) -> Recorded:
    """One operation in a model of its own, run by LiteRT's reference kernels.

    *kind* is an operator name or CUSTOM:<code> (with *options* as its custom options); attributes
    left out have the schema's defaults. Raises what LiteRT raises where it refuses.
    """
    feed = [g.value for g in given if g.value is not None and not g.constant]
    return record(single_operation(kind, given, wanted, options, **attributes), feed)[0]


def kernel_of(
    kind: str, inputs: Sequence[Operand], outputs: Sequence[Operand], **attributes: AttributeValue
) -> Kernel:
    """The reference driver's kernel of an operation on such operands, without asking LiteRT.

    Attributes left out have the operation table's defaults.
    """
    complete = OPERATIONS[kind].complete(attributes)
    operation = Operation(kind, tuple(range(len(inputs))), tuple(range(len(outputs))), complete)
    return build(Site(operation, tuple(inputs), tuple(outputs), lambda _: None))


def refusal(
    kind: str, inputs: Sequence[Operand], outputs: Sequence[Operand], **attributes: AttributeValue
) -> str:
    """Why the reference driver has no kernel for an operation on such operands; fails if it has
    one.
    """
    with pytest.raises(Unsupported) as caught:
        kernel_of(kind, inputs, outputs, **attributes)
    return str(caught.value)


def single_operation(
    kind: str,
    given: Sequence[Given],
    wanted: Sequence[Wanted],
    options: bytes = b"",
    **attributes: AttributeValue,
) -> bytes:
    """The file of a model of one operation."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, graph.tensors = 3, [schema.BufferT()], []
    graph.inputs, graph.outputs, taken = [], [], []
    for item in given:
        if item.value is None:
            taken.append(-1)
            continue
        dtype = item.dtype or DType(
            item.value.dtype.name if item.value.dtype != object else "string"
        )
        tensor = _tensor(model, dtype, item.value.shape, item.quantization)
        if item.constant:
            model.buffers[tensor.buffer].data = np.frombuffer(pack(item.value, dtype)[0], np.uint8)
        else:
            graph.inputs.append(len(graph.tensors))
        taken.append(len(graph.tensors))
        graph.tensors.append(tensor)
    for output in wanted:
        graph.outputs.append(len(graph.tensors))
        graph.tensors.append(_tensor(model, output.dtype, (), output.quantization))
    name, _, custom = kind.partition(":")
    code, operator = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = TFLITE.number("BuiltinOperator", name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), VERSIONS.get(name, 1)
    if custom:
        code.customCode, operator.customOptions = custom, np.frombuffer(options, np.uint8)
    operator.inputs, operator.outputs = taken, graph.outputs
    _set_options(operator, name, attributes)
    graph.operators, model.operatorCodes, model.subgraphs = [operator], [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(
    model: Any, dtype: DType, shape: Sequence[int], quantization: Quantization | None
) -> Any:
    tensor = schema.TensorT()
    tensor.type, tensor.shape = TYPE_NUMBERS[dtype], list(shape)
    tensor.name, tensor.buffer = f"t{len(model.buffers)}", len(model.buffers)
    model.buffers.append(schema.BufferT())
    if quantization is not None:
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = np.array(quantization.scales, np.float32)
        tensor.quantization.zeroPoint = np.array(quantization.zero_points, np.int64)
        tensor.quantization.quantizedDimension = quantization.dimension or 0
    return tensor


def _set_options(operator: Any, name: str, attributes: Mapping[str, AttributeValue]) -> None:
    table = OPTIONS_OF_OPERATOR.get(name)
    if table is None:
        return
    second = table in TFLITE.unions["BuiltinOptions2"]
    union = schema.BuiltinOptions2 if second else schema.BuiltinOptions
    made = getattr(schema, f"{table}T")()
    for field in TFLITE.table(table).fields:
        value = attributes.get(field.name)
        if value is not None:
            number = TFLITE.number(field.enum, str(value)) if field.enum else value
            setattr(made, _camel(field.name), list(number) if isinstance(number, tuple) else number)
    suffix = "2" if second else ""
    setattr(operator, f"builtinOptions{suffix}Type", getattr(union, table))
    setattr(operator, f"builtinOptions{suffix}", made)


def _attributes(code: Any, operator: Any) -> tuple[str, Attributes]:
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    name = TFLITE.name("BuiltinOperator", number) or "?"
    if name == "CUSTOM":
        options = operator.customOptions
        blob = b"" if options is None else bytes(bytearray(options))
        return name, Attributes(custom_code=code.customCode.decode(), custom_options=blob)
    table = OPTIONS_OF_OPERATOR.get(name)
    found: dict[str, AttributeValue] = {}
    if table is not None:
        made = (
            operator.builtinOptions2
            if table in TFLITE.unions["BuiltinOptions2"]
            else operator.builtinOptions
        )
        for field in TFLITE.table(table).fields:
            value: Any = field.default if made is None else getattr(made, _camel(field.name))
            if field.kind is Kind.SCALAR and field.enum:
                value = TFLITE.name(field.enum, int(value))
            elif field.kind is Kind.NUMBERS:
                number = float if field.scalar.startswith("float") else int
                value = tuple(number(v) for v in (value if value is not None else ()))
            elif field.scalar == "bool":
                value = bool(value)
            found[field.name] = value
    return name, Attributes(found)


def _operand(tensor: Any, value: NDArray | None, buffers: Sequence[Any]) -> Operand:
    constant = buffers[tensor.buffer].data is not None and len(buffers[tensor.buffer].data) > 0
    lifetime = Lifetime.CONSTANT_COPY if constant else Lifetime.TEMPORARY_VARIABLE
    shape = None if value is None else value.shape
    # A kernel may override the type that the file declares for its output.
    declared = TYPES[tensor.type]
    dtype = declared if value is None else dtype_of(value.dtype) or declared
    return Operand(dtype, shape, lifetime, (tensor.name or b"").decode(), _quantization(tensor))


def _quantization(tensor: Any) -> Quantization | None:
    found = tensor.quantization
    if found is None or found.scale is None or not len(found.scale):
        return None
    scales = tuple(float(s) for s in found.scale)
    points = tuple(int(z) for z in (found.zeroPoint if found.zeroPoint is not None else ()))
    points = points if len(points) == len(scales) else (points or (0,)) * len(scales)
    return Quantization(scales, points, found.quantizedDimension if len(scales) > 1 else None)


def _value(runner: Any, tensor: int, description: Any) -> NDArray | None:
    if TYPES[description.type] in {DType.RESOURCE, DType.VARIANT}:
        return None
    try:
        value = np.array(runner.get_tensor(tensor))
    except (ValueError, RuntimeError):
        return None
    declared = TYPES[description.type]
    return value.astype(declared.numpy) if declared in PACKED else value


def _random(detail: Mapping[str, Any], rng: np.random.Generator) -> NDArray:
    shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape, dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 4, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def _indexes(vector: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in (vector if vector is not None else ()))


@cache
def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda m: m.group(1).upper(), name)
