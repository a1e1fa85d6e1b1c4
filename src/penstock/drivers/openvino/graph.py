"""OpenVINO's graph of a model, built operation by operation through OpenVINO's own graph API.

Every value is a real number. A value quantised in 8 bits is a float on the grid of its scale.
FakeQuantize nodes round values to that grid, and OpenVINO's low-precision passes turn these nodes
into integer arithmetic.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.driverkit.checks import CLAMPS, filter_scales, one_scale
from penstock.driverkit.layout import TO_FIRST, TO_LAST, LaidOutGraph
from penstock.driverkit.site import QUANTIZED, Site, known_shape
from penstock.drivers.openvino.engine import openvino
from penstock.interrupts import polled
from penstock.ir import DType, Model, NDArray, Operand

Node: TypeAlias = Any
"""An output of an OpenVINO node."""

OPSET: Final = "openvino.opset13"

PLAIN: Final = frozenset({DType.INT32, DType.BOOL})
"""Element types besides float32 that are moved unchanged."""

STEPPED: Final = frozenset({*QUANTIZED, DType.INT16})
"""Quantised element types. In OpenVINO's graph their values are real numbers."""


def range_of(operand: Operand) -> tuple[float, float]:
    """The least and the greatest real value that a quantised operand can store."""
    scale, zero = one_scale(operand)
    limits = np.iinfo(operand.dtype.numpy)
    return scale * (int(limits.min) - zero), scale * (int(limits.max) - zero)


def same_grid(one: Operand, other: Operand) -> bool:
    """Whether operands have one grid, as int8 and uint8 with zero points 128 apart have."""
    if one.quantization == other.quantization and one.dtype is other.dtype:
        return True
    quantized = one.dtype in QUANTIZED and other.dtype in QUANTIZED
    return quantized and range_of(one) == range_of(other)


def is_above_zero(operand: Operand) -> bool:
    """Whether a quantised operand can only store values of at least zero."""
    return range_of(operand)[0] >= 0


class Padded(msgspec.Struct, frozen=True):
    """Image *source* with the given numbers of rows and columns of zeros before and after it."""

    source: int
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)


class Graph(LaidOutGraph[Node]):
    """The nodes of the entry subgraph's operands."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.entry = model, model.entry
        self.ov = openvino()
        self.op: Any = importlib.import_module(OPSET)
        self.constants: list[NDArray] = []
        """The constants as OpenVINO received them."""
        self.padded: dict[int, Padded] = {}
        """Images that a PAD pads with zeros, by its output. A layer may apply the padding."""
        self._rearranged: dict[int, tuple[int, Callable[[Node], Node]]] = {}
        self._layered = frozenset(
            operation.inputs[0]
            for operation in self.entry.operations
            if operation.type in CONVOLUTIONS and operation.inputs
        )
        self.parameters = [self._parameter(index) for index in polled(self.entry.inputs)]

    def finish(self, name: str) -> Any:
        """The OpenVINO model of the entry's inputs, and of its outputs that are no inputs."""
        given = frozenset(self.entry.inputs)
        results = [self._result(i) for i in polled(self.entry.outputs) if i not in given]
        return self.ov.Model(results, self.parameters, name)

    def name_of(self, index: int) -> str | None:
        """OpenVINO's name of the node that computes operand *index*; None if there is none."""
        value = self.holds(index)
        if value is None:
            return None
        name: str = _maker(value).get_name()
        return name

    def define(
        self, site: Site, node: Node, *, output: int = 0, raised: NDArray | None = None
    ) -> None:
        """Registers *node* plus *raised* as an output of *site*, on its grid if quantised."""
        operand = site.output(output)
        if operand.dtype in STEPPED:
            node = self._on_grid(node, operand, raised)
        self.put(site, node, output)

    def move(
        self, site: Site, node: Node, sources: Sequence[int] = (0,), *, output: int = 0
    ) -> None:
        """As `define`, for values moved from inputs *sources*: rounds only if the scale changes."""
        if any(not same_grid(site.input(s), site.output(output)) for s in sources):
            self.define(site, node, output=output)
        else:
            self.put(site, node, output)

    def rearrange(self, site: Site, how: Callable[[Node], Node]) -> None:
        """Registers the result of *how* on the only input of *site* as its output, as `move` does.

        *how* is recorded: if the output is a model output, it is applied to quantised integers.
        """
        self.move(site, how(self.get(site)))
        if same_grid(site.input(), site.output()):
            self._rearranged[site.output_indexes[0]] = site.input_indexes[0], how

    def pass_on(self, site: Site) -> None:
        """Registers the only input of *site* as its output: both have the same grid."""
        source, index = site.input_indexes[0], site.output_indexes[0]
        self.move(site, self.get(site))
        if source in self._rearranged:
            self._rearranged[index] = self._rearranged[source]

    def number(self, value: float) -> Node:
        """A float32 scalar."""
        return self.op.constant(np.array(value, np.float32))

    def whole(self, values: Sequence[int]) -> Node:
        """A constant list of integers: axes, shapes, sizes."""
        return self.op.constant(np.array(values, np.int64))

    def constant(self, value: NDArray) -> Node:
        """A constant that shares *value*'s memory, which the compiled model may go on using."""
        array = np.require(value, requirements=["C", "A"])
        self.constants.append(array)
        # Only this constructor of a tensor accepts read-only memory.
        tensor = self.ov.Tensor(array, list(array.shape), self.ov.Type(array.dtype))
        return self.ov.op.Constant(tensor, shared_memory=True).output(0)

    def weights(
        self, site: Site, order: Sequence[int], shape: Sequence[int], channels: Sequence[int]
    ) -> Node:
        """The real filter at input 1, its dimensions in *order*, then reshaped to *shape*.

        A constant filter is laid out here. A quantised filter keeps its integers. The graph
        multiplies them by the scales, one for each channel in the layout *channels*.
        """
        operand = site.input(1)
        if not operand.is_constant:
            node = self.get(site, 1)
            if list(order) != sorted(order):
                node = self.transpose(node, order)
            laid_out = [site.shape(1)[axis] for axis in order]
            return node if laid_out == list(shape) else self.reshape(node, shape)
        value = self.model.constant(operand).transpose(order).reshape(shape)
        node = self.constant(value)
        if operand.dtype is DType.FLOAT32:
            return node
        node = self.op.convert(node, "f32")
        if operand.quantization is None:
            return node
        scales, zeros = filter_scales(operand.quantization, channels, value.ndim)
        if zeros.any():
            node = self.op.subtract(node, self.op.constant(zeros))
        return self.op.multiply(node, self.op.constant(scales))

    def reshape(self, node: Node, shape: Sequence[int]) -> Node:
        return self.op.reshape(node, self.whole(shape), special_zero=False)

    def transpose(self, node: Node, order: Sequence[int]) -> Node:
        return self.op.transpose(node, self.whole(order))

    def activate(self, node: Node, fused: str) -> Node:
        """*node* after one of `ACTIVATIONS`."""
        if fused == "NONE":
            return node
        if fused == "RELU":
            return self.op.relu(node)
        low, high = CLAMPS[fused]
        return self.op.clamp(node, low, high)

    def _parameter(self, index: int) -> Node:
        operand = self.entry.operands[index]
        shape = known_shape(operand, f"input {operand.name!r}")
        parameter = self.op.parameter(list(shape), operand.dtype.numpy)
        node = parameter.output(0)
        if operand.dtype is DType.INT8 and index in self._layered:
            # Signed integers with a zero point would reach layers as float32.
            bounds = [self.number(v) for v in (-128, 127, *range_of(operand))]
            node = self.op.convert(node, "f32")
            self.put_at(index, self.op.fake_quantize(node, *bounds, LEVELS))
        else:
            self.put_at(index, self._real(node, operand))
        return parameter

    def absent(self, index: int, *, first: bool) -> Node:
        operand = self.entry.operands[index]
        value = self.model.constant(operand)
        if first:
            value = value.transpose(TO_FIRST[4])
        if operand.dtype in STEPPED:
            scale, zero = one_scale(operand)
            value = (value.astype(np.float32) - np.float32(zero)) * np.float32(scale)
        elif operand.dtype not in {DType.FLOAT32, *PLAIN}:
            value = value.astype(np.float32)
        return self.constant(value)

    def _real(self, node: Node, operand: Operand) -> Node:
        """*node* dequantised; unchanged without a scale: only conversions read such values."""
        if operand.dtype not in STEPPED or operand.quantization is None:
            return node
        scale, zero = one_scale(operand)
        node = self.op.convert(node, "f32")
        if zero:
            node = self.op.subtract(node, self.number(zero))
        return self.op.multiply(node, self.number(scale))

    def _on_grid(self, node: Node, operand: Operand, raised: NDArray | None) -> Node:
        """*node* plus *raised*, rounded to the operand's grid by FakeQuantize or arithmetic."""
        low, high = range_of(operand)
        if operand.dtype is DType.INT16:
            # This grid may be finer than the precision of OpenVINO's arithmetic. Only outputs of
            # the graph are rounded to it.
            return self.op.clamp(node, low, high)
        by = np.zeros((), np.float32) if raised is None else raised
        if not _may_be_removed(node):
            given = [self.constant((v - by).astype(np.float32)) for v in (low, high)]
            return self.op.fake_quantize(node, *given, self.number(low), self.number(high), LEVELS)
        if by.any():
            node = self.op.add(node, self.constant(by))
        scale = self.number(one_scale(operand)[0])
        steps = self.op.round(self.op.divide(self.op.clamp(node, low, high), scale), "half_to_even")
        return self.op.multiply(steps, scale)

    def _result(self, index: int) -> Node:
        operand = self.entry.operands[index]
        if operand.dtype in QUANTIZED and index in self._rearranged:
            source, how = self._rearranged[index]
            whole = self._whole(self.read(source, first=True), operand)
            return self.op.result(self.transpose(how(whole), TO_LAST[4]))
        node = self.read(index)
        return self.op.result(self._whole(node, operand) if operand.dtype in STEPPED else node)

    def _whole(self, node: Node, operand: Operand) -> Node:
        """*node* as the integers that a quantised *operand* stores."""
        if operand.dtype is DType.INT16 or _is_misjudged(node):
            return self._in_steps(node, operand)
        limits = np.iinfo(operand.dtype.numpy)
        stored = int(limits.min), int(limits.max)
        bounds = [self.number(v) for v in (*range_of(operand), *stored)]
        node = self.op.fake_quantize(node, *bounds, LEVELS)
        return self.op.convert(node, WHOLE[operand.dtype])

    def _in_steps(self, node: Node, operand: Operand) -> Node:
        """*node* as quantised integers, clamped as integers: bfloat16 cannot represent 32767."""
        scale, zero = one_scale(operand)
        limits = np.iinfo(operand.dtype.numpy)
        steps = self.op.round(self.op.divide(node, self.number(scale)), "half_to_even")
        least, most, middle = (
            self.op.constant(np.array(v, np.int32)) for v in (limits.min, limits.max, zero)
        )
        whole = self.op.add(self.op.convert(steps, "i32"), middle)
        kept = self.op.maximum(self.op.minimum(whole, most), least)
        return self.op.convert(kept, WHOLE[operand.dtype])


LEVELS: Final = 256
WHOLE: Final = {DType.INT8: "i8", DType.UINT8: "u8", DType.INT16: "i16"}
LINEAR: Final = frozenset({"Add", "Subtract", "Multiply", "Divide"})
CONVOLUTIONS: Final = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"})
LAYERS: Final = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"})
MOVING: Final = frozenset(
    {"Concat", "Gather", "Pad", "Reshape", "SpaceToDepth"}
    | {"StridedSlice", "Tile", "Transpose", "VariadicSplit"}
)
MOST_LOOKED_AT: Final = 64


def _may_be_removed(node: Node) -> bool:
    """Whether OpenVINO may wrongly remove a FakeQuantize of *node*.

    OpenVINO (2026.4) folds an addition or a product with a constant into the input range of the
    next FakeQuantize. It then removes the second of two equal FakeQuantize nodes in a row, even if
    the input range of the second differs from its output range: x + 1 + 1 becomes x + 1. Behind
    layers it does neither.
    """
    made = _maker(node)
    if made.get_type_name() not in LINEAR:
        return False
    sources = _sources(made)
    if any(source.get_type_name() in LAYERS for source in sources):
        return False
    return any(map(_is_constant, sources))


def _is_misjudged(node: Node) -> bool:
    """Whether a FakeQuantize to quantised integers behind *node* may give wrong results.

    OpenVINO (2026.4) merges it with an arithmetic rounding and drops the limits. This happens if a
    moving operation is between them, or if the constant before the rounding is not a scalar. Behind
    a DepthToSpace, values below the range become 0.
    """
    made = _maker(node)
    if (rounded := _rounded(made)) is not None:
        ports = [port.get_source_output() for port in rounded.inputs()]
        return any(_is_constant(p.get_node()) and max(p.shape, default=1) > 1 for p in ports)
    pending, seen = [made], 0
    while pending:
        each, seen = pending.pop(), seen + 1
        kind = each.get_type_name()
        if kind == "DepthToSpace" or seen > MOST_LOOKED_AT or _rounded(each) is not None:
            return True
        if kind in MOVING:
            pending += _sources(each)
    return False


def _rounded(made: Node) -> Node | None:
    """The value that arithmetic rounds, if *made* is the last node of such a rounding, or None."""
    for kind in ("Multiply", "Round", "Divide", "Clamp"):
        if made.get_type_name() != kind:
            return None
        made = _sources(made)[0]
    return made


def _maker(node: Node) -> Node:
    """The node that has the output *node*; *node* itself if it is no output."""
    return node.get_node() if hasattr(node, "get_node") else node


def _sources(made: Node) -> list[Node]:
    return [port.get_source_output().get_node() for port in made.inputs()]


def _is_constant(node: Node) -> bool:
    """Whether *node* depends on no input of the model; False after `MOST_LOOKED_AT` nodes."""
    pending, seen = [node], 0
    while pending:
        each = pending.pop()
        seen += 1
        if each.get_type_name() == "Parameter" or seen > MOST_LOOKED_AT:
            return False
        pending += _sources(each)
    return True
