"""The table of rules, the support answers for a model, and the element types that rules move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from penstock.driverkit.checks import F32, one_scale
from penstock.driverkit.moving import moved_operands
from penstock.driverkit.rules import Rules
from penstock.driverkit.site import QUANTIZED, Refused, Site, make_sites, require
from penstock.driverkit.support import LEFT_OUT, answered, joined
from penstock.driverkit.unrolling import flattened
from penstock.drivers.onnxruntime.graph import Graph
from penstock.hal import AccuracyClass, Support
from penstock.ir import DType, Model, Operand, Operation
from penstock.ir.transforms import entered_from, has_control_flow
from penstock.ir.types import static_shape
from penstock.ir.validate import subgraph_references

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add

PLAIN: Final = frozenset({F32, DType.INT32, DType.INT64, DType.BOOL})
"""Element types that are moved unchanged."""

SCALED: Final = frozenset(
    {"DEPTH_TO_SPACE", "RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "ZEROS_LIKE"}
)
"""Moving operations whose 8-bit values must have a scale."""

WHOLE: Final = frozenset({DType.INT32, DType.INT64})


def judge(site: Site) -> AccuracyClass:
    """The accuracy class of an operation. Raises `Refused` or another error of its check."""
    if (reason := LEFT_OUT.get(site.operation.key)) is not None:
        raise Refused(reason)
    found = RULES.find(site, "is not written as ONNX")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return found.check(site)


def check_moved(site: Site) -> AccuracyClass:
    """The class of an operation that moves values: exact, or stepwise if their scale changes."""
    return moved(site, moved_operands(site), unscaled=site.operation.type not in SCALED)


def moves(site: Site, position: int = 0, *, unscaled: bool = False) -> AccuracyClass:
    """The class of a move of input *position*. *unscaled* allows 8-bit values without a scale."""
    return moved(site, [site.input(position)], unscaled=unscaled)


def moved(site: Site, operands: Iterable[Operand], *, unscaled: bool = False) -> AccuracyClass:
    """As `moves`, for *operands*: exact, or stepwise if a quantised value changes its scale."""
    given = list(operands)
    bare = unscaled and all(o.quantization is None for o in (*given, *site.outputs))
    for operand in (*given, *site.outputs):
        if operand.dtype in QUANTIZED and not bare:
            one_scale(operand)
        elif operand.dtype not in PLAIN | QUANTIZED:
            site.refuse_types()
    if any(o.dtype is not site.output().dtype for o in given):
        site.refuse_types()
    same = all(o.quantization == t.quantization for o in given for t in site.outputs)
    return "exact" if same else "stepwise"


MAX_BYTES: Final = 1 << 31
"""The size limit of an ONNX model's wire format."""

MOST_IN_BRANCHES: Final = 1 << 12
"""Most operations and branches of a model's IFs. A branch takes ONNX Runtime 0.3 ms and 20 KB."""

MOST_NESTED: Final = 31
"""Most nested branches: protobuf reads messages 100 deep, and each branch takes three levels."""

ROOM: Final = 1 << 24
"""Bytes reserved for everything besides the constants."""


def examine(model: Model, best: AccuracyClass = "exact") -> Sequence[Support]:
    """One answer an operation, limited to *best*, the class that was measured for the provider."""
    if (size := constant_bytes(model)) > MAX_BYTES - ROOM:
        reason = f"{size} bytes of constants; an ONNX model holds less than {MAX_BYTES}"
        return [Support(False, reason) for _ in model.operations]
    flat = flattened(model)
    grown, depth = in_branches(flat.model)

    def judged(site: Site) -> AccuracyClass:
        if site.operation.type == "IF":
            nested = f"the model's branches are nested {depth} deep: ONNX Runtime reads"
            require(depth <= MOST_NESTED, f"{nested} {MOST_NESTED} at most")
            each = f"{grown} operations and branches, each as often as it is written"
            limit = f"ONNX Runtime is given {MOST_IN_BRANCHES} at most"
            require(grown <= MOST_IN_BRANCHES, f"the model's branches have {each}: {limit}")
        return judge(site)

    return joined(model, flat, answered(make_sites(flat.model), judged, best))


def in_branches(model: Model) -> tuple[int, int]:
    """The number of operations and branches in the IFs of the entry subgraph, and their nesting
    depth. Nodes of an ONNX model cannot share a subgraph, so each use of a subgraph counts.
    """
    known: dict[int, tuple[int, int]] = {}

    def counted(operations: Iterable[Operation]) -> tuple[int, int]:
        entered = chain.from_iterable(map(subgraph_references, operations))
        parts = [(1 + size, 1 + depth) for size, depth in map(known.__getitem__, entered)]
        return sum(size for size, _ in parts), max((depth for _, depth in parts), default=0)

    for index in entered_from(model, model.main):
        operations = model.subgraphs[index].operations
        grown, depth = counted(operations)
        known[index] = len(operations) + grown, depth
    return counted(o for o in model.operations if o.type == "IF")


def constant_bytes(model: Model) -> int:
    """The size, in bytes, of the constants in an ONNX model, where 8-bit ones may become float32.
    Counts the entry subgraph, and all subgraphs if the model has control flow.
    """
    total = 0
    subgraphs = model.subgraphs if has_control_flow(model) else (model.entry,)
    for operand in chain.from_iterable(graph.operands for graph in subgraphs):
        if operand.is_constant and (shape := static_shape(operand.shape)) is not None:
            total += math.prod(shape) * max(4, operand.dtype.numpy.itemsize)
    return total
