"""The rule by which a network's outputs count as right.

- Integer outputs are bit-exact wherever LiteRT's two kernel sets agree; elsewhere every element
  lies
  within one step of the optimised kernels' result or of the reference kernels'.
- Float outputs that are dequantised integers: the same, in steps of their scale.
- Other float outputs: within 2e-4 of the largest output plus 1.5 times what the two kernel sets
  differ by.
- Dynamic-range networks: within 1e-2 of the largest output of either kernel set, and within 2e-4
  wherever the two agree that far.
- Detections are compared as matched boxes.
What XNNPACK makes of a network loosens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ir import NDArray

FLOAT_SHARE = 2e-4
DYNAMIC_RANGE_SHARE = 1e-2
SAME_BOX_IOU = 0.95
ROUNDING = 1e-3
"""Of a step: what float32 rounding may add to a difference of whole steps."""


@dataclass(frozen=True)
class Rule:
    """How one network is compared. *disagreement* is the largest difference between LiteRT's kernel
    sets (None: not recorded), *steps* the scale of each output that is a dequantised integer, by
    position.
    """

    disagreement: float | None
    steps: dict[int, float]
    dynamic_range: bool = False
    detection: bool = False


@dataclass(frozen=True)
class Case:
    """The outputs to compare with: *out* of the optimised kernels; *reference* computes those of
    the reference kernels when they are needed, or None where LiteRT cannot.
    """

    out: Sequence[NDArray]
    reference: Callable[[], Sequence[NDArray] | None]


def compare(got: Sequence[NDArray], case: Case, rule: Rule) -> None:
    """Raises `AssertionError` naming the output and how far it is off."""
    assert len(got) == len(case.out)
    for position, (ours, out) in enumerate(zip(got, case.out, strict=True)):
        where = f"output {position}"
        assert ours.shape == out.shape, f"{where}: shape {ours.shape}, not {out.shape}"
        same = (_is_text(ours) and _is_text(out)) or ours.dtype == out.dtype
        assert same, f"{where}: dtype {ours.dtype}, not {out.dtype}"
    if rule.detection:
        compare_detections(got, case, rule)
        return
    for position, (ours, out) in enumerate(zip(got, case.out, strict=True)):
        where = f"output {position}"
        if position in rule.steps:
            _in_steps(ours, position, case, rule.steps[position], rule, where)
        elif ours.dtype.kind == "f":
            _floats(ours, position, case, rule, where)
        elif ours.dtype.kind in "iu":
            _in_steps(ours, position, case, 1.0, rule, where)
        else:
            assert np.array_equal(ours, out), f"{where} differs"


def _is_text(array: NDArray) -> bool:
    """Strings are bytes in an object array, or in one of NumPy's fixed length as LiteRT returns
    them.
    """
    return array.dtype.kind == "S" or (
        array.dtype.kind == "O" and all(isinstance(v, bytes) for v in array.flat)
    )


def _in_steps(
    ours: NDArray, position: int, case: Case, step: float, rule: Rule, where: str
) -> None:
    off = _distance(ours, case.out[position]) / step
    if not off.any():
        return
    assert not _kernels_agree(position, case, rule), (
        f"{where}: {np.count_nonzero(off)} elements differ, by up to {off.max()}"
    )
    if off.max(initial=0) <= 1 + ROUNDING:
        return
    reference = case.reference()
    if reference is not None:
        off = np.minimum(off, _distance(ours, reference[position]) / step)
    assert off.max() <= 1 + ROUNDING, (
        f"{where}: {np.sum(off > 1 + ROUNDING)} of {off.size} elements off by up to "
        f"{off.max():.2f} steps"
    )


def _kernels_agree(position: int, case: Case, rule: Rule) -> bool:
    """Whether LiteRT's kernel sets agree bit for bit: as recorded, else by running the reference
    kernels.
    """
    if rule.disagreement is not None:
        return rule.disagreement == 0
    reference = case.reference()
    return reference is not None and np.array_equal(reference[position], case.out[position])


def _floats(ours: NDArray, position: int, case: Case, rule: Rule, where: str) -> None:
    out = case.out[position]
    finite = np.isfinite(out)
    assert np.array_equal(ours[~finite], out[~finite], equal_nan=True), (
        f"{where}: infinities differ"
    )
    largest = float(np.abs(out[finite]).max(initial=0))
    off = np.where(finite, _distance(ours, out), 0.0)
    if off.max(initial=0) <= FLOAT_SHARE * largest:
        return
    if rule.dynamic_range:
        _dynamic_range(off, ours, out, case.reference(), position, largest, where)
        return
    allowed = FLOAT_SHARE * largest + 1.5 * _disagreement(position, case, rule)
    assert off.max(initial=0) <= allowed, f"{where}: off by {off.max():.3e}, {allowed:.3e} allowed"


def _dynamic_range(
    off: NDArray,
    ours: NDArray,
    out: NDArray,
    reference: Sequence[NDArray] | None,
    position: int,
    largest: float,
    where: str,
) -> None:
    """A rounding that falls the other way moves everything after it: where the kernel sets part by
    more than the tolerance, either of them may be met.
    """
    if reference is not None:
        agreed = _distance(out, reference[position]) <= FLOAT_SHARE * largest
        worst = off[agreed].max(initial=0)
        assert worst <= FLOAT_SHARE * largest, (
            f"{where}: off by {worst:.2e} of {largest:.2e} where LiteRT's kernels agree"
        )
        off = np.minimum(off, _distance(ours, reference[position]))
    worst = off.max(initial=0)
    assert worst <= DYNAMIC_RANGE_SHARE * largest, f"{where}: off by {worst:.2e} of {largest:.2e}"


def _disagreement(position: int, case: Case, rule: Rule) -> float:
    if rule.disagreement is not None:
        return rule.disagreement
    reference = case.reference()
    if reference is None:
        return 0.0
    return float(_distance(case.out[position], reference[position]).max(initial=0))


def _distance(a: NDArray, b: NDArray) -> NDArray:
    with np.errstate(invalid="ignore"):
        distance: NDArray = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return distance


def compare_detections(got: Sequence[NDArray], case: Case, rule: Rule) -> None:
    """Boxes [1, n, 4], classes [1, n], scores [1, n], count [1]: every box of one side has a box of
    the same class, IoU at least 0.95 and a score within tolerance on the other side.
    """
    tolerance = FLOAT_SHARE + max((rule.steps.get(2, 0.0), 1 / 256))
    problems = _unmatched(got, case.out, tolerance)
    if problems:
        reference = case.reference()
        if reference is not None:
            problems = _unmatched(got, reference, tolerance)
    assert not problems, "; ".join(problems)


def _unmatched(got: Sequence[NDArray], want: Sequence[NDArray], tolerance: float) -> list[str]:
    if int(got[3][0]) != int(want[3][0]):
        return [f"{int(got[3][0])} detections, not {int(want[3][0])}"]
    count, problems = int(want[3][0]), []
    free = list(range(count))
    for i in range(count):
        box, label, score = got[0][0, i], got[1][0, i], got[2][0, i]
        match = next(
            (
                j
                for j in free
                if want[1][0, j] == label
                and abs(float(want[2][0, j]) - float(score)) <= tolerance
                and iou(box, want[0][0, j]) >= SAME_BOX_IOU
            ),
            None,
        )
        if match is None:
            problems.append(f"detection {i} (class {label}, score {score:.4f}) has no match")
        else:
            free.remove(match)
    return problems


def iou(a: NDArray, b: NDArray) -> float:
    """Intersection over union of two boxes (ymin, xmin, ymax, xmax); 1 for two equal empty ones."""
    if np.array_equal(a, b):
        return 1.0
    height = max(0.0, float(min(a[2], b[2]) - max(a[0], b[0])))
    width = max(0.0, float(min(a[3], b[3]) - max(a[1], b[1])))
    union = _area(a) + _area(b) - height * width
    return height * width / union if union > 0 else 0.0


def _area(box: NDArray) -> float:
    return max(0.0, float(box[2] - box[0])) * max(0.0, float(box[3] - box[1]))
