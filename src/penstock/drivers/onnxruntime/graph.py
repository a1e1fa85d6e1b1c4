"""The graph for ONNX Runtime, built operation by operation.

Real values are float32. Quantised values are always uint8 (int8 plus 128) and channels last: the
integer kernels need that layout, and are fastest with that type.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.driverkit.checks import CLAMPS, one_scale
from penstock.driverkit.layout import TO_FIRST, TO_LAST, LaidOutGraph
from penstock.driverkit.site import QUANTIZED, Site, known_shape
from penstock.errors import GeneralFailure
from penstock.interrupts import polled
from penstock.ir import DType, Model, NDArray, Operand

Value: TypeAlias = str
"""The name of a value in the ONNX graph."""

MICROSOFT: Final = "com.microsoft"
BIAS: Final = 128
"""The offset that turns an int8 value into a stored uint8 value."""

AWAY: Final = 1 - 2.0**-21
"""A factor of scales for rounding halves away from zero, beyond float32's rounding errors."""

AWAY_ONCE: Final = 1 - 2.0**-23
"""The same factor if only the division by the scale is rounded."""

HALVES: Final = 1 << 12

ELEMENTS: Final = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
}  # fmt: skip
"""ONNX's numbers of element types (onnx.proto, TensorProto.DataType)."""

SHARED_BYTES: Final = 1024
"""Greatest size, in bytes, of constants that are shared if they are equal."""


class Node(msgspec.Struct, eq=False):
    """One ONNX node, in plain Python until the model is written. *operation* is the number of the
    operation that it was made for; None for nodes of inputs and outputs.
    """

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    domain: str = ""
    attributes: dict[str, Any] = {}
    operation: int | None = None

    def branches(self) -> Iterator[Graph]:
        """The graphs of the node's branches."""
        return (value for value in self.attributes.values() if isinstance(value, Graph))

    def reads(self) -> Iterator[Value]:
        """The node's inputs, and the inputs of the nodes in its branches."""
        yield from self.inputs
        for branch in self.branches():
            for node in branch.nodes:
                yield from node.reads()

    def rename(self, names: Mapping[Value, Value]) -> None:
        """Renames values by *names*."""
        self.inputs = [names.get(v, v) for v in self.inputs]
        self.outputs = [names.get(v, v) for v in self.outputs]
        for branch in self.branches():
            for node in branch.nodes:
                node.rename(names)


class Graph(LaidOutGraph[Value]):
    """The nodes of the entry subgraph, or of subgraph *branch*.

    *wide* keeps 8-bit weights unsigned, for processors whose product of unsigned and signed bytes
    saturates. *portable* uses only ONNX's own operators, with layers between dequantisation and
    quantisation, for providers other than the CPU's. *relaxed* leaves the sums of 8-bit
    convolutions unchanged, which makes their results equal to XNNPACK's bit for bit.
    """

    def __init__(
        self,
        model: Model,
        *,
        wide: bool = False,
        portable: bool = False,
        relaxed: bool = False,
        branch: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.entry = model.entry if branch is None else model.subgraphs[branch]
        self.wide, self.portable, self.relaxed = wide, portable, relaxed
        self.nodes: list[Node] = []
        self.operation: int | None = None
        """The operation whose nodes are being added."""
        self.around: Graph | None = None
        """The graph that this one is a branch of."""
        self.constants: dict[Value, NDArray] = {}
        self.inputs: list[tuple[Value, Operand]] = []
        self.outputs: list[tuple[Value, Operand]] = []
        self._real: dict[Value, Value] = {}
        self._held: dict[int, NDArray] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._shapes: dict[Value, tuple[int, ...]] = {}
        self._unshaped: dict[Value, Value] = {}
        self._makers: dict[Value, Node] = {}
        self._count = count(1)
        for index in self.entry.inputs if branch is None else ():
            self._input(index)

    def branch(self, index: int, given: Sequence[Value]) -> Graph:
        """The graph of subgraph *index*. Its inputs are the values *given* of this graph. Both
        graphs share names and constants.
        """
        options = {"wide": self.wide, "portable": self.portable, "relaxed": self.relaxed}
        made = Graph(self.model, **options, branch=index)
        made.around, made.operation = self, self.operation
        made.constants, made._shared, made._count = self.constants, self._shared, self._count
        for operand, value in zip(made.entry.inputs, given, strict=True):
            made.put_at(operand, value)
            made._shapes[value] = known_shape(made.entry.operands[operand], "an input of a branch")
        return made

    def finish(self) -> None:
        """Names the outputs of the entry subgraph that are no inputs, or all of a branch."""
        if self.around is not None:
            named = set[Value]()
            for index in self.entry.outputs:
                named.add(value := self._made(index, named))
                self.outputs.append((value, self.entry.operands[index]))
            self._leave_out_unread()
            return
        self.operation = None
        names: dict[Value, Value] = {}
        inputs = set(self.entry.inputs)
        for index in self.entry.outputs:
            if index not in inputs:
                self._output(index, names)
        for node in polled(self.nodes):
            node.rename(names)
        self._leave_out_unread()
        if not self.outputs:
            # ONNX Runtime rejects a model without nodes. This node is never run: the outputs are
            # inputs, which need no session.
            zero = np.zeros(1, np.float32)
            self.inputs = []
            self.nodes = [Node("Identity", [self.constant(zero)], ["o0"])]
            self.outputs = [("o0", Operand(DType.FLOAT32, zero.shape))]

    def node(self, kind: str, *inputs: Value, domain: str = "", **attributes: Any) -> Value:
        """A node with one output."""
        return self.node_of(kind, inputs, 1, domain=domain, **attributes)[0]

    def node_of(
        self, kind: str, inputs: Sequence[Value], outputs: int, *, domain: str = "", **named: Any
    ) -> list[Value]:
        """A node with *outputs* outputs and the attributes *named*."""
        made = [self._name() for _ in range(outputs)]
        node = Node(kind, list(inputs), made, domain, named, self.operation)
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(made, node))
        return made

    def maker(self, value: Value) -> Node | None:
        """The node that computes *value*; None for inputs and constants."""
        return self._makers.get(value)

    def scalar(self, value: Value) -> float | None:
        """The number of a scalar constant; None for any other value."""
        held = self.constants.get(value)
        return None if held is None or held.ndim else float(held)

    def constant(self, value: NDArray) -> Value:
        """A constant. Equal small constants are shared."""
        if value.nbytes > SHARED_BYTES:
            name = self._name("c")
            self.constants[name] = value
            return name
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._shared:
            name = self._shared[key] = self._name("c")
            self.constants[name] = value
        return self._shared[key]

    def number(self, value: float) -> Value:
        """A float32 scalar."""
        return self.constant(np.array(value, np.float32))

    def byte(self, value: int) -> Value:
        """A uint8 scalar."""
        return self.constant(np.array(value, np.uint8))

    def cast(self, value: Value, dtype: DType) -> Value:
        """*value* converted to an element type."""
        return self.node("Cast", value, to=ELEMENTS[dtype.value])

    def whole(self, values: Sequence[int] | int) -> Value:
        """An int64 constant of integers: axes, shapes, sizes."""
        return self.constant(np.array(values, np.int64))

    def shaped(self, value: Value, shape: Sequence[int]) -> Value:
        """*value*, after recording its *shape*."""
        self._shapes[value] = tuple(shape)
        return value

    def through(self, value: Value, make: Callable[[Value], Value]) -> Value:
        """*value* after the elementwise *make*, which is applied before a reshape."""
        base = self._unshaped.get(value)
        if base is None or base not in self._shapes:
            return make(value)
        return self.reshape(self.shaped(make(base), self._shapes[base]), self._shapes[value])

    def absent(self, index: int, *, first: bool) -> Value:
        value = self.known(index)
        if value is None:
            raise GeneralFailure(f"operand {index} is read before it is computed")
        return self.constant(value.transpose(TO_FIRST[4]) if first else value)

    def relaid(self, value: Value, index: int, *, first: bool) -> Value:
        """As in any graph. A sequence is reshaped if its elements stay in order."""
        shape = known_shape(self.entry.operands[index], "a value")
        if len(shape) == 3 and not first and 1 in shape[1:]:
            return self.reshape(value, shape)
        return self.transpose(value, (TO_FIRST if first else TO_LAST)[len(shape)])

    def known(self, index: int) -> NDArray | None:
        """The stored value of an operand that is already known; otherwise None."""
        if index in self._held:
            return self._held[index]
        operand = self.entry.operands[index]
        return self.stored(operand) if operand.is_constant else None

    def hold(self, site: Site, value: NDArray) -> None:
        """Registers a constant as the output of *site*."""
        self._held[site.output_indexes[0]] = value

    def real(self, site: Site, position: int = 0) -> Value:
        """As `get`, dequantised if the operand is quantised."""
        operand, first = site.input(position), site.layout.inputs[position]
        if operand.dtype not in QUANTIZED:
            return self.get(site, position)
        if operand.is_constant:
            scale, zero = one_scale(operand)
            steps = self.model.constant(operand).astype(np.float32) - np.float32(zero)
            exact = steps * np.float32(scale)
            return self.constant(exact.transpose(TO_FIRST[4]) if first else exact)
        value = self.get(site, position)
        if value not in self._real:
            self._real[value] = self.node("DequantizeLinear", value, *self.grid(operand))
        return self._real[value]

    def grid(self, operand: Operand) -> tuple[Value, Value]:
        """Scale and zero point of a quantised operand, as stored."""
        return self.target(operand, 1.0)

    def target(self, operand: Operand, away: float = AWAY) -> tuple[Value, Value]:
        """As `grid`, for a computed operand. Kernels round halves to even, TFLite away from zero. A
        slightly smaller scale makes the kernels round as TFLite does.
        """
        scale, zero = stored_grid(operand)
        return self.number(scale * away), self.byte(zero)

    def round(self, site: Site, value: Value, *, output: int = 0) -> None:
        """Registers a real *value* as an output of *site*, quantised if the output is."""
        operand = site.output(output)
        if operand.dtype in QUANTIZED:
            value = self.node("QuantizeLinear", value, *self.target(operand))
        self.put(site, value, output)

    def source(self, site: Site, position: int = 0) -> Value:
        """The stored value of input *position*, on the grid of the output that it is moved to."""
        given, wanted = site.input(position), site.output()
        same = given.dtype not in QUANTIZED or given.quantization == wanted.quantization
        if same or stored_grid(given) == stored_grid(wanted):
            return self.get(site, position)
        (scale, _), (step, _) = stored_grid(given), stored_grid(wanted)
        if self.portable or given.is_constant or may_halve(scale / step):
            real = self.real(site, position)
            return self.node("QuantizeLinear", real, *self.target(wanted))
        # One kernel, where nothing is added.
        nothing = self.byte(1)
        added = (nothing, self.number(1.0), nothing)
        value = self.get(site, position)
        return self.node(
            "QLinearAdd", value, *self.grid(given), *added, *self.grid(wanted), domain=MICROSOFT
        )

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """*value* in another *shape*, by at most one node."""
        wanted, value = tuple(shape), self._unshaped.get(value, value)
        if wanted == self._shapes.get(value):
            return value
        made = self.node("Reshape", value, self.whole(list(shape)), allowzero=1)
        self._shapes[made] = wanted
        self._unshaped[made] = value
        return made

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        return self.node("Transpose", value, perm=list(order))

    def gather(self, value: Value, positions: NDArray, axis: int) -> Value:
        """*value* at constant *positions* along *axis*."""
        return self.node("Gather", value, self.constant(positions), axis=axis)

    def activate(self, value: Value, fused: str) -> Value:
        """A real *value* after one of `ACTIVATIONS`."""
        if fused == "NONE":
            return value
        if fused == "RELU":
            return self.node("Relu", value)
        return self.clip(value, *CLAMPS[fused])

    def clip(self, value: Value, low: float, high: float) -> Value:
        return self.node("Clip", value, self.number(low), self.number(high))

    def limit(self, value: Value, operand: Operand, fused: str) -> Value:
        """A stored *value* clamped by a fused activation, with limits on the grid."""
        low, high = stored_limits(operand, fused)
        if (low, high) == (0, 255):
            return value
        return self.node("Clip", value, self.byte(low), self.byte(high))

    def stored(self, operand: Operand) -> NDArray:
        """The value of a constant in this graph's storage form."""
        value = self.model.constant(operand)
        return raised(value) if operand.dtype is DType.INT8 else value

    def _input(self, index: int) -> None:
        operand = self.entry.operands[index]
        known_shape(operand, f"input {operand.name!r}")
        if self.holds(index) is not None:
            return
        name = f"i{index}"
        self.inputs.append((name, operand))
        if operand.dtype is not DType.INT8:
            self._shapes[name] = known_shape(operand, f"input {operand.name!r}")
        self.put_at(index, self._flip(name) if operand.dtype is DType.INT8 else name)

    def _output(self, index: int, names: dict[Value, Value]) -> None:
        """Records the output's name for its value, or for a copy if that has a name or no node."""
        operand, value = self.entry.operands[index], self.read(index)
        name = f"o{len(self.outputs)}"
        self.outputs.append((name, operand))
        if operand.dtype is DType.INT8:
            value = self._flip(value)
        if value in self._makers and value not in names:
            names[value] = name
        else:
            self.nodes.append(Node("Identity", [value], [name]))

    def _made(self, index: int, named: Container[Value]) -> Value:
        """Operand *index* as the result of a node of this graph that is not in *named*."""
        value = self.read(index)
        if value not in self._makers or value in named:
            value = self.node("Identity", value)
        return value

    def _flip(self, value: Value) -> Value:
        """Converts between int8, seen as bytes, and uint8."""
        return self.node("BitwiseXor", value, self.byte(BIAS))

    def _leave_out_unread(self) -> None:
        """Removes dead nodes."""
        read = {name for name, _ in self.outputs}
        kept = []
        for node in polled(reversed(self.nodes)):
            if not read.isdisjoint(node.outputs):
                kept.append(node)
                read.update(node.reads())
        self.nodes = kept[::-1]

    def _name(self, kind: str = "v") -> Value:
        return f"{kind}{next(self._count)}"


def raised(value: NDArray) -> NDArray:
    """int8 values as uint8: plus 128."""
    flipped: NDArray = np.ascontiguousarray(value).view(np.uint8) ^ np.uint8(BIAS)
    return flipped


def stored_grid(operand: Operand) -> tuple[float, int]:
    """Scale and zero point of an activation as it is stored in the graph."""
    scale, zero = one_scale(operand)
    return scale, zero + (BIAS if operand.dtype is DType.INT8 else 0)


def may_halve(*ratios: float) -> bool:
    """Whether integers times these ratios can be halfway between two integers."""
    return all(r * HALVES == int(r * HALVES) for r in ratios)


def stored_limits(operand: Operand, fused: str) -> tuple[int, int]:
    """The limits of a fused activation as stored values."""
    scale, zero = stored_grid(operand)
    low, high = {"NONE": (None, None), "RELU": (0.0, None)}.get(fused) or CLAMPS[fused]
    at = [None if v is None else _nearest(v / scale) + zero for v in (low, high)]
    least = 0 if at[0] is None else min(max(at[0], 0), 255)
    return least, 255 if at[1] is None else max(min(at[1], 255), least)


def _nearest(value: float) -> int:
    """*value* rounded, halves away from zero."""
    return int(np.copysign(np.floor(np.abs(np.float32(value)) + 0.5), value))
