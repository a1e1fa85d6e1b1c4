"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.xnnpack.rules import RULES
from penstock.drivers.xnnpack.site import (
    FAITHFUL,
    Classes,
    Refused,
    Site,
    is_empty,
    make_sites,
    require,
)
from penstock.drivers.xnnpack.steady import is_shaped_once
from penstock.errors import PenstockError
from penstock.hal import AccuracyClass, Support
from penstock.ir import Model
from penstock.ir.types import is_static

LEFT_OUT: Final = {
    "IF": "control flow is left to the runtime, which stops loops at their time limit",
    "WHILE": "control flow is left to the runtime, which stops loops at their time limit",
}


def examine(model: Model) -> list[Support]:
    """One answer an operation, with the better class of LiteRT's two kernel sets."""
    return [
        Support(False, answer) if isinstance(answer, str) else Support(True, "", answer.best)
        for answer in classify(model)
    ]


def classify(model: Model) -> Sequence[Classes | str]:
    """For each operation of the entry subgraph how well each kernel set computes it, or why none does."""
    return [answer(site) for site in make_sites(model)]


def answer(site: Site) -> Classes | str:
    """How well each kernel set computes one operation, or why none does."""
    kind = site.operation.key
    check = check_composite if kind == "STABLEHLO_COMPOSITE" else RULES.get(kind)
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
    except (PenstockError, ValueError, LookupError, ArithmeticError) as error:
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
    from flatbuffers import flexbuffers

    try:
        options = flexbuffers.Loads(site.operation.attributes.blob("composite_attributes"))
        scale = float(options["scale"])
    except (KeyError, TypeError, ValueError, LookupError):
        return False
    return float(np.float32(scale)) == scale
