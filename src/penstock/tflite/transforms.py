"""What the interpreter asks of a model beyond what `penstock.compile` does: other shapes, every
value.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.ir import DType, Model
from penstock.ir.infer import infer_shapes
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.subgraph import Subgraph


def entered(model: Model, subgraph: int) -> Model:
    """The same model, entered through *subgraph*."""
    return model if subgraph == model.main else replace(model, main=subgraph)


def with_input_shapes(model: Model, shapes: Mapping[int, tuple[int, ...]]) -> Model:
    """*model* with full shapes for inputs, by position among `model.inputs`, and everything
    inferred from them.

    Where an input's shape is another than the declared one (TFLite's non-strict resize), the
    declared shapes of all that depends on it count for nothing. Raises `ShapeMismatch` where shapes
    do not fit.
    """
    entry = model.entry
    changed = {
        entry.ordinary_inputs[position]
        for position, shape in shapes.items()
        if not _agrees(entry.operands[entry.ordinary_inputs[position]], shape)
    }
    if changed:
        model = _replace_entry(model, _forget_shapes(entry, changed))
    return infer_shapes(model, shapes)


def with_every_output(model: Model) -> Model:
    """*model* with every value that its entry's operations compute for a tensor of the file among
    its outputs, after its own, and with the values that its resource variables have before a run.
    """
    entry = model.entry
    own = entry.ordinary_outputs
    states = entry.outputs[len(own) :]
    operands = list(entry.operands)
    computed = [
        i
        for operation in entry.operations
        for i in operation.outputs
        if i not in own
        and operands[i].origin is not None
        and operands[i].dtype not in (DType.RESOURCE, DType.VARIANT)
    ]
    before = [p.input for p in entry.states if p.input is not None and _unnamed(operands[p.input])]
    for index in computed:
        operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)
    outputs = (*own, *computed, *before, *states)
    return _replace_entry(model, replace(entry, operands=tuple(operands), outputs=outputs))


def _unnamed(operand: Operand) -> bool:
    """Whether it stands for no tensor of the file."""
    return operand.origin is None


def _agrees(operand: Operand, shape: tuple[int, ...]) -> bool:
    declared = operand.shape
    return (
        declared is not None
        and len(declared) == len(shape)
        and all(d is None or d == s for d, s in zip(declared, shape, strict=True))
    )


def _forget_shapes(entry: Subgraph, changed: set[int]) -> Subgraph:
    touched = set(changed)
    for operation in entry.operations:
        if not touched.isdisjoint(operation.inputs):
            touched.update(operation.outputs)
    operands = tuple(
        replace(o, shape=None) if i in touched and i not in changed else o
        for i, o in enumerate(entry.operands)
    )
    return replace(entry, operands=operands)


def _replace_entry(model: Model, entry: Subgraph) -> Model:
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = entry
    return replace(model, subgraphs=tuple(subgraphs))
