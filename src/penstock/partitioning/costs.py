"""What operations cost on an engine, from times of small models on one machine.

The time of an operation is a sum of four terms: a fixed time, and a time for each multiply-
accumulate (or element), for each byte of values that it reads and writes, and for each byte of its
constants. The factors of the terms are a *cell*: one for each kind of operation and element type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.ir import DType, Operation, Subgraph
from penstock.ir.types import static_shape
from penstock.partitioning import work
from penstock.partitioning.pieces import COPYING, is_swap, pieces_of

Features: TypeAlias = "tuple[float, float, float, float]"
"""1, multiply-accumulates or elements or pieces, bytes of values, bytes of constants.

What is copied or repeated counts by the piece (`penstock.partitioning.pieces`).
"""

NOTHING: Final[Features] = (0.0, 0.0, 0.0, 0.0)
TYPICAL: Final[Features] = (1.0, 200_000.0, 20_000.0, 2_000.0)
"""An operation of middle size, by which machines are compared."""
LOOP: Final = "WHILE other"
"""The cell of a loop without what it enters; its second feature is the rounds."""

LANES: Final = 8
"""Output channels up to which a convolution fills at most one vector of most processors."""

FEW_CHANNELS: Final = 4
"""Input channels of a picture, for which kernels of convolutions are less efficient."""

LONG_WINDOW: Final = 16
"""Places in a row from which a convolution of few channels is one of a signal, with long sums."""

LARGE_BYTES: Final = 1 << 21
"""Bytes of weights from which a layer reads them from memory: they fit in no cache of one core."""


class EngineCosts(Struct, frozen=True):
    """The costs of one engine.

    *cells* has nanoseconds for each of the `Features`, by cell, in a model of that kind alone. In a
    network they are multiplied by *together*. *overhead* of the element type is what any operation
    costs beside that.
    *step_ns* is the time of a step beyond its operations, and *edge_ns* the time for each byte of
    its inputs and outputs. *error* is the factor within which nine of ten measured times of whole
    models are expected to lie. *source* says where the costs are from.
    """

    cells: dict[str, Features]
    together: dict[str, float]
    overhead: dict[str, float]
    step_ns: float
    edge_ns: float
    error: float
    source: str
    scale: float = 1.0
    """What runs of a network took, compared with what the other fields predict for it."""

    def nanoseconds(self, subgraph: Subgraph, operation: Operation) -> float | None:
        """The time of *operation*, without subgraphs that it enters; None if it is not known."""
        if operation.key in ENTERING:
            return None
        features = features_of(subgraph, operation)
        if features is NOTHING:
            return 0.0
        return self.of(cell_of(subgraph, operation), features)

    def of(self, cell: str, features: Features) -> float | None:
        """The time of an operation with these *features* that belongs to *cell*."""
        kind, _, dtype = cell.rpartition(" ")
        types = (dtype, *NEAREST.get(dtype, ()))
        kinds = (kind, *SIMILAR.get(kind, ()))
        for name in (f"{one} {other}" for one in kinds for other in types):
            if (factors := self.cells.get(name)) is not None:
                alone = sum(ns * amount for ns, amount in zip(factors, features, strict=True))
                more = self.together.get(name, 1.0) * alone + self.overhead_of(dtype)
                return more * self.scale
        return None

    def overhead_of(self, dtype: str) -> float:
        """What any operation of an element type costs, or of the nearest type that is known."""
        for name in (dtype, *NEAREST.get(dtype, ())):
            if name in self.overhead:
                return self.overhead[name]
        return 0.0

    def at_pace(self, pace: float) -> EngineCosts:
        """These costs on a machine that takes *pace* times as long for everything."""
        cells: dict[str, Features] = {
            cell: (a * pace, b * pace, c * pace, d * pace)
            for cell, (a, b, c, d) in self.cells.items()
        }
        overhead = {dtype: ns * pace for dtype, ns in self.overhead.items()}
        step_ns, edge_ns = self.step_ns * pace, self.edge_ns * pace
        return replace(self, cells=cells, overhead=overhead, step_ns=step_ns, edge_ns=edge_ns)

    def pace_over(self, other: EngineCosts) -> float | None:
        """How many times as long as by *other* a typical operation takes: the median over the cells
        of both. None without one.
        """
        ratios = sorted(
            own / before
            for cell in self.cells.keys() & other.cells.keys()
            if (own := self.of(cell, TYPICAL)) and (before := other.of(cell, TYPICAL))
        )
        return ratios[len(ratios) // 2] if ratios else None


Costs: TypeAlias = Mapping[str, EngineCosts]
"""The costs of engines by the name of their device. Other devices cost what they declare."""

NO_COSTS: Final[Costs] = {}
"""Every device costs what it declares."""


def basis_of(costs: Costs, devices: Iterable[str]) -> str:
    """What predictions for *devices* rest on, as text; empty if they declare all their costs."""
    sources = dict.fromkeys(costs[name].source for name in devices if name in costs)
    return " and ".join(sources)


SIMILAR: Final[dict[str, tuple[str, ...]]] = {
    "CONV_2D long": ("CONV_2D few",), "FULLY_CONNECTED large": ("FULLY_CONNECTED",),
    "CONV_2D narrow": ("CONV_2D",), "TRANSPOSE apart": ("TRANSPOSE",),
    "DEPTHWISE_CONV_2D times": ("DEPTHWISE_CONV_2D",),
}  # fmt: skip
"""For a kind without a cell, those whose cell is used instead."""

NEAREST: Final[dict[str, tuple[str, ...]]] = {
    "hybrid": ("float32", "int8"),
    "uint8": ("int8", "float32"),
    "int8": ("uint8", "float32"),
    "int16": ("float32", "int8"),
    "other": ("float32", "int8"),
    "float32": ("int8",),
}
"""For an element type without a cell, those whose cell is used instead."""

ENTERING: Final = frozenset({
    "IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE",
})  # fmt: skip
"""Operations whose own cost is declared: what they cost is what they enter."""


def cell_of(subgraph: Subgraph, operation: Operation) -> str:
    """The name of the cell of *operation*."""
    return f"{kind_of(subgraph, operation)} {type_of(subgraph, operation)}"


def type_of(subgraph: Subgraph, operation: Operation) -> str:
    """float32, int8, uint8, "hybrid" for float32 with integer weights, or "other"."""
    at = SOURCE.get(operation.key, 0)
    operands = [subgraph.operands[i] for i in operation.inputs]
    if not operands:
        return "other"
    dtype = operands[at].dtype if at < len(operands) else operands[0].dtype
    if operation.key == "QUANTIZE" and dtype.is_float:
        dtype = subgraph.operands[operation.outputs[0]].dtype
    if operation.key == "DEQUANTIZE":
        dtype = DType.FLOAT32
    if dtype.is_float:
        weights = operands[1] if len(operands) > 1 and operation.key in WEIGHTED else None
        is_hybrid = weights is not None and weights.is_constant and not weights.dtype.is_float
        return "hybrid" if is_hybrid else "float32"
    return dtype.value if dtype in {DType.INT8, DType.UINT8, DType.INT16} else "other"


def kind_of(subgraph: Subgraph, operation: Operation) -> str:
    """The kind whose measurements stand for *operation*."""
    key = operation.key
    if key in CONVOLUTIONS:
        shape = static_shape(subgraph.operands[operation.inputs[1]].shape)
        if shape is None or len(shape) != 4:
            return "CONV_2D"
        if shape[1] == shape[2] == 1:
            return "CONV_2D 1x1"
        if shape[3] <= FEW_CHANNELS:
            return "CONV_2D long" if max(shape[1:3]) >= LONG_WINDOW else "CONV_2D few"
        return "CONV_2D narrow" if shape[0] <= LANES else "CONV_2D"
    if key == "FULLY_CONNECTED":
        if _rows_of(subgraph, operation) > 1:
            return "FULLY_CONNECTED rows"
        weights = subgraph.operands[operation.inputs[1]]
        is_large = work.nbytes_of(weights) >= LARGE_BYTES
        return "FULLY_CONNECTED large" if is_large else "FULLY_CONNECTED"
    if key in RECURRENT:
        return "LSTM"
    if key == "QUANTIZE" and not subgraph.operands[operation.inputs[0]].dtype.is_float:
        return "QUANTIZE again"
    kind = STANDS_FOR.get(key, ANY)
    if key == "DEPTHWISE_CONV_2D":
        return f"{kind} times" if _multiplies(subgraph, operation) else kind
    if kind == "TRANSPOSE":
        is_matrix = key == kind and is_swap(subgraph, operation)
        return kind if is_matrix else f"{kind} apart"
    return f"{kind} spread" if _spreads(subgraph, operation) else kind


def _multiplies(subgraph: Subgraph, operation: Operation) -> bool:
    """Whether a depthwise convolution has several outputs for each channel."""
    given, made = subgraph.operands[operation.inputs[0]], subgraph.operands[operation.outputs[0]]
    if given.shape is None or made.shape is None:
        return False
    return given.shape[-1:] != made.shape[-1:]


def _lanes_over_outputs(subgraph: Subgraph, operation: Operation) -> float:
    """How many times the products that are wanted of a convolution a processor computes, which
    always computes those of `LANES` output channels.
    """
    shape = static_shape(subgraph.operands[operation.inputs[1]].shape)
    outputs = shape[0] if shape else 0
    return -(-outputs // LANES) * LANES / outputs if outputs else 1.0


def _rows_of(subgraph: Subgraph, operation: Operation) -> float:
    """How many rows a fully connected layer multiplies with its weights, which it reads once."""
    values, weights = (subgraph.operands[i] for i in operation.inputs[:2])
    shape = static_shape(weights.shape)
    depth = shape[-1] if shape else 0
    return work.elements_of(values.shape) / max(1, depth)


def _spreads(subgraph: Subgraph, operation: Operation) -> bool:
    """Whether *operation*, of a kind for which that matters, repeats elements of an input along
    other axes than the first ones.
    """
    if STANDS_FOR.get(operation.key) not in SPREADING:
        return False
    shapes = [static_shape(subgraph.operands[i].shape) for i in operation.inputs]
    result = static_shape(subgraph.operands[operation.outputs[0]].shape)
    if result is None or None in shapes:
        return False
    for shape in shapes:
        own = (1,) * (len(result) - len(shape or ())) + (shape or ())
        met = [at for at, size in enumerate(own) if size != 1]
        tail = result[met[0] :] if met else ()
        if met and own[met[0] :] != tail:
            return True
    return False


def features_of(subgraph: Subgraph, operation: Operation) -> Features:
    """The amounts that the terms are multiplied with; `NOTHING` for what engines compute once."""
    inputs = [subgraph.operands[i] for i in operation.inputs]
    if operation.key in work.VIEWS or all(o.is_constant or not o.has_value for o in inputs):
        return NOTHING
    found, key = work.work_of(subgraph, operation), operation.key
    # The weight of a kind that is measured lies in its cell.
    is_known = key in STANDS_FOR or key in RECURRENT
    amount = found.macs / (work.weight_of(key) if is_known else 1.0)
    if key in COPYING or _spreads(subgraph, operation):
        pieces = pieces_of(subgraph, operation)
        amount = amount if pieces is None else pieces
    if key in CONVOLUTIONS:
        amount *= _lanes_over_outputs(subgraph, operation)
    constants = sum(
        work.nbytes_of(o)
        for o in inputs
        if o.is_constant and o.has_value and o.dtype not in ARGUMENTS
    )
    if key in LOOKUPS:
        # Of a table only the rows that are wanted are read.
        constants = min(constants, work.nbytes_of(subgraph.operands[operation.outputs[0]]))
    return 1.0, amount, found.nbytes, constants


ARGUMENTS: Final = frozenset({DType.INT32, DType.INT64, DType.BOOL})
"""Element types of axes, shapes, indices and biases: reading them takes no time of its own."""

CONVOLUTIONS: Final = frozenset({"CONV_2D", "GROUPED_CONV_2D"})
WEIGHTED: Final = frozenset({
    "CONV_2D", "GROUPED_CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV",
    "BATCH_MATMUL", "CONV_3D",
})  # fmt: skip
SOURCE: Final = {
    "TRANSPOSE_CONV": 2, "CONV_3D_TRANSPOSE": 2, "SPLIT": 1, "SELECT": 1, "SELECT_V2": 1,
    "FILL": 1, "ONE_HOT": 2,
}  # fmt: skip
"""The index of the input that has the values, if it is not 0."""

LOOKUPS: Final = frozenset({"GATHER", "GATHER_ND", "EMBEDDING_LOOKUP", "STABLEHLO_GATHER"})
"""Operations that read some rows of a table."""

SPREADING: Final = frozenset({"ADD", "MUL"})
"""Kinds for which it matters whether an input is repeated along inner axes."""

ANY: Final = "RELU"
"""The kind of an operation for which no measurement stands: its elements have a weight."""

RECURRENT: Final = work.RECURRENT - {"SVDF"}

_LIKE: Final = {
    "CONV_2D": "CONV_3D STABLEHLO_CONVOLUTION",
    "TRANSPOSE_CONV": "TRANSPOSE_CONV CONV_3D_TRANSPOSE CUSTOM:Convolution2DTransposeBias",
    "DEPTHWISE_CONV_2D": "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED": "FULLY_CONNECTED",
    "BATCH_MATMUL": "BATCH_MATMUL STABLEHLO_DOT_GENERAL",
    "ADD": "ADD SUB MAXIMUM MINIMUM ADD_N",
    "MUL": "MUL DIV SQUARED_DIFFERENCE",
    "RELU": "RELU RELU6 RELU_N1_TO_1 LEAKY_RELU PRELU ABS NEG SQUARE FLOOR CEIL ROUND",
    "LOGISTIC": (
        "LOGISTIC TANH EXP LOG SIN COS GELU ELU POW SQRT RSQRT HARD_SWISH ATAN2 "
        "STABLEHLO_EXPONENTIAL STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_TANH STABLEHLO_COSINE "
        "STABLEHLO_POWER STABLEHLO_CBRT STABLEHLO_RSQRT"
    ),
    "SOFTMAX": "SOFTMAX LOG_SOFTMAX L2_NORMALIZATION INSTANCE_NORMALIZATION",
    "MAX_POOL_2D": (
        "MAX_POOL_2D AVERAGE_POOL_2D L2_POOL_2D STABLEHLO_REDUCE_WINDOW "
        "LOCAL_RESPONSE_NORMALIZATION CUSTOM:MaxPoolingWithArgmax2D"
    ),
    "MEAN": (
        "MEAN SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM"
    ),
    "SELECT": "SELECT SELECT_V2",
    "LESS": (
        "LESS LESS_EQUAL GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT "
        "STABLEHLO_COMPARE"
    ),
    "TILE": "TILE BROADCAST_TO FILL ONE_HOT RANGE ZEROS_LIKE STABLEHLO_BROADCAST_IN_DIM",
    "SVDF": "SVDF",
    "WHILE": "WHILE",
    "RESIZE_BILINEAR": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROI_ALIGN",
    "CONCATENATION": "CONCATENATION PACK",
    "STRIDED_SLICE": "STRIDED_SLICE SLICE SPLIT SPLIT_V UNPACK",
    "GATHER": (
        "GATHER EMBEDDING_LOOKUP GATHER_ND SCATTER_ND DYNAMIC_UPDATE_SLICE STABLEHLO_GATHER"
    ),
    "PAD": "PAD PADV2 MIRROR_PAD",
    "TRANSPOSE": (
        "TRANSPOSE SPACE_TO_DEPTH DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND "
        "CHANNEL_SHUFFLE CUSTOM:MaxUnpooling2D"
    ),
    "QUANTIZE": "QUANTIZE DEQUANTIZE CAST",
}
STANDS_FOR: Final = {key: kind for kind, keys in _LIKE.items() for key in keys.split()}
"""The measured kind of each type of operation."""
