"""Recognises the task that a model's outputs solve, and checks a task that the user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.cli.answers.base import Answer, Results
from penstock.cli.answers.classification import Classification, Summary
from penstock.cli.answers.localization import (
    COUNT,
    Detection,
    Pose,
    Segmentation,
    detection_order,
    is_class_map,
    is_pose,
)
from penstock.cli.failures import UsageError
from penstock.ir.model import show_shape


def _one_value_a_class(results: Results) -> bool:
    array = results.arrays[0]
    return 0 < array.size == max(array.shape, default=0)


def _boxes(results: Results) -> bool:
    boxes, classes, scores, count = (a.size for a in results.arrays[:4])
    alike = boxes == 4 * scores and classes == scores and count == 1
    return alike or detection_order(results) is not None


def _key_points(results: Results) -> bool:
    sizes = [a.size for a in results.arrays]
    return is_pose(results) or sizes == [3 * COUNT]


def _class_a_pixel(results: Results) -> bool:
    shape = results.arrays[0].shape
    batched = len(shape) in {3, 4} and shape[0] == 1
    height_and_width = shape[1:3] if batched else shape if len(shape) == 2 else (0,)
    return min(height_and_width) > 1 and results.arrays[0].size > 0


_NEEDS: Final[Mapping[str, tuple[int, str, Callable[[Results], bool]]]] = {
    "classification": (1, "an output with one value a class", _one_value_a_class),
    "detection": (
        4,
        "four outputs: boxes [1, n, 4], classes [1, n], scores [1, n] and a count [1]",
        _boxes,
    ),
    "segmentation": (
        1,
        "an output with a value or a score a class for each pixel: [1, h, w] or [1, h, w, c]",
        _class_a_pixel,
    ),
    "pose": (
        0,
        f"an output [1, 1, {COUNT}, 3], or heat maps [1, h, w, {COUNT}] and offsets [1, h, w, 34]",
        _key_points,
    ),
}
"""What tasks need: how many numeric outputs (0: all), in words, and a check of their shapes."""

TASKS: Final[Mapping[str, Callable[[Results], Answer]]] = {
    kind.task: kind for kind in (Classification, Detection, Segmentation, Pose, Summary)
}

_PASSING: Final = frozenset(
    {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "QUANTIZE", "DEQUANTIZE", "CAST"}
)
_TO_PROBABILITIES: Final = frozenset({"SOFTMAX", "LOGISTIC"})


MOST_CLASSES: Final = 100_000
"""A longer vector does not count as class scores."""


def recognise(results: Results) -> str:
    """The name of the task, a key of `TASKS`; "outputs" if no task fits."""
    recognisers = {
        "detection": lambda r: detection_order(r) is not None,
        "pose": is_pose,
        "segmentation": is_class_map,
        "classification": _is_classifier,
    }
    return next((task for task, fits in recognisers.items() if fits(results)), "outputs")


def answer(results: Results, task: str | None = None) -> Answer:
    """The answer for *task*, by default the recognised one. `UsageError` if it does not fit."""
    if task is not None and task in _NEEDS:
        count, needed, fits = _NEEDS[task]
        first = results.operands[: count or len(results.arrays)]
        numeric = len(first) >= max(count, 1) and all(
            o.dtype.is_float or o.dtype.is_integer for o in first
        )
        if not numeric or not fits(results):
            given = ", ".join(
                o.dtype.value + show_shape(a.shape)
                for o, a in zip(results.operands, results.arrays, strict=True)
            )
            raise UsageError(
                f"the outputs of this model do not fit --task {task}: it needs {needed}, and this "
                f"model gives {given or 'nothing'}"
            )
    return TASKS[task or recognise(results)](results)


def _is_classifier(results: Results) -> bool:
    """Whether one output has one value per class, with labels or from a softmax or logistic."""
    if len(results.arrays) != 1:
        return False
    array, dtype = results.arrays[0], results.operands[0].dtype
    numeric = dtype.is_float or dtype.is_integer
    if not numeric or array.ndim == 0:
        return False
    # A convolution down to one position keeps its height and width: [1, classes, 1, 1].
    classes = array.shape[1] if array.ndim == 4 and array.shape[2:] == (1, 1) else array.shape[-1]
    if classes < 2 or array.size != classes:
        return False
    return results.labels is not None or _origin(results) in _TO_PROBABILITIES


def may_be_classes(results: Results) -> bool:
    """Whether the output may be class scores, [1, n]; it may also be an embedding."""
    if len(results.arrays) != 1:
        return False
    shape, operand = results.arrays[0].shape, results.operands[0]
    real = operand.dtype.is_float or (operand.dtype.is_integer and operand.quantization is not None)
    return real and len(shape) == 2 and shape[0] == 1 and 2 <= shape[1] <= MOST_CLASSES


def _origin(results: Results) -> str | None:
    """The operation that computes an output, skipping those that only reshape or rescale it."""
    writers = {o: operation for operation in results.model.operations for o in operation.outputs}
    operation = writers.get(results.indexes[0])
    while operation is not None and operation.type in _PASSING:
        operation = writers.get(operation.inputs[0])
    return operation.type if operation is not None else None
