"""Inputs of small models, as INPUT arguments fill them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.cli.feed.model_inputs import Slot
from penstock.ir import Model, ModelBuilder, Operand, TensorMetadata

Body = Callable[[ModelBuilder, int], int]
"""Adds operations that read the input, and returns the output."""


def slots(
    operands: Sequence[Operand], metadata: Sequence[TensorMetadata] = (), body: Body | None = None
) -> list[Slot]:
    """A slot for each of *operands*, the inputs of one model, which does nothing with them but what
    *body* does with the first.
    """
    builder = ModelBuilder()
    indexes = [builder.input(o.dtype, o.shape, o.name, o.quantization) for o in operands]
    outputs = [body(builder, indexes[0])] if body is not None else indexes
    model: Model = builder.build(outputs)
    known = [*metadata, *[None] * len(operands)]
    return [Slot(o, model, i, m) for o, i, m in zip(operands, indexes, known, strict=False)]


def slot(
    operand: Operand, metadata: TensorMetadata | None = None, body: Body | None = None
) -> Slot:
    """The same for one input."""
    return slots([operand], [] if metadata is None else [metadata], body)[0]
