"""What stands behind a layer and belongs into it: products and sums by channel, and activation
functions.

ONNX has normalisation and activation as nodes of their own; TFLite's layers have weights, a bias
and an activation for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from msgspec.structs import replace

from penstock.ir.operand import Operand
from penstock.ir.operation import Attributes, Operation
from penstock.ir.types import DType, NDArray, Shape
from penstock.loaders.onnx.values import is_uniform, uniform

CHANNELS: Final = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
"""Layers, and the dimension of their weights that is the output's channels."""

ACTIVATED: Final = frozenset(
    {*CHANNELS, "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
)
FUSED: Final = {"RELU": "RELU", "RELU6": "RELU6", "RELU_N1_TO_1": "RELU_N1_TO_1"}
MAX_SPREAD: Final = 1 << 24
"""Weights that are one value repeated become so many at most, where channels get factors of their
own.
"""


class Operands(Protocol):
    """The operands that operations refer to by index: an `Emitter` has them."""

    operands: list[Operand]
    arrays: dict[int, NDArray]

    def dtype(self, index: int) -> DType:
        """The element type of an operand."""
        ...

    def shape(self, index: int) -> Shape:
        """The shape of an operand, as far as it is known."""
        ...

    def constant(self, array: NDArray) -> int:
        """A new constant operand."""
        ...


def fused(
    emitter: Operands, operations: Sequence[Operation], outputs: Sequence[int]
) -> list[Operation]:
    """*operations* of *emitter* with those put together that may be; *outputs* are read from
    outside.
    """
    uses = Counter(i for o in operations for i in set(o.inputs))
    uses.update(outputs)
    done: list[Operation | None] = []
    writers: dict[int, int] = {}
    for operation in operations:
        place, whole = None, None
        if len(operation.outputs) == 1:
            place, whole = _behind(emitter, operation, done, writers, uses)
        if place is None or whole is None:
            place, whole = len(done), operation
            done.append(operation)
        done[place] = whole
        writers.update(dict.fromkeys(whole.outputs, place))
    return [o for o in done if o is not None]


def _behind(
    emitter: Operands,
    operation: Operation,
    done: Sequence[Operation | None],
    writers: dict[int, int],
    uses: Counter[int],
) -> tuple[int | None, Operation | None]:
    """(place of a layer before, that layer with *operation* in it); None where they stay apart."""
    if operation.type in FUSED:
        candidates = [operation.inputs[0]]
    elif operation.type in {"MUL", "ADD"}:
        candidates = [i for i in operation.inputs if i not in emitter.arrays]
    else:
        return None, None
    if len(candidates) != 1 or uses[candidates[0]] != 1:
        return None, None
    place = writers.get(candidates[0])
    layer = None if place is None else done[place]
    if layer is None or emitter.dtype(candidates[0]) is not DType.FLOAT32:
        return None, None
    if layer.attributes.get("fused_activation_function") != "NONE":
        return None, None
    if emitter.shape(operation.outputs[0]) != emitter.shape(candidates[0]):
        return None, None
    if operation.type in FUSED:
        if layer.type not in ACTIVATED:
            return None, None
        name = FUSED[operation.type]
        attributes = Attributes({**layer.attributes, "fused_activation_function": name})
        return place, replace(layer, attributes=attributes, outputs=operation.outputs)
    (other,) = (i for i in operation.inputs if i != candidates[0])
    return place, _scaled(emitter, layer, operation, emitter.arrays[other])


def _scaled(
    emitter: Operands, layer: Operation, operation: Operation, values: NDArray
) -> Operation | None:
    """*layer* times, or plus, one value or one a channel."""
    axis = CHANNELS.get(layer.type)
    if axis is None or layer.inputs[1] not in emitter.arrays:
        return None
    weights = emitter.arrays[layer.inputs[1]]
    count = weights.shape[axis]
    if values.size not in {1, count} or (values.size > 1 and values.shape[-1] != count):
        return None
    biased = len(layer.inputs) > 2 and emitter.operands[layer.inputs[2]].has_value
    if biased and layer.inputs[2] not in emitter.arrays:
        return None
    bias = emitter.arrays[layer.inputs[2]] if biased else np.zeros(count, np.float32)
    vector = np.broadcast_to(values.reshape(-1), (count,))
    if operation.type == "ADD":
        made = emitter.constant((bias + vector).astype(np.float32))
        biased_inputs = (layer.inputs[0], layer.inputs[1], made)
        return replace(layer, inputs=biased_inputs, outputs=operation.outputs)
    if uniform_weights := is_uniform(weights):
        same = bool((vector == vector[:1]).all())
        if not same and weights.size > MAX_SPREAD:
            return None
        uniform_weights = same
    if uniform_weights:
        one = weights[(0,) * weights.ndim] * vector[0]
        grown = uniform(np.asarray(one, np.float32), weights.shape)
    else:
        shape = [count if i == axis else 1 for i in range(weights.ndim)]
        grown = weights * vector.reshape(shape)
    inputs: tuple[int, ...] = (layer.inputs[0], emitter.constant(grown))
    if biased:
        inputs += (emitter.constant((bias * vector).astype(np.float32)),)
    return replace(layer, inputs=inputs, outputs=operation.outputs)
