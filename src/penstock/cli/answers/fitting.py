"""Whether a model's outputs can answer a task that the caller names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from penstock.cli.answers.base import Results
from penstock.cli.answers.detection import detection_order
from penstock.cli.answers.pose import COUNT, is_pose
from penstock.ir.show import show_shape


def misfit(results: Results, task: str) -> str:
    """What *task* needs and the outputs do not have, in one clause; "" where they fit."""
    if task not in _NEEDS:
        return ""
    needed, fits = _NEEDS[task]
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
    """Whether there are that many outputs at least, the first of them of numbers."""
    first = results.operands[:count]
    return len(first) == count > 0 and all(o.dtype.is_float or o.dtype.is_integer for o in first)


_NEEDS: Final[Mapping[str, tuple[str, Callable[[Results], bool]]]] = MappingProxyType(
    {
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
            f"an output [1, 1, {COUNT}, 3], or heat maps [1, h, w, {COUNT}] and offsets [1, h, w, {2 * COUNT}]",
            _key_points,
        ),
    }
)
