"""Small models that are timed to learn what kinds of operations cost on a device.

Most have one kind of operation with one element type, in a size that real networks have. Their cell
is the one that `penstock.partitioning.costs` looks up for their operations. Others are networks of
several kinds: they tell by how much operations cost more together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.ir import DType, Model, Quantization
from penstock.partitioning.costs import FEW_CHANNELS, LOOP
from penstock.runtime.calibration.draft import Attributes, Draft, Shape, Value
from penstock.runtime.calibration.networks import NETWORKS, TINIES, Networks

STEP: Final = "STEP"
"""The cell of the sample whose time is that of a step, and hardly that of its operation."""

EDGE: Final = "EDGE"
"""The cell of the samples that tell what the first reading of a model's inputs costs, and the
writing of its outputs: they differ in the number of operations alone.
"""

NETWORK: Final = "NETWORK"
"""The first word of the cells of networks; the second is the element type."""

TINY: Final = "TINY"
"""The first word of the cells of networks of tiny operations, whose time is hardly that of their
elements; the second is the element type.
"""

CHAIN: Final = 4
"""Operations of a kind that follow each other, so that what an engine does to a model's inputs and
outputs counts less.
"""


class Sample(Struct, frozen=True):
    """A model to be timed. *cell* is that of its operations; *name* says kind, type and size."""

    name: str
    cell: str
    make: Callable[[], Model]


Recipe: TypeAlias = Callable[[Draft, Shape], Value]
"""Adds the operations of one kind in one size, and returns the result."""


def _convolution(draft: Draft, size: Shape) -> Value:
    """*size* is (height, width, input channels, output channels, kernel, stride)."""
    high, wide, depth, outputs, kernel, stride = size
    value = draft.input((1, high, wide, depth))
    for _ in range(CHAIN if stride == 1 and depth > FEW_CHANNELS else 1):
        value = draft.convolution(value, outputs, kernel, stride)
        depth, outputs = outputs, depth
    return value


def _signal(draft: Draft, size: Shape) -> Value:
    """Sums over windows of a signal. *size* is (samples, window, step, outputs)."""
    count, window, step, outputs = size
    shape = (1, 1, (count - window) // step + 1, outputs)
    weights = draft.filter((outputs, 1, window, 1), 0)
    inputs: list[Value | int] = [draft.input((1, 1, count, 1)), weights, draft.bias(outputs)]
    return draft.add(
        "CONV_2D", inputs, shape, {"padding": "VALID", "stride_h": 1, "stride_w": step}
    )


def _depthwise(draft: Draft, size: Shape) -> Value:
    """*size* is (height, width, channels, kernel, stride)."""
    high, wide, depth, kernel, stride = size
    value = draft.input((1, high, wide, depth))
    for _ in range(CHAIN if stride == 1 else 1):
        value = draft.depthwise(value, kernel, stride)
    return value


def _multiplied(draft: Draft, size: Shape) -> Value:
    """*size* is (height, width, channels, outputs for each, kernel, stride)."""
    high, wide, depth, times, kernel, stride = size
    return draft.depthwise(draft.input((1, high, wide, depth)), kernel, stride, times)


def _transposed(draft: Draft, size: Shape) -> Value:
    """*size* is (height, width, input channels, output channels, kernel); the stride is 2."""
    high, wide, depth, outputs, kernel = size
    weights = draft.filter((outputs, kernel, kernel, depth), 0)
    shape = (1, high * 2, wide * 2, outputs)
    inputs: list[Value | int] = [
        draft.integers(*shape),
        weights,
        draft.input((1, high, wide, depth)),
    ]
    return draft.add(
        "TRANSPOSE_CONV", inputs, shape, {"padding": "SAME", "stride_h": 2, "stride_w": 2}
    )


def _connected(draft: Draft, size: Shape) -> Value:
    """*size* is (rows, inputs, outputs)."""
    rows, depth, outputs = size
    value = draft.input((rows, depth))
    for _ in range(CHAIN):
        value = draft.connected(value, outputs)
        depth, outputs = outputs, depth
    return value


def _matmul(draft: Draft, size: Shape) -> Value:
    """*size* is (batch, rows, depth, columns). Beside int16 values stand int8 constants."""
    batch, rows, depth, columns = size
    given, other = draft.input((batch, rows, depth)), (batch, depth, columns)
    second = draft.weights_of(other) if draft.dtype is DType.INT16 else draft.input(other)
    return draft.add("BATCH_MATMUL", [given, second], (batch, rows, columns))


def _unary(kind: str, **attributes: float) -> Recipe:
    def make(draft: Draft, size: Shape) -> Value:
        return draft.add(kind, [draft.input(size)], size, dict(attributes))

    return make


def _binary(kind: str) -> Recipe:
    def make(draft: Draft, size: Shape) -> Value:
        value = given = draft.input(size)
        for _ in range(CHAIN):
            value = draft.add(kind, [value, given], size)
        return value

    return make


def _spread(kind: str) -> Recipe:
    """*kind* with a second input that has one element where *size* has its last but one."""

    def make(draft: Draft, size: Shape) -> Value:
        value = draft.input(size)
        other = draft.input((*size[:-2], 1, size[-1]))
        for _ in range(CHAIN):
            value = draft.add(kind, [value, other], size)
        return value

    return make


def _slice(draft: Draft, size: Shape) -> Value:
    """The first half of the last axis."""
    return draft.strided_slice(draft.input(size), size[-1] // 2)


def _gather(draft: Draft, size: Shape) -> Value:
    """Sixteen rows of a constant table."""
    rows = draft.builder.input(DType.INT32, (16,), "rows")
    return draft.add("GATHER", [draft.constant(size), rows], (16, *size[1:]), {"axis": 0})


def _pools(count: int) -> Recipe:
    """*count* pools in a row. A size is (height, width, channels, window, stride)."""

    def make(draft: Draft, size: Shape) -> Value:
        high, wide, depth, window, stride = size
        value = draft.input((1, high, wide, depth))
        for _ in range(count):
            value = draft.pool(value, window, stride)
        return value

    return make


def _concatenation(draft: Draft, size: Shape) -> Value:
    return draft.concatenation(draft.input(size), draft.input(size))


def _pad(draft: Draft, size: Shape) -> Value:
    """One place more on each side of a picture of *size*."""
    batch, high, wide, depth = size
    around = draft.builder.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    return draft.add("PAD", [draft.input(size), around], (batch, high + 2, wide + 2, depth))


def _transpose(draft: Draft, size: Shape) -> Value:
    """Channels of a picture of *size* first."""
    batch, high, wide, depth = size
    inputs: list[Value | int] = [draft.input(size), draft.integers(0, 3, 1, 2)]
    return draft.add("TRANSPOSE", inputs, (batch, depth, high, wide))


def _transpose_apart(draft: Draft, size: Shape) -> Value:
    """Two pairs of axes change places, or the first pair alone. *size* is (a, b, c, d, axes of the
    permutation's second pair).
    """
    *shape, third, fourth = size
    order = (1, 0, third, fourth)
    inputs: list[Value | int] = [draft.input(tuple(shape)), draft.integers(*order)]
    return draft.add("TRANSPOSE", inputs, tuple(shape[axis] for axis in order))


def _quantize(draft: Draft, size: Shape) -> Value:
    """From float32, if values are quantised; from quantised values to float32 otherwise."""
    if draft.is_quantized:
        given = draft.builder.input(DType.FLOAT32, size, "x")
        return draft.add("QUANTIZE", [given], size)
    coded = draft.builder.input(DType.INT8, size, "x", Quantization((0.025,), (0,)))
    return draft.add("DEQUANTIZE", [coded], size)


def _requantize(draft: Draft, size: Shape) -> Value:
    """From quantised values to such with another scale."""
    zero = 128 if draft.dtype is DType.UINT8 else 0
    given = draft.builder.input(draft.dtype, size, "x", Quantization((0.03125,), (zero,)))
    return draft.add("QUANTIZE", [given], size)


def _select(draft: Draft, size: Shape) -> Value:
    """A choice between two values, element by element."""
    value, other = draft.input(size), draft.input(size)
    for _ in range(CHAIN):
        condition = draft.builder.input(DType.BOOL, size, "chosen")
        value = draft.add("SELECT_V2", [condition, value, other], size)
    return value


def _less(draft: Draft, size: Shape) -> Value:
    """Whether elements of one value are less than those of another."""
    return draft.less(draft.input(size), draft.input(size))


def _tile(draft: Draft, size: Shape) -> Value:
    """A value four times along its last but one axis."""
    times = [1] * len(size)
    times[-2] = 4
    shape = tuple(a * b for a, b in zip(size, times, strict=True))
    return draft.add("TILE", [draft.input(size), draft.integers(*times)], shape)


def _recurrent(draft: Draft, size: Shape) -> Value:
    """*size* is (steps, inputs, cells)."""
    steps, depth, cells = size
    return draft.recurrent(draft.input((steps, 1, depth)), cells)


def _loop(draft: Draft, size: Shape) -> Value:
    """*size* is (rounds, elements): each round adds to a counter and to a value."""
    rounds, count = size
    builder, integer = draft.builder, DType.INT32
    value = draft.input((1, count))
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    counter = condition.input(integer, ())
    condition.input(draft.dtype, (1, count))
    last = condition.constant(np.array(rounds, np.int32))
    goes_on = condition.operation("LESS", [counter, last], [(DType.BOOL, ())])
    counter, held = body.input(integer, ()), body.input(draft.dtype, (1, count))
    one = body.constant(np.array(1, np.int32))
    after = body.operation("ADD", [counter, one], [(integer, ())])
    changed = body.operation("ADD", [held, held], [(draft.dtype, (1, count))])
    attributes: Attributes = {
        "cond_subgraph_index": builder.add_subgraph(condition.finish(goes_on)),
        "body_subgraph_index": builder.add_subgraph(body.finish([*after, *changed])),
    }
    start = builder.constant(np.array(0, np.int32))
    results = [(integer, ()), (draft.dtype, (1, count))]
    _, made = builder.operation("WHILE", [start, value.operand], results, attributes)
    return Value(made, (1, count))


def _of_input(make: Callable[[Draft, Value], Value]) -> Recipe:
    return lambda draft, size: make(draft, draft.input(size))


STEPS: Final = (16, 24, 32)
"""Elements of the samples of a step. The median counts, so that no disturbance decides."""

EDGES: Final = ((28, 28, 64, 3, 1), (14, 14, 96, 3, 1), (56, 56, 32, 3, 1))
PICTURES: Final = (
    (1, 28, 28, 48), (1, 4, 4, 16), (1, 56, 56, 64), (1, 8, 8, 32), (1, 112, 112, 64)
)  # fmt: skip
ROWS: Final = (*PICTURES[:2], (1, 128, 96, 4), PICTURES[2])
"""Pictures of which one has short rows: what is copied by the piece depends on their length."""

SPREADS: Final = ((1, 32, 8, 32), (1, 56, 56, 64), (8, 100, 24, 2), (1, 4, 4, 16))
ROUNDS: Final = (4, 100)
"""Rounds of the samples of a loop."""

KINDS: Final[dict[str, tuple[Recipe, tuple[Shape, ...]]]] = {
    "CONV_2D 1x1": (
        _convolution,
        (
            (28, 28, 32, 96, 1, 1), (14, 14, 64, 384, 1, 1), (56, 56, 16, 64, 1, 1),
            (7, 7, 160, 512, 1, 1), (112, 112, 8, 32, 1, 1), (7, 7, 64, 64, 1, 1),
            (28, 28, 128, 128, 1, 1), (14, 14, 16, 64, 1, 1), (1, 1, 32, 32, 1, 1),
            (28, 28, 256, 512, 1, 1), (1, 1, 1024, 512, 1, 1),
        ),
    ),
    "CONV_2D": (
        _convolution,
        (
            (28, 28, 64, 64, 3, 1), (56, 56, 16, 24, 3, 1), (7, 7, 256, 256, 3, 1),
            (80, 80, 8, 16, 3, 1), (14, 14, 128, 128, 3, 1), (8, 8, 32, 32, 3, 1),
            (28, 28, 48, 64, 5, 2), (64, 64, 32, 32, 7, 1), (112, 112, 32, 32, 3, 1),
        ),
    ),
    "CONV_2D narrow": (
        _convolution,
        ((56, 56, 16, 8, 3, 2), (28, 28, 64, 1, 3, 2), (96, 96, 8, 3, 9, 2), (28, 28, 8, 8, 3, 1)),
    ),
    "CONV_2D few": (
        _convolution,
        ((96, 96, 3, 16, 3, 2), (224, 224, 3, 32, 3, 2), (32, 32, 1, 16, 5, 1)),
    ),
    "CONV_2D long": (
        _signal,
        ((1600, 400, 160, 201), (640, 256, 64, 64), (4096, 512, 128, 256), (512, 128, 128, 128)),
    ),
    "DEPTHWISE_CONV_2D": (
        _depthwise,
        (
            (28, 28, 96, 3, 1), (112, 112, 32, 3, 1), (7, 7, 576, 3, 1), (14, 14, 240, 5, 1),
            (12, 12, 32, 3, 1), (56, 56, 96, 3, 2),
        ),
    ),
    "DEPTHWISE_CONV_2D times": (
        _multiplied, ((49, 40, 1, 8, 9, 2), (48, 48, 16, 2, 3, 1), (64, 64, 3, 8, 3, 2)),
    ),
    "TRANSPOSE_CONV": (
        _transposed,
        (
            (14, 14, 64, 64, 2), (28, 28, 32, 32, 3), (64, 64, 16, 8, 2), (2, 2, 128, 64, 4),
            (4, 4, 32, 16, 4),
        ),
    ),
    "FULLY_CONNECTED": (
        _connected,
        ((1, 256, 256), (1, 640, 512), (1, 64, 12), (1, 128, 640), (1, 16, 16)),
    ),
    "FULLY_CONNECTED large": (_connected, ((1, 2048, 1024), (1, 4096, 1024))),
    "FULLY_CONNECTED rows": (
        _connected,
        ((49, 128, 256), (16, 64, 256), (98, 64, 64), (64, 256, 256), (128, 512, 512)),
    ),
    "BATCH_MATMUL": (
        _matmul,
        ((4, 64, 64, 64), (1, 16, 64, 16), (8, 128, 64, 128), (1, 98, 64, 98)),
    ),
    "ADD": (_binary("ADD"), PICTURES),
    "MUL": (_binary("MUL"), PICTURES),
    "ADD spread": (_spread("ADD"), SPREADS),
    "MUL spread": (_spread("MUL"), SPREADS),
    "STRIDED_SLICE": (_slice, ROWS),
    "GATHER": (_gather, ((100, 64), (1000, 256), (8, 16))),
    "SELECT": (_select, PICTURES[:3]),
    "LESS": (_less, PICTURES[:3]),
    "TILE": (_tile, ROWS),
    "LSTM": (_recurrent, ((8, 64, 64), (1, 128, 128), (28, 28, 20), (1, 32, 32))),
    "RELU": (_unary("RELU"), PICTURES[:3]),
    "LOGISTIC": (_unary("LOGISTIC"), PICTURES[:3]),
    "SOFTMAX": (_unary("SOFTMAX", beta=1.0), ((64, 128), (1, 16), (1, 1000), (1024, 21))),
    "MAX_POOL_2D": (
        _pools(1),
        ((28, 28, 64, 2, 2), (56, 56, 64, 3, 2), (14, 14, 128, 3, 1), (4, 4, 16, 2, 2)),
    ),
    "MEAN": (_of_input(Draft.mean), ((1, 7, 7, 1280), (1, 4, 4, 16), (1, 56, 56, 32))),
    "RESIZE_BILINEAR": (_of_input(Draft.resize), ((1, 16, 16, 32), (1, 64, 64, 16))),
    "CONCATENATION": (_concatenation, ROWS),
    "PAD": (_pad, ROWS),
    "TRANSPOSE": (_transpose, PICTURES[:3]),
    "TRANSPOSE apart": (
        _transpose_apart,
        ((8, 32, 24, 16, 3, 2), (16, 64, 4, 16, 2, 3), (4, 8, 8, 4, 3, 2), (32, 24, 1, 128, 2, 3)),
    ),
    "QUANTIZE": (_quantize, PICTURES[:3]),
    "QUANTIZE again": (_requantize, PICTURES[:3]),
}  # fmt: skip
"""For each kind of operation the way to make it, and sizes, the most typical first."""

TYPES: Final = (
    ("float32", DType.FLOAT32, None), ("int8", DType.INT8, None), ("uint8", DType.UINT8, None),
    ("hybrid", DType.FLOAT32, DType.INT8), ("int16", DType.INT16, DType.INT8),
)  # fmt: skip
WEIGHTED: Final = frozenset({
    "CONV_2D", "CONV_2D 1x1", "DEPTHWISE_CONV_2D", "DEPTHWISE_CONV_2D times", "FULLY_CONNECTED",
    "FULLY_CONNECTED large", "FULLY_CONNECTED rows",
})  # fmt: skip
KINDS_OF_TYPE: Final = {"hybrid": WEIGHTED, "int16": WEIGHTED | {"ADD", "MUL", "BATCH_MATMUL"}}
FLOAT_ONLY: Final = frozenset({"LSTM", "SELECT", "LESS", "TILE"})
"""Kinds that are timed in float32 alone: other element types cost as much, or are rare."""

FIRST_TYPES: Final = frozenset({"float32", "int8"})
"""Element types whose samples come first: what they show holds for the others too."""


def samples() -> Iterator[Sample]:
    """Every sample, those first that say most: the first size of each kind, then the second."""
    for count in STEPS:
        make = _maker(_unary("RELU"), (1, count), DType.FLOAT32)
        yield Sample(f"{STEP} {count}", STEP, make)
    for edge in EDGES:
        for count in (1, CHAIN):
            make = _maker(_pools(count), edge, DType.FLOAT32)
            yield Sample(f"{EDGE} {count} {'x'.join(map(str, edge))}", EDGE, make)
    longest = max(len(sizes) for _, sizes in KINDS.values())
    for turn in range(longest):
        for is_first in (True, False):
            yield from _of_turn(turn, is_first=is_first)
            if turn == 0 and is_first:
                yield from _networks(TINY, TINIES)
    for rounds in ROUNDS:
        yield Sample(f"{LOOP} {rounds}", LOOP, _maker(_loop, (rounds, 16), DType.FLOAT32))
    yield from _networks(NETWORK, NETWORKS)


def _of_turn(turn: int, *, is_first: bool) -> Iterator[Sample]:
    """One size of each kind, in the first element types or in the others."""
    for kind, (recipe, sizes) in KINDS.items():
        for name, dtype, weights in TYPES:
            wanted = (name in FIRST_TYPES) == is_first and turn < len(sizes)
            if wanted and _occurs(kind, name):
                text = f"{kind} {name} {'x'.join(map(str, sizes[turn]))}"
                make = _maker(recipe, sizes[turn], dtype, weights)
                yield Sample(text, f"{kind} {name}", make)


def _networks(word: str, networks: Networks) -> Iterator[Sample]:
    for name, dtype, weights in TYPES:
        for network, (size, layers, types) in networks.items():
            if name in types:
                make = _maker(_of_input(layers), size, dtype, weights)
                yield Sample(f"{network} {name}", f"{word} {name}", make)


def _occurs(kind: str, name: str) -> bool:
    if kind in FLOAT_ONLY:
        return name == "float32"
    if name in KINDS_OF_TYPE:
        return kind in KINDS_OF_TYPE[name]
    if kind == "QUANTIZE again":
        return name != "float32"
    return name != "uint8" or kind != "BATCH_MATMUL"


def _maker(
    recipe: Recipe, size: Shape, dtype: DType, weights: DType | None = None
) -> Callable[[], Model]:
    def make() -> Model:
        draft = Draft(dtype, weights)
        return draft.build(recipe(draft, size))

    return make
