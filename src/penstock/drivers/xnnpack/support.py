"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.drivers.xnnpack.rules import RULES
from penstock.drivers.xnnpack.site import Classes, Refused, Site, is_empty, make_sites
from penstock.errors import PenstockError
from penstock.hal import Support
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
    return [_answer(site) for site in make_sites(model)]


def _answer(site: Site) -> Classes | str:
    kind = site.operation.key
    check = RULES.get(kind)
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
        return check(site)
    except Refused as refusal:
        return str(refusal)
    except (PenstockError, ValueError, LookupError, ArithmeticError) as error:
        return f"not computable as it stands: {error}"
