"""Estimates, from shapes, an operation's work, the reference's time, and the memory of a run.

Devices declare their cost relative to the reference (NNAPI section 4.3), while dispatch and
transfer are in nanoseconds and bytes. The estimate of the reference's own time connects the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from penstock import knobs
from penstock.errors import LimitExceeded, Place
from penstock.interrupts import polled
from penstock.ir import DType, Model, Operand, Operation, Subgraph
from penstock.ir.transforms import entered_from
from penstock.ir.types import Shape, is_static, static_shape
from penstock.ir.validate import subgraph_references
from penstock.memory.limits import MIB, available_memory

LEAST_LIMIT: Final = 1 << 30
"""Bytes that a run's values may always use, unless the knob `max_run_mib` is set."""

GUESSED_BATCH: Final = 1
"""Assumed size of a first dimension that is known only during a run."""

GUESSED_DIMENSION: Final = 64
"""Assumed size of any other such dimension."""

GUESSED_ELEMENTS: Final = 1024
"""Assumed elements of a value of unknown rank, and assumed bytes of a string."""

GUESSED_ITERATIONS: Final = 8
"""Assumed iterations of a loop."""

WORKSPACE_BYTE_NS: Final = 2.0
"""Time for each byte of an engine's workspace."""

OPERATION_NS: Final = 8_000.0
"""The reference's overhead for any operation."""

MAC_NS: Final = 0.05
"""The reference's time for one multiply-accumulate."""

DEPTHWISE_WEIGHT: Final = 8.0
"""Weight of a multiply-accumulate in a depthwise convolution, which is no matrix product."""

RECURRENT_WEIGHT: Final = 16.0
"""Weight in a recurrent operation, whose time steps run one after another."""

ELEMENT_NS: Final = 1.0
"""Worst time of an engine for an element of any other operation, or of a sliding window."""

FLOAT_BYTE_NS: Final = 0.4
INTEGER_BYTE_NS: Final = 2.0
"""The reference's time for a byte read or written, for floats and for integers."""


class Work(Struct, frozen=True):
    """*macs* are multiply-accumulates or similar; *nbytes* are moved, without constants."""

    macs: float = 0.0
    nbytes: float = 0.0


def elements_of(shape: Shape) -> int:
    """Elements of a value of *shape*; dimensions known only during a run are assumed."""
    if shape is None:
        return GUESSED_ELEMENTS
    count = 1
    for position, dimension in enumerate(shape):
        guess = GUESSED_DIMENSION if position else GUESSED_BATCH
        count *= guess if dimension is None else dimension
    return count


def nbytes_of(operand: Operand) -> float:
    """Bytes of a value of *operand*, with assumed dimensions; 0 for an omitted operand."""
    if not operand.has_value:
        return 0.0
    bits = operand.dtype.bits or 8
    size = GUESSED_ELEMENTS if operand.dtype is DType.STRING else bits / 8
    return float(elements_of(operand.shape) * size)


def most_bytes(model: Model) -> float:
    """An upper bound of the bytes of all values but constants; unknown dimensions are assumed."""
    found = 0.0
    for subgraph in model.subgraphs:
        for operand in polled(subgraph.operands):
            if not operand.is_constant:
                found += max(nbytes_of(operand), float(elements_of(operand.shape)))
    return found


def work_of(subgraph: Subgraph, operation: Operation) -> Work:
    """The work of *operation* itself, without the subgraphs it refers to.

    Every operation type has an answer: matrix products and convolutions by their shapes, the others
    by the elements that they write or read, with a weight for each element.
    """
    inputs = [subgraph.operands[i] for i in operation.inputs]
    outputs = [subgraph.operands[i] for i in operation.outputs]
    kind = operation.key
    if kind in VIEWS:
        return Work()
    written = sum(map(nbytes_of, outputs))
    if kind in PICKING:
        return Work(0.0, 2 * written)
    nbytes = written + sum(nbytes_of(o) for o in inputs if not o.is_constant)
    if (rule := RULES.get(kind)) is not None:
        return Work(rule(Site(operation, inputs, outputs)), nbytes)
    return Work(WEIGHTS.get(kind, 1.0) * max(_count(inputs), _count(outputs)), nbytes)


def products_of(subgraph: Subgraph, operation: Operation) -> float:
    """The multiply-accumulates of *operation*, without weights; 0 if it is no matrix product."""
    key = operation.key
    if key not in RULES or key in WINDOWED:
        return 0.0
    return work_of(subgraph, operation).macs / weight_of(key)


def weight_of(key: str) -> float:
    """The weight of a multiply-accumulate or element in operations of this type."""
    if key in RECURRENT:
        return RECURRENT_WEIGHT
    return DEPTHWISE_WEIGHT if key == "DEPTHWISE_CONV_2D" else WEIGHTS.get(key, 1.0)


def times_of(subgraph: Subgraph, operation: Operation) -> tuple[float, float]:
    """Nanoseconds of *operation* on the reference, and at most on any engine on one core.

    Subgraphs that it enters are not counted.
    """
    work = work_of(subgraph, operation)
    ports = operation.inputs or operation.outputs
    floating = not ports or subgraph.operands[ports[0]].dtype.is_float
    rate = FLOAT_BYTE_NS if floating else INTEGER_BYTE_NS
    key = operation.key
    each = MAC_NS if key in RULES and key not in WINDOWED else ELEMENT_NS
    worst = work.macs * each + work.nbytes * FLOAT_BYTE_NS
    worst += workspace_of(subgraph, operation) * WORKSPACE_BYTE_NS
    return OPERATION_NS + work.macs * MAC_NS + work.nbytes * rate, worst


def share_of(operation: Operation) -> float:
    """The expected runs of each subgraph in one run of *operation*.

    One half for either branch of an IF (NNAPI section 4.3), an equal share for each branch of a
    CASE, `GUESSED_ITERATIONS` for a loop's condition and body.
    """
    if operation.type == "IF":
        return 0.5
    if operation.type == "STABLEHLO_CASE":
        return 1 / max(1, len(subgraph_references(operation)))
    if operation.type in {"WHILE", "STABLEHLO_WHILE"}:
        return GUESSED_ITERATIONS
    return 1.0 if operation.type in {"CALL", "STABLEHLO_COMPOSITE"} else 0.0


def callees_first(model: Model) -> list[int]:
    """The subgraphs reachable from the entry, each after all subgraphs that it refers to."""
    return [*entered_from(model, model.main), model.main]


def workspace_of(subgraph: Subgraph, operation: Operation) -> int:
    """Bytes of an engine's workspace for a convolution or pool of pictures.

    It has one slot for each element of the window, for each pixel of the result. A window larger
    than twice the picture counts as twice the picture.
    """
    place = CONVOLUTIONS.get(operation.type, 0)
    if operation.type in CONVOLUTIONS:
        kernel = static_shape(subgraph.operands[operation.inputs[1]].shape)
        window = None if kernel is None or len(kernel) != 4 else kernel[1:3]
    elif operation.type in POOLS:
        read = operation.attributes.integer
        window = read("filter_height"), read("filter_width")
    else:
        return 0
    picture = static_shape(subgraph.operands[operation.inputs[place]].shape)
    result = static_shape(subgraph.operands[operation.outputs[0]].shape)
    if window is None or picture is None or result is None or not len(picture) == len(result) == 4:
        return 0
    met = [min(w, 2 * p) for w, p in zip(window, picture[1:3], strict=True)]
    return math.prod(result[1:3]) * math.prod(met) * PLACE_BYTES


class Site(Struct, frozen=True):
    """An operation with the operands that it reads and writes."""

    operation: Operation
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


Rule: TypeAlias = Callable[[Site], float]


def _count(operands: Sequence[Operand]) -> float:
    return float(sum(elements_of(o.shape) for o in operands if o.has_value))


def _dimension(operand: Operand, axis: int) -> int:
    shape = operand.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return GUESSED_DIMENSION
    found = shape[axis]
    return GUESSED_DIMENSION if found is None else max(1, found)


def _filtered(axis: int, source: int | None = None, weight: float = 1.0) -> Rule:
    """Each element of the output, or of input *source*, meets the filter, except its *axis*."""

    def rule(site: Site) -> float:
        kernel = site.inputs[1]
        met = site.outputs[:1] if source is None else site.inputs[source : source + 1]
        return weight * _count(met) * elements_of(kernel.shape) / _dimension(kernel, axis)

    return rule


def _matmul(site: Site) -> float:
    axis = -2 if site.operation.attributes.get("adj_x") else -1
    return _count(site.outputs) * _dimension(site.inputs[0], axis)


def _dot(site: Site) -> float:
    axes = site.operation.attributes.integers("lhs_contracting_dimensions")
    return _count(site.outputs) * math.prod(_dimension(site.inputs[0], axis) for axis in axes)


def _convolution(site: Site) -> float:
    return _filtered(site.operation.attributes.integer("kernel_output_feature_dimension"))(site)


def _recurrent(site: Site) -> float:
    """Every row of the input is multiplied by every matrix."""
    rows = _count(site.inputs[:1]) / _dimension(site.inputs[0], -1)
    matrices = [o for o in site.inputs[1:] if o.shape is not None and len(o.shape) > 1]
    return RECURRENT_WEIGHT * rows * _count(matrices)


def _pooled(site: Site) -> float:
    read = site.operation.attributes
    return _count(site.outputs) * read.integer("filter_width") * read.integer("filter_height")


def _windowed(site: Site) -> float:
    window = site.operation.attributes.integers("window_dimensions")
    return _count(site.outputs) * math.prod(window)


def _normalised(site: Site) -> float:
    return _count(site.outputs) * (2 * site.operation.attributes.integer("radius") + 1)


POOLS: Final = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"})
_RECURRENT_TYPES: Final = (
    "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM QUANTIZED_LSTM "
    "QUANTIZED_16BIT_LSTM RNN UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN SVDF"
)
RECURRENT: Final = frozenset(_RECURRENT_TYPES.split())

RULES: Final[dict[str, Rule]] = {
    "CONV_2D": _filtered(0),
    "GROUPED_CONV_2D": _filtered(0),
    "DEPTHWISE_CONV_2D": _filtered(-1, weight=DEPTHWISE_WEIGHT),
    "CONV_3D": _filtered(-1),
    "TRANSPOSE_CONV": _filtered(-1, source=2),
    "CONV_3D_TRANSPOSE": _filtered(-1, source=2),
    "CUSTOM:Convolution2DTransposeBias": _filtered(-1, source=0),
    "FULLY_CONNECTED": _filtered(0),
    "STABLEHLO_CONVOLUTION": _convolution,
    "STABLEHLO_DOT_GENERAL": _dot,
    "BATCH_MATMUL": _matmul,
    "CUSTOM:odml.scaled_dot_product_attention": lambda site: (
        2.0 * _count(site.inputs[:1]) * _dimension(site.inputs[1], 1)
    ),
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(POOLS, _pooled),
    "STABLEHLO_REDUCE_WINDOW": _windowed,
    "LOCAL_RESPONSE_NORMALIZATION": _normalised,
}
"""Operations whose work is a product of dimensions."""

PLACE_BYTES: Final = 8
CONVOLUTIONS: Final = {
    "CONV_2D": 0,
    "DEPTHWISE_CONV_2D": 0,
    "GROUPED_CONV_2D": 0,
    "TRANSPOSE_CONV": 2,
}
"""Operations whose kernels slide over pictures, and the index of the picture input."""

WINDOWED: Final = POOLS | {"STABLEHLO_REDUCE_WINDOW", "LOCAL_RESPONSE_NORMALIZATION"}
"""Operations of `RULES` that are no matrix products."""

_VIEWS: Final = (
    "RESHAPE STABLEHLO_RESHAPE SQUEEZE EXPAND_DIMS BITCAST SHAPE RANK VAR_HANDLE READ_VARIABLE "
    "ASSIGN_VARIABLE HASHTABLE HASHTABLE_SIZE CALL CALL_ONCE IF WHILE STABLEHLO_WHILE "
    "STABLEHLO_CASE STABLEHLO_COMPOSITE"
)
VIEWS: Final = frozenset(_VIEWS.split())
"""Operations that touch no elements themselves."""

_PICKING: Final = (
    "SLICE STRIDED_SLICE STABLEHLO_SLICE STABLEHLO_DYNAMIC_SLICE GATHER GATHER_ND "
    "STABLEHLO_GATHER EMBEDDING_LOOKUP"
)
PICKING: Final = frozenset(_PICKING.split())
"""Operations that read no more elements than they write."""

_EXPENSIVE: Final = (
    "EXP LOG LOGISTIC TANH SIN COS GELU ELU SOFTMAX LOG_SOFTMAX POW SQRT RSQRT HARD_SWISH "
    "L2_NORMALIZATION INSTANCE_NORMALIZATION ATAN2 COMPLEX_ABS RESIZE_BILINEAR ROI_ALIGN "
    "STABLEHLO_EXPONENTIAL STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_TANH STABLEHLO_COSINE "
    "STABLEHLO_POWER STABLEHLO_CBRT STABLEHLO_RSQRT"
)
_ORDERING: Final = (
    "TOPK_V2 UNIQUE STABLEHLO_SORT NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 "
    "BOX_WITH_NMS_LIMIT DETECTION_POSTPROCESSING CUSTOM:TFLite_Detection_PostProcess "
    "GENERATE_PROPOSALS HEATMAP_MAX_KEYPOINT RFFT2D CUSTOM:AudioSpectrogram CUSTOM:Mfcc "
    "MULTINOMIAL RANDOM_MULTINOMIAL RANDOM_UNIFORM RANDOM_STANDARD_NORMAL "
    "STABLEHLO_RNG_BIT_GENERATOR LSH_PROJECTION SKIP_GRAM"
)

WEIGHTS: Final[dict[str, float]] = {
    **dict.fromkeys(_EXPENSIVE.split(), 16.0),
    **dict.fromkeys(_ORDERING.split(), 64.0),
}
"""Weight of one element, if it is not 1."""

_NO_LARGER: Final = (
    "UNIQUE WHERE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 BOX_WITH_NMS_LIMIT "
    "GENERATE_PROPOSALS DETECTION_POSTPROCESSING TOPK_V2 SLICE STRIDED_SLICE RESHAPE SQUEEZE "
    "EXPAND_DIMS BATCH_TO_SPACE_ND DEPTH_TO_SPACE SPACE_TO_DEPTH SPLIT SPLIT_V UNPACK TRANSPOSE "
    "SHAPE RANK BROADCAST_ARGS BITCAST SUM MEAN REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_ANY "
    "REDUCE_ALL ARG_MAX ARG_MIN IF WHILE CALL STABLEHLO_CASE STABLEHLO_WHILE STABLEHLO_COMPOSITE"
)
NO_LARGER: Final = frozenset(_NO_LARGER.split())
"""Operations whose outputs are no larger than their inputs, or that enter subgraphs."""


def unbounded_operations(subgraph: Subgraph) -> list[bool]:
    """For each operation of *subgraph*, whether its work has no upper bound before the run.

    Such an operation has inputs of known shapes, but makes a value whose size is known only during
    the run (the size of a FILL, the repeats of a TILE). Or it reads such a value.
    """
    operands, found = subgraph.operands, list[bool]()
    endless: set[int] = set()
    for operation in polled(subgraph.operations):
        reads = any(i in endless for i in operation.inputs)
        open_outputs = [i for i in operation.outputs if not is_static(operands[i].shape)]
        known = all(is_static(operands[i].shape) for i in operation.inputs)
        grows = bool(open_outputs) and known and operation.type not in NO_LARGER
        if reads or grows:
            endless.update(open_outputs)
        found.append(reads or grows)
    return found


class Peak(Struct, frozen=True):
    """The most bytes of a model's values, and the entry operation then (None: ports alone)."""

    nbytes: int = 0
    operation: int | None = None


def run_limit() -> int:
    """Most bytes of one run's values: `max_run_mib`, else half the memory, or `LEAST_LIMIT`."""
    wanted = knobs.max_run_mib()
    return wanted * MIB if wanted else max(LEAST_LIMIT, available_memory() // 2)


def check_memory(model: Model) -> None:
    """Raises `LimitExceeded`, with the operation, if a run of *model* would exceed `run_limit`."""
    limit, peak = run_limit(), peak_of(model)
    if peak.nbytes <= limit:
        return
    where = None
    if peak.operation is not None:
        operation = model.operations[peak.operation]
        name = model.entry.operation_name(peak.operation)
        where = Place(model.main, peak.operation, type=operation.type, name=name)
    text = f"a run would hold {peak.nbytes} bytes of values at a time"
    raise LimitExceeded(f"{text}; the limit is {limit} (knob max_run_mib)", where=where)


def peak_of(model: Model) -> Peak:
    """The peak of a run that frees each value after its last reader, save inputs and outputs."""
    inner: dict[int, int] = {}
    for index in entered_from(model, model.main):
        inner[index] = _peak(model.subgraphs[index], inner).nbytes
    return _peak(model.entry, inner)


def _peak(subgraph: Subgraph, inner: dict[int, int]) -> Peak:
    kept = {*subgraph.inputs, *subgraph.outputs}
    last: dict[int, int] = {}
    for at, operation in enumerate(polled(subgraph.operations)):
        last.update(dict.fromkeys((*operation.inputs, *operation.outputs), at))
    held = peak = _total(subgraph, kept)
    where = None
    for at, operation in enumerate(polled(subgraph.operations)):
        held += _total(subgraph, set(operation.outputs) - kept)
        within = max((inner.get(t, 0) for t in subgraph_references(operation)), default=0)
        if held + within > peak:
            peak, where = held + within, at
        ports = {*operation.inputs, *operation.outputs} - kept
        held -= _total(subgraph, {i for i in ports if last[i] == at})
    return Peak(peak, where)


def _total(subgraph: Subgraph, operands: Iterable[int]) -> int:
    return sum(known_nbytes(subgraph.operands[index]) for index in operands)


def known_nbytes(operand: Operand) -> int:
    """Bytes of a variable value of known shape; 0 for constants and unknown shapes."""
    if operand.is_constant or not operand.has_value:
        return 0
    shape = static_shape(operand.shape)
    return 0 if shape is None else math.prod(shape) * max(8, operand.dtype.bits or 8) // 8
