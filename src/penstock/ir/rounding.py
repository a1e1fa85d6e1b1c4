"""The float values that a network rounds later, and the order in which their sums must be added.

The last bit of a float rarely matters. It matters before an operation that quantises the float, or
that takes the index of the greatest of several floats. It also matters in a filter of one signal:
its terms may cancel to nearly nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

from penstock.interrupts import polled
from penstock.ir.operation import Operation
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import DType

Sums: TypeAlias = Literal["any", "ordered", "fused"]
"""The order in which a float layer adds its products. `any`: the fastest order. `ordered`: as
TFLite's reference kernels, from zero, each product rounded. `fused`: as XNNPACK, from the bias,
each product added before it is rounded.
"""

OPTION: Final = "sums"
"""The option in `PrepareConfig.options` by which a step's device learns which outputs later steps
round.
"""


def sums_of(subgraph: Subgraph, later: Mapping[int, Sums] | None = None) -> dict[int, Sums]:
    """The order of sums of each float operand that `rounded` has, and of those that filter one
    signal. *later* has the order for operands that are rounded outside *subgraph*.
    """
    found = rounded(subgraph, later)
    for operation in polled(subgraph.operations):
        if _filters_a_signal(subgraph, operation):
            found.setdefault(operation.outputs[0], "fused")
    return found


def rounded(subgraph: Subgraph, later: Mapping[int, Sums] | None = None) -> dict[int, Sums]:
    """The order of sums of each float operand whose values reach an operation that rounds them."""
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


def _filters_a_signal(subgraph: Subgraph, operation: Operation) -> bool:
    """Whether the operation is a float convolution of one channel to one channel."""
    if operation.type != "CONV_2D":
        return False
    operands = [subgraph.operands[i] for i in operation.inputs[:2]]
    shape = operands[1].shape or ()
    is_float = all(o.dtype is DType.FLOAT32 for o in operands)
    single = len(shape) == 4 and shape[0] == shape[3] == 1
    return is_float and single and max(shape[1] or 0, shape[2] or 0) > 1


def _quantises(subgraph: Subgraph, operation: Operation) -> bool:
    """Whether the operation is a QUANTIZE of float values, or a hybrid layer: a float input with
    integer weights.
    """
    operands = [subgraph.operands[i] for i in operation.inputs]
    if not operands or not operands[0].dtype.is_float:
        return False
    if operation.type == "QUANTIZE":
        return True
    return any(
        o.is_constant and o.quantization is not None and o.dtype.is_integer for o in operands[1:]
    )


def sums_options(sums: Mapping[int, Sums]) -> tuple[tuple[str, str], ...]:
    """The options that set the order of sums of a step's outputs, by position. Empty if every order
    is allowed.
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
