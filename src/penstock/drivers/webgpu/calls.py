"""What a compiled model runs: its kernels, what they are bound to, and where its tensors lie."""

# Annotations are objects here, not text, as in artefact.py.

from typing import Final, Literal, TypeAlias

import msgspec

ALIGNMENT: Final = 256
"""Bytes at whose multiples every device lets a binding begin."""

MOST_BINDINGS: Final = 8
"""Storage buffers that every device lets a shader bind."""

Buffer: TypeAlias = Literal["memory", "constants"]


class Binding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of a buffer, in bytes."""

    buffer: Buffer
    offset: int
    size: int


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One kernel: the number of its shader, what it is bound to, its workgroups, its template and
    name, the operations that it computes, and about how long it takes.
    """

    shader: int
    bindings: tuple[Binding, ...]
    groups: tuple[int, int, int]
    template: str
    name: str
    origin: tuple[int, ...]
    estimate_ns: int


class Layout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The bytes of the device's memory, where in it inputs and outputs begin, and the range that
    has all outputs.
    """

    memory: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    results: tuple[int, int]
