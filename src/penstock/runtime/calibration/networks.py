"""Small networks of several kinds of operations, in the way of common architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.runtime.calibration.draft import Draft, Shape, Value


def _mobile(draft: Draft, value: Value) -> Value:
    """Inverted bottlenecks (Sandler et al., "MobileNetV2", 2018), and a classifier."""
    value = draft.convolution(value, 16, 3, 2)
    for outputs, stride in ((24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        given = value
        value = draft.convolution(value, 4 * value.shape[3], 1)
        value = draft.depthwise(value, 3, stride)
        value = draft.convolution(value, outputs, 1)
        if value.shape == given.shape:
            value = draft.add("ADD", [value, given], value.shape)
    value = draft.mean(value)
    return draft.connected(draft.reshape(value, (1, value.shape[3])), 100)


def _separable(draft: Draft, value: Value) -> Value:
    """Depthwise separable layers (Howard et al., "MobileNets", 2017)."""
    value = draft.convolution(value, 16, 3, 2)
    for outputs, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        value = draft.convolution(draft.depthwise(value, 3, stride), outputs, 1)
    return draft.mean(value)


def _thin(draft: Draft, value: Value) -> Value:
    """Few channels in large pictures, as in detectors of faces."""
    for outputs in (8, 16, 16):
        value = draft.convolution(value, outputs, 3)
        given = value
        value = draft.convolution(draft.depthwise(value, 3), outputs, 1)
        value = draft.add("ADD", [value, given], value.shape)
        value = draft.pool(value, 2, 2)
    boxes, scores = draft.convolution(value, 8, 1), draft.convolution(value, 4, 3)
    return draft.concatenation(boxes, draft.add("RELU", [scores], scores.shape))


def _residual(draft: Draft, value: Value) -> Value:
    """Residual blocks (He et al., "Deep Residual Learning", 2015), and a classifier."""
    value = draft.pool(draft.convolution(value, 32, 5, 2), 3, 2)
    for outputs, stride in ((32, 1), (64, 2), (128, 2)):
        given = value
        value = draft.convolution(draft.convolution(value, outputs, 3, stride), outputs, 3)
        if stride != 1:
            given = draft.convolution(given, outputs, 1, stride)
        value = draft.add("ADD", [value, given], value.shape)
    value = draft.mean(value)
    return draft.connected(draft.reshape(value, (1, value.shape[3])), 100)


def _pyramid(draft: Draft, value: Value) -> Value:
    """An encoder and a decoder with connections between them (Ronneberger et al., 2015)."""
    levels = []
    for outputs in (16, 32, 48):
        value = draft.convolution(
            draft.depthwise(draft.convolution(value, outputs, 3), 3), outputs, 1
        )
        levels.append(value)
        value = draft.pool(value, 2, 2)
    for level in reversed(levels):
        value = draft.concatenation(draft.resize(value), level)
        value = draft.convolution(value, level.shape[3], 1)
        value = draft.add("LOGISTIC" if level is levels[0] else "RELU", [value], value.shape)
    return value


def _attention(draft: Draft, value: Value) -> Value:
    """Layers of a transformer (Vaswani et al., "Attention Is All You Need", 2017)."""
    rows, depth = value.shape
    for _ in range(2):
        normal = _normalised(draft, value)
        query, key, content = (draft.connected(normal, depth) for _ in range(3))
        turned = draft.add("TRANSPOSE", [key, draft.integers(1, 0)], (depth, rows))
        weights = draft.add("BATCH_MATMUL", [query, turned], (rows, rows))
        weights = draft.add("SOFTMAX", [weights], (rows, rows), {"beta": 1.0})
        mixed = draft.connected(draft.add("BATCH_MATMUL", [weights, content], (rows, depth)), depth)
        value = draft.add("ADD", [value, mixed], (rows, depth))
        wide = draft.connected(_normalised(draft, value), 4 * depth)
        wide = draft.add("TANH", [wide], wide.shape)
        value = draft.add("ADD", [value, draft.connected(wide, depth)], (rows, depth))
    return value


def _normalised(draft: Draft, value: Value) -> Value:
    """Each row with a mean of 0 and a variance of 1."""
    rows, depth = value.shape
    last = draft.integers(1)
    mean = draft.add("MEAN", [value, last], (rows, 1), {"keep_dims": True})
    squares = draft.add("SQUARED_DIFFERENCE", [value, mean], (rows, depth))
    variance = draft.add("MEAN", [squares, last], (rows, 1), {"keep_dims": True})
    scale = draft.add("RSQRT", [variance], (rows, 1))
    return draft.add("MUL", [draft.add("SUB", [value, mean], (rows, depth)), scale], (rows, depth))


def _rotary(draft: Draft, value: Value) -> Value:
    """Values turned by their position (Su et al., "RoFormer", 2021): halves of short rows."""
    batch, rows, _, depth = value.shape
    half = depth // 2
    angles = draft.add(
        "MEAN", [value, draft.integers(2)], (batch, rows, 1, depth), {"keep_dims": True}
    )
    sine, cosine = (
        draft.add(kind, [draft.strided_slice(angles, half)], (batch, rows, 1, half))
        for kind in ("TANH", "LOGISTIC")
    )
    for _ in range(2):
        left, right = (draft.strided_slice(value, half, start) for start in (0, half))

        def turned(one: Value, other: Value) -> list[Value | int]:
            return [
                draft.add("MUL", [each, angle], each.shape)
                for each, angle in ((one, cosine), (other, sine))
            ]

        value = draft.concatenation(
            draft.add("SUB", turned(left, right), left.shape),
            draft.add("ADD", turned(right, left), left.shape),
        )
    return value


def _tiny(draft: Draft, value: Value) -> Value:
    """Operations of few elements, as in streaming and recurrent networks."""
    given = value
    for _ in range(4):
        wide = draft.concatenation(value, given)
        value = draft.strided_slice(wide, value.shape[-1])
        value = draft.add("ADD", [value, given], value.shape)
        value = draft.connected(value, value.shape[-1])
        gate = draft.add("LOGISTIC", [value], value.shape)
        value = draft.add("MUL", [value, gate], value.shape)
        value = draft.add("SUB", [value, given], value.shape)
    return value


def _gates(draft: Draft, value: Value) -> Value:
    """Unrolled steps of gated cells (Cho et al., 2014)."""
    state = value
    for _ in range(4):
        gates = draft.connected(draft.concatenation(value, state), 2 * value.shape[-1])
        gates = draft.add("LOGISTIC", [gates], gates.shape)
        kept = draft.strided_slice(gates, value.shape[-1])
        change = draft.add("TANH", [draft.connected(state, value.shape[-1])], value.shape)
        change = draft.add("MUL", [change, kept], value.shape)
        state = draft.add("ADD", [state, change], value.shape)
    return state


def _streaming(draft: Draft, value: Value) -> Value:
    """Convolutions over a few places, with what is kept of the past."""
    depth = value.shape[-1]
    for _ in range(5):
        whole = draft.concatenation(value, value)
        value = draft.convolution(draft.strided_slice(whole, depth), depth, 1)
        value = draft.depthwise(value, 3)
    return value


def _choices(draft: Draft, value: Value) -> Value:
    """Comparisons and selections, as in trees of decisions."""
    given, (rows, depth) = value, value.shape
    for _ in range(4):
        chosen = draft.less(value, given)
        value = draft.add("SELECT_V2", [chosen, value, given], value.shape)
        value = draft.add("TILE", [value, draft.integers(4, 1)], (4 * rows, depth))
        value = draft.add("MEAN", [value, draft.integers(0)], (1, depth), {"keep_dims": True})
        value = draft.add("RELU", [value], value.shape)
    return value


Networks: TypeAlias = "dict[str, tuple[Shape, Callable[[Draft, Value], Value], tuple[str, ...]]]"
"""The shape of the input, the network, and the element types in which it is timed, by name."""

EVERY: Final = ("float32", "int8", "uint8", "hybrid")
NETWORKS: Final[Networks] = {
    "mobile": ((1, 96, 96, 3), _mobile, EVERY),
    "residual": ((1, 64, 64, 3), _residual, EVERY),
    "separable": ((1, 64, 64, 3), _separable, EVERY),
    "pyramid": ((1, 64, 64, 3), _pyramid, EVERY),
    "attention": ((48, 64), _attention, ("float32",)),
    "thin": ((1, 80, 80, 3), _thin, EVERY),
    "rotary": ((1, 96, 16, 8), _rotary, ("float32",)),
    "large mobile": ((1, 192, 192, 3), _mobile, EVERY),
    "large separable": ((1, 160, 160, 3), _separable, EVERY),
    "large residual": ((1, 160, 160, 3), _residual, EVERY),
    "large thin": ((1, 224, 224, 3), _thin, EVERY),
}
"""Networks of operations as large as those of common networks."""

TINIES: Final[Networks] = {
    "tiny": ((1, 16), _tiny, ("float32", "int8", "uint8")),
    "gates": ((1, 16), _gates, ("float32", "int8", "hybrid")),
    "streaming": ((1, 4, 1, 16), _streaming, ("float32", "int8")),
    "choices": ((1, 16), _choices, ("float32",)),
}
"""Networks of tiny operations."""
