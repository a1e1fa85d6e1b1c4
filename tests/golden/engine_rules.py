"""When an engine's outputs count as right, by the accuracy class that was asked for
(docs/accuracy.md).

- `exact`: the rule of `tests.golden.comparison`; for an ONNX network against what ONNX Runtime
  recorded.
- `faithful`: no farther from LiteRT's reference kernels than 1.5 times what LiteRT as it runs by
  default is on the
  network's recorded cases, plus one step; for an ONNX network, which LiteRT cannot run, as `exact`.
- `relaxed`: the recorded best class of every real input, and a root-mean-square error of at most a
  quarter of
  the output's, plus 1.5 times that of the reference kernels. Detections as matched boxes of score
  0.5 or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.hal import AccuracyClass
from penstock.ir import NDArray
from tests.golden.cases import Entry, LiteRT, case_groups, check_labels, litert_of, rule
from tests.golden.comparison import FLOAT_SHARE, ROUNDING, Case, compare, iou

RELAXED_SHARE: Final = 0.25
RELAXED_SCORE: Final = 0.5
RELAXED_IOU: Final = 0.5
SPREAD: Final = 1.5

CHECKED: Final[Mapping[AccuracyClass, Sequence[AccuracyClass]]] = {
    "exact": ("exact", "faithful"),
    "faithful": ("faithful",),
    "stepwise": ("stepwise",),
    "relaxed": (),
}
"""The classes in which an operation is compared, by the one that is declared for it."""


@dataclass(frozen=True)
class Judged:
    """One recorded case: LiteRT's (or ONNX Runtime's) *out*, and LiteRT itself to compute the
    others with.
    """

    entry: Entry
    case: dict[str, Any]
    out: Sequence[NDArray]
    reference: LiteRT
    default: LiteRT


def judged_of(entry: Entry, arrays: Any, cases: list[dict[str, Any]]) -> Judged:
    """The last of *cases*, which were run in order."""
    case = cases[-1]
    out = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
    reference = litert_of(entry, arrays, cases, "reference")
    return Judged(entry, case, out, reference, litert_of(entry, arrays, cases, "default"))


def judge(got: Sequence[NDArray], wanted: Judged, accuracy: AccuracyClass) -> None:
    """Raises `AssertionError` naming the output, how far it is off and how far it may be."""
    assert [o.shape for o in got] == [o.shape for o in wanted.out]
    if accuracy == "relaxed":
        _relaxed(got, wanted)
        return
    if accuracy == "faithful" and wanted.entry["format"] == "tflite":
        reference, default = wanted.reference(), wanted.default()
        if reference is not None and default is not None:
            _faithful(got, reference, default, wanted)
            return
    compare(got, Case(wanted.out, wanted.reference), rule(wanted.entry))
    check_labels(wanted.case, got)


def _faithful(
    got: Sequence[NDArray], reference: Sequence[NDArray], default: Sequence[NDArray], wanted: Judged
) -> None:
    entry = wanted.entry
    if rule(entry).detection:
        compare(got, Case(default, lambda: reference), rule(entry))
        return
    for k, (ours, exact, usual) in enumerate(zip(got, reference, default, strict=True)):
        if ours.dtype.kind not in "fiu":
            assert np.array_equal(ours, exact), f"output {k} differs"
            continue
        off, step = _largest(ours, exact), step_of(entry, k, exact)
        allowed = SPREAD * _largest(usual, exact) + step
        if off > allowed * (1 + ROUNDING):
            allowed = SPREAD * usual_spread(wanted, wanted.case["outputs"][k]) + step
        assert off <= allowed * (1 + ROUNDING), (
            f"output {k}: {off:.4g} from the reference kernels, {allowed:.4g} allowed"
        )


_spreads: Final[dict[tuple[str, str], float]] = {}


def usual_spread(wanted: Judged, output: str) -> float:
    """How far LiteRT as it runs by default lies from its reference kernels on an output, over all
    recorded cases of the network. A rounding that falls otherwise shows in one case and not in
    another, by chance: what an engine is, it is over all of them.
    """
    entry, arrays = wanted.entry, wanted.reference.arrays
    key = entry["id"], output
    if key not in _spreads:
        largest = 0.0
        for cases in case_groups(entry).values():
            for last in range(1, len(cases) + 1):
                usual = litert_of(entry, arrays, cases[:last], "default")()
                exact = litert_of(entry, arrays, cases[:last], "reference")()
                names = cases[last - 1]["outputs"]
                if usual is not None and exact is not None and output in names:
                    at = names.index(output)
                    largest = max(largest, _largest(usual[at], exact[at]))
        _spreads[key] = largest
    return _spreads[key]


def step_of(entry: Entry, output: int, values: NDArray) -> float:
    """One quantisation step of an output as it is given; of a float one, what float32 rounding may
    make of it.
    """
    if values.dtype.kind in "iu":
        return 1.0
    steps = rule(entry).steps
    if output in steps:
        return steps[output]
    share: float = FLOAT_SHARE * np.abs(values[np.isfinite(values)]).max(initial=0)
    return share


def _largest(a: NDArray, b: NDArray) -> float:
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    return float(np.abs(a[finite].astype(np.float64) - b[finite].astype(np.float64)).max(initial=0))


def _relaxed(got: Sequence[NDArray], wanted: Judged) -> None:
    entry, case = wanted.entry, wanted.case
    if "expected_top1" in case:
        best = int(np.argmax(got[0].reshape(-1)))
        assert best == case["expected_top1"], f"class {best}, not {case['expected_label']}"
    if entry["format"] == "tflite" and rule(entry).detection:
        _same_boxes(got, wanted.out)
        return
    exact: Sequence[NDArray] | None = None
    for k, (ours, out) in enumerate(zip(got, wanted.out, strict=True)):
        if ours.dtype.kind not in "fiu":
            assert np.array_equal(ours, out), f"output {k} differs"
            continue
        values = _real(out, entry, k)
        off = _rms(_real(ours, entry, k) - values)
        allowed = RELAXED_SHARE * _rms(values)
        if off > allowed and entry["format"] == "tflite":
            exact = wanted.reference() if exact is None else exact
            if exact is not None:
                allowed += SPREAD * _rms(_real(exact[k], entry, k) - values)
        assert off <= allowed, f"output {k}: RMS error {off:.4g}, {allowed:.4g} allowed"


def _real(values: NDArray, entry: Entry, output: int) -> NDArray:
    """*values* dequantised, where the file says how; infinite ones and what is no number as 0."""
    real = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    told = entry["outputs"][output] if output < len(entry["outputs"]) else {}
    scheme = told.get("quant") or {}
    if values.dtype.kind in "iu" and isinstance(scheme.get("scale"), float):
        real = (real - scheme.get("zero_point", 0)) * scheme["scale"]
    return real


def _rms(values: NDArray) -> float:
    largest = float(np.abs(values).max(initial=0))
    # The squares of large float64 values overflow.
    return largest * float(np.sqrt(np.mean(np.square(values / largest)))) if largest else 0.0


def _same_boxes(got: Sequence[NDArray], out: Sequence[NDArray]) -> None:
    """Each recorded box of score 0.5 or more has one of its class that overlaps it by half."""
    for i in range(int(out[3][0])):
        if out[2][0, i] < RELAXED_SCORE:
            continue
        found = any(
            got[1][0, j] == out[1][0, i] and iou(got[0][0, j], out[0][0, i]) >= RELAXED_IOU
            for j in range(int(got[3][0]))
        )
        assert found, f"box {i} (class {out[1][0, i]:.0f}, score {out[2][0, i]:.2f}) has no match"
