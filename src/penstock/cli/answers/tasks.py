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


def misfit(results: Results, task: str) -> str:
    """What *task* needs but the outputs lack; "" if they fit."""
    needed, fits = _NEEDS.get(task, ("", lambda _: True))
    if fits(results):
        return ""
    given = ", ".join(
        o.dtype.value + show_shape(a.shape)
        for o, a in zip(results.operands, results.arrays, strict=True)
    )
    return f"it needs {needed}, and this model gives {given or 'nothing'}"


def _one_value_a_class(results: Results) -> bool:
    return _is_numeric(results, 1) and 0 < results.arrays[0].size == max(
        results.arrays[0].shape, default=0
    )


def _boxes(results: Results) -> bool:
    if not _is_numeric(results, 4):
        return False
    if detection_order(results) is not None:
        return True
    boxes, classes, scores, count = (a.size for a in results.arrays[:4])
    return boxes == 4 * scores and classes == scores and count == 1


def _key_points(results: Results) -> bool:
    count = len(results.arrays)
    return _is_numeric(results, count) and (
        is_pose(results) or (count == 1 and results.arrays[0].size == 3 * COUNT)
    )


def _class_a_pixel(results: Results) -> bool:
    if not _is_numeric(results, 1):
        return False
    shape = results.arrays[0].shape
    batched = len(shape) in {3, 4} and shape[0] == 1
    height_and_width = shape[1:3] if batched else shape if len(shape) == 2 else (0,)
    return min(height_and_width) > 1 and results.arrays[0].size > 0


def _is_numeric(results: Results, count: int) -> bool:
    """Whether there are at least *count* outputs, and the first of them is numeric."""
    first = results.operands[:count]
    return len(first) == count > 0 and all(o.dtype.is_float or o.dtype.is_integer for o in first)


_NEEDS: Final[Mapping[str, tuple[str, Callable[[Results], bool]]]] = {
    "classification": ("an output with one value a class", _one_value_a_class),
    "detection": (
        "four outputs: boxes [1, n, 4], classes [1, n], scores [1, n] and a count [1]",
        _boxes,
    ),
    "segmentation": (
        "an output with a value or a score a class for each pixel: [1, h, w] or [1, h, w, c]",
        _class_a_pixel,
    ),
    "pose": (
        f"an output [1, 1, {COUNT}, 3], or heat maps [1, h, w, {COUNT}] and offsets [1, h, w, 34]",
        _key_points,
    ),
}

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
    chosen = task or recognise(results)
    if task is not None and (reason := misfit(results, task)):
        raise UsageError(f"the outputs of this model do not fit --task {task}: {reason}")
    return TASKS[chosen](results)


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
