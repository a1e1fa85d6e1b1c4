"""NNAPI models as values, built again call by call."""

from __future__ import annotations

from penstock.errors import ModelError
from penstock.nnapi import NnapiError
from penstock.nnapi.description import NnapiLifetime, NnapiModel, NnapiOperand, NnapiSubgraph
from penstock.nnapi.lowering import lower
from penstock.nnapi.model import Model


def replay(description: NnapiModel, *, values_last: bool = False) -> Model:
    """*description* as a finished `Model`; with *values_last* operations are added before any value
    is set.
    """
    built: dict[int, Model] = {}
    for index in _inside_out(description):
        built[index] = _replay(description, description.referenced[index], built, values_last)
    return _replay(description, description.main, built, values_last)


def difference(description: NnapiModel) -> str:
    """What tells *description*, lowered as it is, from the same built call by call; empty:
    nothing.
    """
    try:
        wanted = lower(description)
    except ModelError:
        wanted = None
    for values_last in (False, True):
        try:
            found = replay(description, values_last=values_last).lowered
        except NnapiError as error:
            if wanted is not None:
                return f"refused: {error}"
            continue
        if wanted is None:
            return "accepted"
        if sorted(o.type for o in found.operations) != sorted(o.type for o in wanted.operations):
            return "other operations"
        sortable = any(len(g.operations) > 1 for g in (description.main, *description.referenced))
        if not sortable and found.digest != wanted.digest:
            return "another digest"
    return ""


def _replay(
    description: NnapiModel, subgraph: NnapiSubgraph, built: dict[int, Model], values_last: bool
) -> Model:
    model = Model()
    for operand in subgraph.operands:
        model.add_operand(
            operand.type, operand.dimensions, operand.scale, operand.zero_point, name=operand.name
        )

    def set_values() -> None:
        for index, operand in enumerate(subgraph.operands):
            _set(description, model, index, operand, built)

    if not values_last:
        set_values()
    for operation in subgraph.operations:
        model.add_operation(operation.type, operation.inputs, operation.outputs)
    if values_last:
        set_values()
    model.identify_inputs_and_outputs(subgraph.inputs, subgraph.outputs)
    model.relax_computation_float32_to_float16(description.relaxed)
    model.finish()
    return model


def _set(
    description: NnapiModel,
    model: Model,
    index: int,
    operand: NnapiOperand,
    built: dict[int, Model],
) -> None:
    channels = operand.channel_quantization
    if channels is not None:
        model.set_operand_symm_per_channel_quant_params(index, channels.dimension, channels.scales)
    if operand.lifetime is NnapiLifetime.CONSTANT_COPY:
        model.set_operand_value(index, operand.value)
    elif operand.location is not None:
        place = operand.location
        pool = description.pools[place.pool].view
        model.set_operand_value_from_memory(index, pool, place.offset, place.length)
    elif operand.lifetime is NnapiLifetime.NO_VALUE:
        model.set_operand_value(index, None)
    elif operand.subgraph is not None:
        model.set_operand_value_from_model(index, built[operand.subgraph])


def _inside_out(description: NnapiModel) -> list[int]:
    """The referenced subgraphs, each after those that it refers to itself."""
    order: list[int] = []

    def visit(subgraph: NnapiSubgraph) -> None:
        for operand in subgraph.operands:
            if operand.subgraph is not None and operand.subgraph not in order:
                visit(description.referenced[operand.subgraph])
                order.append(operand.subgraph)

    visit(description.main)
    return order
