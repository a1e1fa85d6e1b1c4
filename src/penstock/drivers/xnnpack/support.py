"""The operations of a model that the driver supports, determined without loading the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.driverkit.site import Refused, Site, make_sites, require
from penstock.driverkit.support import LEFT_OUT, POSITIONS, STUMBLES, joined, read_by_unsteady
from penstock.driverkit.unrolling import fits, flattened
from penstock.drivers.xnnpack.engine import Kernels
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

DETECTION: Final = "CUSTOM:TFLite_Detection_PostProcess"


def examine(model: Model, kernels: Sequence[Kernels]) -> list[Support]:
    """One answer for each operation, with the best accuracy class of the kernel sets *kernels*."""
    flat = flattened(model)
    answers = [*map(_support, classify(flat.model, kernels))]
    if "xnnpack" not in kernels:
        # LiteRT computes unsteady operations with XNNPACK only. If other kernels compute their
        # inputs, the last bits of these differ.
        unsteady = read_by_unsteady(flat.model.operations)
        for at, operation in enumerate(flat.model.operations):
            if answers[at].supported and unsteady.intersection(operation.outputs):
                answers[at] = Support(True, "", "relaxed", POSITIONS)
    return joined(model, flat, answers)


def _support(known: Classes | str) -> Support:
    if isinstance(known, str):
        return Support(False, known)
    return Support(True, "", known.best)


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
    return found if "xnnpack" in kernels else [_without_xnnpack(known) for known in found]


def _without_xnnpack(known: Classes | str) -> Classes | str:
    if isinstance(known, str):
        return known
    return XNNPACK_ALONE if known.builtin is None else Classes(None, known.builtin)


XNNPACK_ALONE: Final = "LiteRT's own kernels do not compute it, or are too far off: XNNPACK does"


def _answers(site: Site, index: int) -> list[tuple[Site, Classes | str]]:
    """The operations of subgraph *index*, which *site* enters, with their answers."""
    key = "answers", index
    if key not in site.around.judged:
        site.around.judged[key] = [(inner, answer(inner)) for inner in polled(site.sites_of(index))]
    found: list[tuple[Site, Classes | str]] = site.around.judged[key]
    return found


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
        if not is_static(site.outputs[0].shape) and not any(
            o is not None and not o.is_constant for o in site.inputs
        ):
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
    floats = any(o.dtype.is_float for o in (*site.inputs, *site.outputs) if o is not None)
    if not floats:
        return classes
    return Classes(_capped(classes.xnnpack), _capped(classes.builtin), classes.expanded)


def _capped(accuracy: AccuracyClass | None) -> AccuracyClass | None:
    return "faithful" if accuracy == "exact" else accuracy


ATTENTION: Final = "odml.scaled_dot_product_attention"


def check_composite(site: Site) -> Classes:
    """The accuracy classes of a composite, which its subgraph computes. XNNPACK computes attention
    as one operation, which is wrong in some cases (docs/differences.md).
    """
    attributes = site.operation.attributes
    index = attributes.integer("decomposition_subgraph_index")
    key = "composite", index
    if key not in site.around.judged:
        site.around.judged[key] = _refusal_of_parts(site, index)
    require(not site.around.judged[key], site.around.judged[key])
    if attributes.text("name") == ATTENTION and not _attends_rightly(site):
        return Classes(None, "faithful")
    return FAITHFUL


def _refusal_of_parts(site: Site, index: int) -> str:
    """Why the subgraph of a composite is not supported; empty if it is supported."""
    try:
        _check_parts(site, index)
    except Refused as refusal:
        return str(refusal)
    return ""


def _check_parts(site: Site, index: int) -> None:
    for inner, found in _answers(site, index):
        if isinstance(found, str):
            raise Refused(f"its {inner.operation.key}: {found}")
        require(
            found.builtin in {"exact", "faithful"}, f"its {inner.operation.key} is XNNPACK's alone"
        )
        shapes = [o.shape for o in (*inner.inputs, *inner.outputs) if o is not None]
        require(all(map(is_static, shapes)), "shapes in its subgraph are not known")
        require(
            has_static_result(inner.operation, inner.inputs),
            "shapes in its subgraph depend on values",
        )


def _attends_rightly(site: Site) -> bool:
    """Whether XNNPACK computes attention correctly. It uses the keys of the first batch for all
    batches, and reads only half of a 64-bit scale.
    """
    query = site.input().shape
    if query is None or query[0] != 1:
        return False
    try:
        options = dot_product_attention(
            Attributes(
                custom_code=ATTENTION,
                custom_options=site.operation.attributes.blob("composite_attributes"),
            )
        )
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
        key = "branch", index
        if key not in site.around.judged:
            site.around.judged[key] = _as_branch(site, index)
        branch: Classes | str = site.around.judged[key]
        if isinstance(branch, str):
            raise Refused(branch)
        known.append(branch)
    found = _all_of(known)
    require(found.xnnpack or found.builtin, "no kernel set computes all of its branches")
    return found


def _as_branch(site: Site, index: int) -> Classes | str:
    """The accuracy classes of a subgraph as the branch of an IF, or the reason for a refusal."""
    try:
        known = [_within(inner, found) for inner, found in _answers(site, index)]
    except Refused as refusal:
        return str(refusal)
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
    shapes = [o.shape for o in (*inner.inputs, *inner.outputs) if o is not None]
    require(all(map(is_static, shapes)), "shapes in its branches are not known")
    require(has_static_result(operation, inner.inputs), "shapes in its branches depend on values")
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
