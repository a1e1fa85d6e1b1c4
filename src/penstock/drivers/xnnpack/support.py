"""The operations of a model that the driver supports, determined without loading the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np

from penstock.driverkit.site import Refused, Site, make_sites, require
from penstock.driverkit.support import LEFT_OUT, POSITIONS, STUMBLES, joined, read_by_unsteady
from penstock.driverkit.unrolling import fits, flattened
from penstock.drivers.xnnpack.engine import Kernels
from penstock.drivers.xnnpack.part import DETECTION
from penstock.drivers.xnnpack.rules import RULES
from penstock.drivers.xnnpack.rules.classes import EXACT, FAITHFUL, Classes
from penstock.drivers.xnnpack.rules.rule import is_empty
from penstock.drivers.xnnpack.static_shapes import has_static_result
from penstock.errors import ModelError
from penstock.export.tflite.fields import state_positions
from penstock.hal import ACCURACY_RANK, AccuracyClass, Support
from penstock.interrupts import polled
from penstock.ir import Attributes, Model
from penstock.ir.operations.custom_options import dot_product_attention
from penstock.ir.transforms import branches_of, entered_from
from penstock.ir.types import is_static, static_shape

T = TypeVar("T")


def examine(model: Model, kernels: Sequence[Kernels]) -> list[Support]:
    """One answer for each operation, with the best accuracy class of the kernel sets *kernels*."""
    flat = flattened(model)
    answers = [
        Support(False, known) if isinstance(known, str) else Support(True, "", known.best)
        for known in classify(flat.model, kernels)
    ]
    if "xnnpack" not in kernels:
        # LiteRT computes unsteady operations with XNNPACK only. If other kernels compute their
        # inputs, the last bits of these differ.
        unsteady = read_by_unsteady(flat.model.operations)
        for at, operation in enumerate(flat.model.operations):
            if answers[at].supported and unsteady.intersection(operation.outputs):
                answers[at] = Support(True, "", "relaxed", POSITIONS)
    return joined(model, flat, answers)


def classify(
    model: Model, kernels: Sequence[Kernels] = ("xnnpack", "builtin")
) -> Sequence[Classes | str]:
    """The accuracy classes of *kernels* for each operation of the entry subgraph of a `flattened`
    model, or the reason why none of them supports the operation.
    """
    sites = make_sites(model)
    if any(site.operation.key in CHECKS for site in sites):
        # Innermost first: subgraphs may be nested deeper than Python's stack.
        for index in entered_from(model, model.main):
            _answers(sites[0], index)
    found = [answer(site) for site in polled(sites)]
    if "xnnpack" in kernels:
        return found
    return [
        (Classes(None, known.builtin) if known.builtin else XNNPACK_ALONE)
        if isinstance(known, Classes)
        else known
        for known in found
    ]


XNNPACK_ALONE: Final = "LiteRT's own kernels do not compute it, or are too far off: XNNPACK does"


def _answers(site: Site, index: int) -> list[tuple[Site, Classes | str]]:
    """The operations of subgraph *index*, which *site* enters, with their answers."""
    return _once(
        site,
        ("answers", index),
        lambda: [
            (inner, answer(inner))
            for inner in polled(make_sites(site.model, index, judged=site.around.judged))
        ],
    )


def answer(site: Site) -> Classes | str:
    """The accuracy classes of one operation, or the reason why no kernel set supports it."""
    kind = site.operation.key
    check = CHECKS.get(kind) or RULES.get(kind)
    if check is None:
        return LEFT_OUT.get(kind, f"{kind} is not among the operations that are given to LiteRT")
    try:
        for operand in (*site.inputs, *site.outputs):
            if operand is not None and operand.shape is None:
                return "an operand whose rank is unknown before the run"
            if operand is not None and is_empty(operand):
                return "an operand without elements"
        varying = any(o is not None and not o.is_constant for o in site.inputs)
        if not varying and not is_static(site.outputs[0].shape):
            return "a result of constants whose shape is not known"
        return _as_around(site, check(site))
    except Refused as refusal:
        return str(refusal)
    except STUMBLES as error:
        return f"not computable as it stands: {error}"


def _as_around(site: Site, classes: Classes) -> Classes:
    """The accuracy classes of an operation that only moves values.

    Moves of floats are `faithful`, like the arithmetic around them. As `exact` a move would be a
    partition by itself, and its operands would be copied in and out.
    """
    if not any(o.dtype.is_float for o in (*site.inputs, *site.outputs) if o is not None):
        return classes
    xnnpack, builtin = (
        "faithful" if accuracy == "exact" else accuracy
        for accuracy in (classes.xnnpack, classes.builtin)
    )
    return Classes(xnnpack, builtin, classes.expanded)


ATTENTION: Final = "odml.scaled_dot_product_attention"


def check_composite(site: Site) -> Classes:
    """The accuracy classes of a composite, which its subgraph computes. XNNPACK computes attention
    as one operation, which is wrong in some cases (docs/differences.md).
    """
    attributes = site.operation.attributes
    index = attributes.integer("decomposition_subgraph_index")
    _once(site, ("composite", index), partial(_check_parts, site, index))
    if attributes.text("name") == ATTENTION and not _attends_rightly(site):
        return Classes(None, "faithful")
    return FAITHFUL


def _once(site: Site, key: tuple[str, int], judge: Callable[[], T]) -> T:
    """The result or refusal of *judge*, which is called once for each *key* of a model."""
    judged = site.around.judged
    if key not in judged:
        try:
            judged[key] = judge()
        except Refused as refusal:
            judged[key] = refusal
    if isinstance(judged[key], Refused):
        raise Refused(str(judged[key]))
    found: T = judged[key]
    return found


def _check_parts(site: Site, index: int) -> None:
    for inner, found in _answers(site, index):
        if isinstance(found, str):
            raise Refused(f"its {inner.operation.key}: {found}")
        is_shared = found.builtin in {"exact", "faithful"}
        require(is_shared, f"its {inner.operation.key} is XNNPACK's alone")
        _check_static(inner, "shapes in its subgraph")


def _check_static(inner: Site, shapes: str) -> None:
    """Refuses an operation of a subgraph whose *shapes* are unknown or depend on values."""
    operands = (o for o in (*inner.inputs, *inner.outputs) if o is not None)
    require(all(is_static(o.shape) for o in operands), f"{shapes} are not known")
    static = has_static_result(inner.operation, inner.inputs)
    require(static, f"{shapes} depend on values")


def _attends_rightly(site: Site) -> bool:
    """Whether XNNPACK computes attention correctly. It uses the keys of the first batch for all
    batches, and reads only half of a 64-bit scale.
    """
    query = site.input().shape
    if query is None or query[0] != 1:
        return False
    try:
        content = site.attributes.blob("composite_attributes")
        given = Attributes(custom_code=ATTENTION, custom_options=content)
        options = dot_product_attention(given)
    except ModelError:
        return False
    return options.scale is not None and float(np.float32(options.scale)) == options.scale


def check_if(site: Site) -> Classes:
    """The accuracy classes of an IF.

    The interpreter runs the branches itself, so its kernels must support every operation in them
    unchanged.
    """
    condition = site.input(0)
    require(static_shape(condition.shape) in {(), (1,)}, "a condition that is not one truth value")
    known: list[Classes] = []
    for index in branches_of(site.operation):
        graph = site.model.subgraphs[index]
        alike = fits(graph, site.inputs[1:], site.outputs)
        require(alike, "shapes in its branches are not known, or differ")
        distinct = len(set(graph.outputs)) == len(graph.outputs)
        require(distinct, "a branch outputs one value twice, which LiteRT confuses")
        known.append(_once(site, ("branch", index), partial(_as_branch, site, index)))
    found = _all_of(known)
    require(found.xnnpack or found.builtin, "no kernel set computes all of its branches")
    return found


def _as_branch(site: Site, index: int) -> Classes:
    """The accuracy classes of a subgraph as the branch of an IF."""
    known = [_within(inner, found) for inner, found in _answers(site, index)]
    return _all_of([Classes(_worst([c.xnnpack, c.builtin]), c.builtin) for c in known])


def _all_of(known: Sequence[Classes]) -> Classes:
    """The accuracy classes of all *known* together: the worst of each kernel set."""
    if not known:
        return EXACT
    return Classes(_worst([c.xnnpack for c in known]), _worst([c.builtin for c in known]))


def _within(inner: Site, found: Classes | str) -> Classes:
    """The accuracy classes of an operation in a branch."""
    operation = inner.operation
    kind = operation.key
    if isinstance(found, str):
        raise Refused(f"its {kind}: {found}")
    _check_static(inner, "shapes in its branches")
    varying = any(o is not None and not o.is_constant for o in inner.inputs)
    require(varying, f"its {kind} is of constants alone")
    states = state_positions(operation.type, operation.attributes)
    require(not states, f"its {kind} keeps state")
    require(kind != DETECTION, f"its {kind} leaves memory behind the last detection uninitialised")
    return found


def _worst(classes: Sequence[AccuracyClass | None]) -> AccuracyClass | None:
    known = sorted((c for c in classes if c is not None), key=ACCURACY_RANK.__getitem__)
    return known[0] if len(known) == len(classes) else None


CHECKS: Final = {"STABLEHLO_COMPOSITE": check_composite, "IF": check_if}
