"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.xnnpack.rules import RULES
from penstock.drivers.xnnpack.site import (
    EXACT,
    FAITHFUL,
    Classes,
    Site,
    is_empty,
    make_sites,
)
from penstock.drivers.xnnpack.steady import is_shaped_once
from penstock.engines.answers import LEFT_OUT, STUMBLES, joined
from penstock.engines.control import fits
from penstock.engines.site import Refused, require
from penstock.engines.unrolling import flattened
from penstock.errors import ModelError
from penstock.export.tflite.state import state_positions
from penstock.hal import ACCURACY_RANK, AccuracyClass, Support
from penstock.ir import Attributes, Model
from penstock.ir.operations.custom_options import dot_product_attention
from penstock.ir.settled import branches_of
from penstock.ir.types import is_static, static_shape

DETECTION: Final = "CUSTOM:TFLite_Detection_PostProcess"


def examine(model: Model) -> list[Support]:
    """One answer an operation, with the better class of LiteRT's two kernel sets."""
    flat = flattened(model)
    return joined(model, flat, map(_support, classify(flat.model)))


def _support(known: Classes | str) -> Support:
    if isinstance(known, str):
        return Support(False, known)
    return Support(True, "", known.best)


def classify(model: Model) -> Sequence[Classes | str]:
    """For each operation of the entry subgraph how well each kernel set computes it, or why none does. Of a model
    that is `flattened`.
    """
    return [answer(site) for site in make_sites(model)]


def answer(site: Site) -> Classes | str:
    """How well each kernel set computes one operation, or why none does."""
    kind = site.operation.key
    check = CHECKS.get(kind) or RULES.get(kind)
    if check is None:
        return LEFT_OUT.get(kind, f"{kind} is not among the operations that are given to LiteRT")
    try:
        for operand in (*site.inputs, *site.outputs):
            if operand is not None and operand.shape is None:
                return "an operand whose rank is known only when it runs"
            if operand is not None and is_empty(operand):
                return "an operand without elements"
        if not is_static(site.outputs[0].shape) and not any(
            o is not None and not o.is_constant for o in site.inputs
        ):
            return "a result of constants whose shape is not known"
        return _beside_others(site, check(site))
    except Refused as refusal:
        return str(refusal)
    except STUMBLES as error:
        return f"not computable as it stands: {error}"


def _beside_others(site: Site, classes: Classes) -> Classes:
    """Floats that are only moved count as `faithful` like the arithmetic around them: moved alone, they would be
    carried to and fro, and whoever sums them in `exact` would no longer see where they go.
    """
    floats = any(o.dtype.is_float for o in (*site.inputs, *site.outputs) if o is not None)
    if not floats:
        return classes
    return Classes(_capped(classes.xnnpack), _capped(classes.builtin), classes.expanded)


def _capped(accuracy: AccuracyClass | None) -> AccuracyClass | None:
    return "faithful" if accuracy == "exact" else accuracy


ATTENTION: Final = "odml.scaled_dot_product_attention"


def check_composite(site: Site) -> Classes:
    """A composite is what its subgraph computes; attention XNNPACK computes in one piece, save where it does so
    wrongly (docs/differences.md).
    """
    attributes = site.operation.attributes
    for inner in site.sites_of(attributes.integer("decomposition_subgraph_index")):
        found = answer(inner)
        if isinstance(found, str):
            raise Refused(f"its {inner.operation.key}: {found}")
        require(
            found.builtin in {"exact", "faithful"}, f"its {inner.operation.key} is XNNPACK's alone"
        )
        shapes = [o.shape for o in (*inner.inputs, *inner.outputs) if o is not None]
        require(all(map(is_static, shapes)), "shapes in its subgraph are not known")
        require(
            is_shaped_once(inner.operation, inner.inputs), "its subgraph makes shapes of values"
        )
    if attributes.text("name") == ATTENTION and not _attends_rightly(site):
        return Classes(None, "faithful")
    return FAITHFUL


def _attends_rightly(site: Site) -> bool:
    """Of several batches XNNPACK gives each the keys of the first, and of scales in 64 bits it reads half."""
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
    """An IF computes what its branches do, within the interpreter: each of them must be computed there, by kernels that
    need nothing written out for them.
    """
    condition = site.input(0)
    require(static_shape(condition.shape) in {(), (1,)}, "a condition that is not one truth value")
    known: list[Classes] = []
    for index in branches_of(site.operation):
        graph = site.model.subgraphs[index]
        alike = fits(graph, site.inputs[1:], site.outputs)
        require(alike, "shapes in its branches are not known, or differ")
        distinct = len(set(graph.outputs)) == len(graph.outputs)
        require(distinct, "a branch gives one value twice, which LiteRT mixes up")
        known += map(_within, site.sites_of(index))
    if not known:
        return EXACT
    xnnpack = [_worst([c.xnnpack, c.builtin]) for c in known]
    found = Classes(_worst(xnnpack), _worst([c.builtin for c in known]))
    require(found.xnnpack or found.builtin, "no kernel set computes all of its branches")
    return found


def _within(inner: Site) -> Classes:
    """How well an operation of a branch is computed."""
    operation = inner.operation
    kind = operation.key
    found = answer(inner)
    if isinstance(found, str):
        raise Refused(f"its {kind}: {found}")
    shapes = [o.shape for o in (*inner.inputs, *inner.outputs) if o is not None]
    require(all(map(is_static, shapes)), "shapes in its branches are not known")
    require(is_shaped_once(operation, inner.inputs), "its branches make shapes of values")
    varying = any(o is not None and not o.is_constant for o in inner.inputs)
    require(varying, f"its {kind} is of constants alone")
    states = state_positions(operation.type, operation.attributes)
    require(not states, f"its {kind} keeps state")
    require(kind != DETECTION, f"its {kind} leaves what lay in memory behind the last detection")
    return found


def _worst(classes: Sequence[AccuracyClass | None]) -> AccuracyClass | None:
    known = sorted((c for c in classes if c is not None), key=ACCURACY_RANK.__getitem__)
    return known[0] if len(known) == len(classes) else None


CHECKS: Final = {"STABLEHLO_COMPOSITE": check_composite, "IF": check_if}
