"""One drawn model, run by LiteRT and by the reference driver: how the two compare."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

import penstock
from penstock.errors import PenstockError, ShapeMismatch
from penstock.ir import DType, Model, NDArray
from penstock.ir.types import PACKED, dtype_of
from tests.differential.apart import Crashed
from tests.differential.differences import RECURRENT, is_known, tiny_quotients, values_of
from tests.differential.draw import Drawn
from tests.differential.judge import DEFAULT, DELEGATED, MISSING, REFERENCE, UNRESOLVED, Judge
from tests.differential.kinds import Kind
from tests.differential.worker import Answer, plain
from tests.golden import comparison


class Outcome(enum.Enum):
    """How Penstock and LiteRT stand to each other on one model."""

    AGREE = "both run it and agree"
    BOTH_REFUSE = "both refuse it"
    ALLOWED = "LiteRT refuses what Penstock runs"
    KNOWN = "they differ as docs/differences.md says"
    CRASH = "LiteRT crashes"
    GAP = "Penstock refuses what LiteRT runs"
    DIFFER = "they differ"


FAILURES: Final = frozenset({Outcome.GAP, Outcome.DIFFER})


UNREAD: Final = {
    "STRIDED_SLICE": ("of a dimension of size",),
    "POOL_2D": ("does not fit into",),
    "EMBEDDING_LOOKUP": ("an id outside 0..-1",),
    "FULLY_CONNECTED": ("does not make rows of 0",),
    "BATCH_MATMUL": ("columns of a product",),
    "STABLEHLO_GATHER": ("of an operand of shape",),
    "STABLEHLO_SCATTER": ("index vectors of 0 elements", "updates of shape (0, "),
    "CUSTOM:NumericVerify": ("shapes (",),
    "STABLEHLO_PAD": ("an output dimension would be -",),
}
"""What refusals say of what is not there, and LiteRT reads all the same: an element, a window, a
size.
"""


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES


def examine(drawn: Drawn, judge: Judge) -> Verdict:
    """Runs *drawn* both ways."""
    try:
        theirs, default = ask(drawn, judge)
    except Crashed as crash:
        return Verdict(Outcome.CRASH, str(crash))
    model = None
    try:
        model = penstock.load(drawn.file)
        ours = run(model, drawn)
    except PenstockError as error:
        if isinstance(theirs, str):
            return Verdict(Outcome.BOTH_REFUSE, f"{error} / {theirs}")
        if any(
            kind in drawn.listing and any(words in str(error) for words in every)
            for kind, every in UNREAD.items()
        ):
            return Verdict(Outcome.KNOWN, str(error))
        if _is_mislabelled(drawn, theirs) or _lacks_scales(model, str(error)):
            return Verdict(Outcome.KNOWN, str(error))
        if Kind.EMPTY in drawn.kinds and _is_mismatch(error) and not any(a.size for a in theirs):
            return Verdict(Outcome.KNOWN, str(error))
        if model is not None and len(model.operations) > 1 and is_known(model, drawn.inputs):
            return Verdict(Outcome.KNOWN, str(error))
        return Verdict(Outcome.GAP, f"{type(error).__name__}: {error}")
    if isinstance(theirs, str):
        return Verdict(Outcome.ALLOWED, theirs)
    known = default if isinstance(default, list) else theirs
    unlabelled = [_unlabelled(drawn, a) for a in (ours, theirs, known)]
    try:
        compare(model, drawn.inputs, *unlabelled)
    except AssertionError as difference:
        if _is_mislabelled(drawn, theirs) or is_known(model, drawn.inputs):
            return Verdict(Outcome.KNOWN, str(difference))
        return Verdict(Outcome.DIFFER, str(difference))
    return Verdict(Outcome.AGREE)


TYPE_DECIDES: Final = (
    *("CAST", "BITCAST", "QUANTIZE", "MUL", "MULTINOMIAL"),
    *("FULLY_CONNECTED", "BATCH_MATMUL", "EMBEDDING_LOOKUP"),
)
"""Operations whose kernels in LiteRT go by the output's type, and read their inputs as if they had
it.
"""

SCALELESS: Final = "without one scale and zero point"
"""In the refusal of integers that need one scale: LiteRT takes 0 for it where there are several."""


ELSEWHERE: Final = "scales along dimension"
"""In the refusal of a filter whose scales do not belong to its channels."""


def _is_mismatch(error: BaseException | None) -> bool:
    """Whether *error* comes from shapes that contradict each other."""
    while error is not None and not isinstance(error, ShapeMismatch):
        error = error.__cause__
    return error is not None


def _unlabelled(drawn: Drawn, answer: list[NDArray]) -> list[NDArray]:
    """The outputs, that which has another label than its values as what the values are."""
    stale = drawn.stale
    if stale is None or stale.right.bits != stale.wrong.bits:
        return answer
    arrays = list(answer)
    if dtype_of(arrays[stale.output].dtype) is stale.wrong:
        arrays[stale.output] = arrays[stale.output].view(stale.right.numpy)
    return arrays


def _is_mislabelled(drawn: Drawn, theirs: list[NDArray]) -> bool:
    """Whether LiteRT has read values of one type as another that is not as wide, or took its inputs
    for that type (docs/differences.md).
    """
    stale = drawn.stale
    if stale is None:
        return False
    if dtype_of(theirs[stale.output].dtype) is stale.right:
        entered = any(f"= {kind}(" in drawn.listing for kind in ("IF", "STABLEHLO_COMPOSITE"))
        return entered and stale.right.bits != stale.wrong.bits
    decides = any(f"= {kind}(" in drawn.listing for kind in TYPE_DECIDES)
    return stale.right.bits != stale.wrong.bits or decides or stale.wrong is DType.BOOL


def _lacks_scales(model: Model | None, refusal: str) -> bool:
    """Whether integers have a scale a channel where the kernel reads one (docs/differences.md)."""
    if model is None:
        return False
    recurrent = any(o.type in RECURRENT for s in model.subgraphs for o in s.operations)
    known = (o.quantization for s in model.subgraphs for o in s.operands)
    unread = SCALELESS in refusal or ELSEWHERE in refusal
    return (unread or recurrent) and any(q and q.per_channel for q in known)


def ask(drawn: Drawn, judge: Judge) -> tuple[Answer, Answer]:
    """LiteRT's answers: that of its reference kernels, where they run the model, and that of its
    default ones. A crash of the default kernels leaves the reference kernels' word. Custom
    operators that have no kernel at all may be XNNPACK's.
    """
    reference = judge.ask(drawn.file, drawn.inputs, REFERENCE)
    try:
        default = judge.ask(drawn.file, drawn.inputs, DEFAULT)
    except Crashed:
        if isinstance(reference, str):
            raise
        return reference, reference
    if isinstance(default, str) and UNRESOLVED in default:
        reference = default = judge.ask(drawn.file, drawn.inputs, DELEGATED)
    if isinstance(reference, str) and (MISSING in reference or not isinstance(default, str)):
        return default, default
    return reference, default


def run(model: Model, drawn: Drawn) -> list[NDArray]:
    """The reference driver's outputs."""
    with penstock.compile(model, devices=["reference"]) as compiled:
        return list(compiled(*drawn.inputs))


def compare(
    model: Model,
    inputs: tuple[NDArray, ...],
    ours: list[NDArray],
    reference: list[NDArray],
    default: Answer,
) -> None:
    """The rule of comparison of networks, on what LiteRT's two kernel sets say.

    Raises `AssertionError` where it is broken.
    """
    if isinstance(default, str):
        default = reference
    assert len(ours) == len(reference) == len(default), f"{len(ours)} outputs"
    ours, reference, default = (_settled(model, inputs, a) for a in (ours, reference, default))
    triples = [_comparable(*a) for a in zip(ours, reference, default, strict=True)]
    got, want, out = (list(t) for t in zip(*triples, strict=True))
    case = comparison.Case(out, lambda: want)
    comparison.compare(got, case, comparison.Rule(None, {}, is_hybrid(model)))


def _settled(model: Model, inputs: tuple[NDArray, ...], arrays: list[NDArray]) -> list[NDArray]:
    """The outputs with zeros where LiteRT leaves what lay in memory: behind the last detection, and
    for quotients of less than a step.
    """
    if len(model.operations) > 1:
        return arrays
    operation, cleared = model.operations[0], [a.copy() for a in arrays]
    if operation.key == "CUSTOM:TFLite_Detection_PostProcess":
        for array in cleared[:3]:
            array[:, int(arrays[3][0]) :] = 0
    if operation.key == "DIV":
        cleared[0][tiny_quotients(model, operation, values_of(model, operation, inputs))] = 0
    return cleared


def is_hybrid(model: Model) -> bool:
    """Whether floats are quantised at run time: a float input beside integer weights."""
    return any(
        len(o.inputs) > 1
        and s.operands[o.inputs[0]].dtype.is_float
        and any(s.operands[i].dtype.is_integer and s.operands[i].quantization for i in o.inputs[1:])
        for s in model.subgraphs
        for o in s.operations
    )


def _comparable(ours: NDArray, reference: NDArray, default: NDArray) -> tuple[NDArray, ...]:
    """The three in types that the rule of comparison knows.

    Complex numbers become pairs of floats and packed integers bytes. Floats of 16 bits become
    float32, where what lies within one unit in the last place of a kernel set is what that says.
    Infinities and not-a-numbers must be those of either kernel set, element by element; zeros stand
    in their place.
    """
    arrays = [_real(a) for a in (ours, reference, default)]
    dtype = dtype_of(ours.dtype)
    if any(a.shape != arrays[0].shape or a.dtype != arrays[0].dtype for a in arrays):
        return tuple(arrays)
    if dtype is not None and dtype.is_float and dtype.bits == 16:
        with np.errstate(invalid="ignore"):
            near = [np.abs(arrays[0] - a) <= _last_place(a, dtype) for a in arrays[1:]]
        arrays[1:] = [np.where(n, arrays[0], a) for n, a in zip(near, arrays[1:], strict=True)]
    if arrays[0].dtype.kind != "f":
        return tuple(arrays)
    ends = [np.where(np.isfinite(a), 0, a) for a in arrays]
    same = [(ends[0] == e) | (np.isnan(ends[0]) & np.isnan(e)) for e in ends[1:]]
    assert np.all(same[0] | same[1]), "infinities or not-a-numbers differ"
    finite = np.logical_and.reduce([np.isfinite(a) for a in arrays])
    return tuple(np.where(finite, a, a.dtype.type(0)) for a in arrays)


def _last_place(values: NDArray, dtype: DType) -> NDArray:
    """One unit in the last place of a 16-bit float type at *values*, which are float32."""
    bits = 10 if dtype is DType.FLOAT16 else 7
    _, exponents = np.frexp(np.where(np.isfinite(values), values, 0))
    step: NDArray = np.ldexp(1.0, np.maximum(exponents - 1, -14) - bits)
    return step


def _real(array: NDArray) -> NDArray:
    dtype = dtype_of(array.dtype)
    if dtype in PACKED:
        return plain(array)
    if dtype is not None and dtype.is_float and dtype.bits == 8:
        return array.view(np.int8)
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array)
        return np.stack([array.real, array.imag], -1)
    if dtype is not None and dtype.is_float and dtype.bits == 16:
        return array.astype(np.float32)
    return array
