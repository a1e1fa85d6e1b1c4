"""Which float values a network rounds later on, and the order of sums that decides which way.

A last bit of a float is nothing to most networks. Before an operation that quantises it, or takes
the place of the greatest of several, it decides what comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

from penstock.interrupts import polled
from penstock.ir.operation import Operation
from penstock.ir.subgraph import Subgraph

Sums: TypeAlias = Literal["any", "ordered", "fused"]
"""How a float layer adds up. `any`: as is quickest. `ordered`: as TFLite's reference kernels, from
zero, product by product, each rounded. `fused`: as XNNPACK, from the bias, each product added
before it is rounded.
"""

OPTION: Final = "sums"
"""The name in `PrepareConfig.options` under which a step's device learns what is rounded
beyond it.
"""


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


def told(sums: Mapping[int, Sums]) -> tuple[tuple[str, str], ...]:
    """The options that tell a device the sums of its outputs, by their positions; none where any
    will do.
    """
    if not sums:
        return ()
    return ((OPTION, " ".join(f"{at}={sums[at]}" for at in sorted(sums))),)


def heard(options: tuple[tuple[str, str], ...]) -> dict[int, Sums]:
    """What `told` has told; an option that it never writes is passed over."""
    found: dict[int, Sums] = {}
    for entry in dict(options).get(OPTION, "").split():
        at, _, sums = entry.partition("=")
        if at.isdecimal() and sums in get_args(Sums):
            found[int(at)] = cast("Sums", sums)
    return found
