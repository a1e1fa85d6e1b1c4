"""What one file for LiteRT computes of a partition."""

# Annotations are objects here, not text: msgspec compiles the text of a manifest's fields when it
# first reads one, which takes several times as long as to read it.

from typing import Final

import msgspec

from penstock.drivers.xnnpack.engine import Kernels

DETECTION: Final = "CUSTOM:TFLite_Detection_PostProcess"
"""The operation whose outputs LiteRT leaves uninitialised behind the last detection."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """Variable tensor *name*: operand *input* before a run, and *output* after it."""

    input: int
    output: int
    name: str


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Operations of a partition that one kernel set computes.

    Its inputs and outputs that are not state are the partition's operands *inputs* and *outputs*,
    in order. *operations* are indexes in the partition.
    """

    kernels: Kernels
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[State, ...]
    operations: tuple[int, ...]

    @property
    def all_inputs(self) -> tuple[int, ...]:
        """The operands that the part reads: inputs, then states."""
        return (*self.inputs, *(s.input for s in self.states))

    @property
    def all_outputs(self) -> tuple[int, ...]:
        """The operands that the part writes: outputs, then states."""
        return (*self.outputs, *(s.output for s in self.states))
