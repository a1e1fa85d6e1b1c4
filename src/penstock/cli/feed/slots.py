"""The inputs of a model as INPUT arguments fill them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.feed.first_operations import FirstOperations, first_operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.execution.interface import Interface
    from penstock.ir import Model, Operand, TensorMetadata


@dataclass(frozen=True, slots=True)
class Slot:
    """One input: *operand* under the caller's name and with the shape that he gives, what the
    *metadata* says of it, and its place in *model*, the number *index* of the entry subgraph's
    operands.
    """

    operand: Operand
    model: Model
    index: int
    metadata: TensorMetadata | None = None

    @property
    def content(self) -> str:
        """What the metadata says that the input holds: "image", "audio", "feature", "bounding_box",
        or "".
        """
        return self.metadata.content if self.metadata is not None else ""

    def first_operations(self, channel_axis: int | None = None) -> FirstOperations:
        """What the model computes first with this input."""
        return first_operations(self.model, self.index, channel_axis)


def slots_of(model: Model, interface: Interface, operands: Sequence[Operand]) -> list[Slot]:
    """A slot for each of *operands*, which are the inputs of *interface*, the entry of *model*."""
    indexes, metadata = model.entry.ordinary_inputs, model.metadata.inputs
    # Metadata describes the file's first subgraph alone.
    described = model.main == 0
    return [
        Slot(
            operand,
            model,
            indexes[position],
            metadata[position] if described and position < len(metadata) else None,
        )
        for operand, position in zip(operands, interface.input_positions, strict=True)
    ]
