"""Which float values a network rounds later, and in which order their sums must be added.

The last bit of a float rarely matters. It does before an operation that quantises the float, or
that takes the index of the greatest of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

from penstock.interrupts import polled
from penstock.ir.operation import Operation
from penstock.ir.subgraph import Subgraph

Sums: TypeAlias = Literal["any", "ordered", "fused"]
"""How a float layer sums its products. `any`: in the fastest order. `ordered`: as TFLite's
reference kernels, from zero, each product rounded. `fused`: as XNNPACK, from the bias, each product
added before it is rounded.
"""

OPTION: Final = "sums"
"""The name in `PrepareConfig.options` that tells a step's device what later steps round."""


def sums_of(subgraph: Subgraph, later: Mapping[int, Sums] | None = None) -> dict[int, Sums]:
    """The order of sums of each float operand whose values reach an operation that rounds them;
    *later* has that of operands which do so outside *subgraph*.
    """
    reached: dict[int, Sums] = dict(later or {})
    for operation in polled(reversed(subgraph.operations)):
        given = [i for i in operation.inputs if subgraph.operands[i].dtype.is_float]
        beyond = [reached[i] for i in operation.outputs if i in reached]
        if operation.key == "CUSTOM:MaxPoolingWithArgmax2D":
            reached.update(dict.fromkeys(given, "fused"))
        elif _quantises(subgraph, operation):
            reached.update(dict.fromkeys(given[:1], "ordered"))
        elif beyond:
            reached.update(dict.fromkeys(given, beyond[0]))
    return reached


def _quantises(subgraph: Subgraph, operation: Operation) -> bool:
    """QUANTIZE of float values, or a hybrid layer: a float input beside integer weights."""
    operands = [subgraph.operands[i] for i in operation.inputs]
    if not operands or not operands[0].dtype.is_float:
        return False
    if operation.type == "QUANTIZE":
        return True
    return any(
        o.is_constant and o.quantization is not None and o.dtype.is_integer for o in operands[1:]
    )


def sums_options(sums: Mapping[int, Sums]) -> tuple[tuple[str, str], ...]:
    """The options that give a device the order of sums of its outputs, by position; none where any
    order will do.
    """
    if not sums:
        return ()
    return ((OPTION, " ".join(f"{at}={sums[at]}" for at in sorted(sums))),)


def sums_of_options(options: tuple[tuple[str, str], ...]) -> dict[int, Sums]:
    """The order of sums that `sums_options` wrote; any other text is ignored."""
    found: dict[int, Sums] = {}
    for entry in dict(options).get(OPTION, "").split():
        at, _, sums = entry.partition("=")
        if at.isdecimal() and sums in get_args(Sums):
            found[int(at)] = cast("Sums", sums)
    return found
