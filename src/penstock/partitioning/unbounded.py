"""Operations that have no bound before the run: the values of an input say how large an output is."""

from __future__ import annotations

from typing import Final

from penstock.interrupts import polled
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import is_static

NO_LARGER: Final = frozenset(
    [
        "UNIQUE",
        "WHERE",
        "NON_MAX_SUPPRESSION_V4",
        "NON_MAX_SUPPRESSION_V5",
        "BOX_WITH_NMS_LIMIT",
        "GENERATE_PROPOSALS",
        "DETECTION_POSTPROCESSING",
        "TOPK_V2",
        "SLICE",
        "STRIDED_SLICE",
        "RESHAPE",
        "SQUEEZE",
        "EXPAND_DIMS",
        "BATCH_TO_SPACE_ND",
        "DEPTH_TO_SPACE",
        "SPACE_TO_DEPTH",
        "SPLIT",
        "SPLIT_V",
        "UNPACK",
        "TRANSPOSE",
        "SHAPE",
        "RANK",
        "BROADCAST_ARGS",
        "BITCAST",
        "SUM",
        "MEAN",
        "REDUCE_MAX",
        "REDUCE_MIN",
        "REDUCE_PROD",
        "REDUCE_ANY",
        "REDUCE_ALL",
        "ARG_MAX",
        "ARG_MIN",
        "IF",
        "WHILE",
        "CALL",
        "STABLEHLO_CASE",
        "STABLEHLO_WHILE",
        "STABLEHLO_COMPOSITE",
    ]
)
"""Their outputs are no larger than their inputs together, or what they enter is looked at itself."""


def unbounded_operations(subgraph: Subgraph) -> list[bool]:
    """For each operation of *subgraph*, the shapes of whose inputs are known, whether its work has
    no bound: it makes a value as large as the run says (the size of a FILL, the repeats of a TILE),
    or it reads one.
    """
    operands, found = subgraph.operands, list[bool]()
    endless: set[int] = set()
    for operation in polled(subgraph.operations):
        reads = any(i in endless for i in operation.inputs)
        open_outputs = [i for i in operation.outputs if not is_static(operands[i].shape)]
        known = all(is_static(operands[i].shape) for i in operation.inputs)
        grows = bool(open_outputs) and known and operation.type not in NO_LARGER
        if reads or grows:
            endless.update(open_outputs)
        found.append(reads or grows)
    return found
