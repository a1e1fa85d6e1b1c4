"""What a compiled model runs: its kernels, what they are bound to, and where its tensors lie."""

# Annotations are objects here, not text, as in artefact.py.

from typing import Final, Literal, TypeAlias

import msgspec

ALIGNMENT: Final = 256
"""Bytes at whose multiples every device lets a binding begin."""

GROUP: Final = 64
"""Threads of a workgroup, all along its first dimension, where no other number was measured."""

MOST_THREADS: Final = 256
"""Threads that every device lets a workgroup have."""

MOST_BINDINGS: Final = 8
"""Storage buffers that every device lets a shader bind."""

Buffer: TypeAlias = Literal["memory", "constants", "numbers"]
"""*numbers* are bound as uniforms, each the last binding of its kernel, and the others as storage.
"""


class Binding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of a buffer, in bytes."""

    buffer: Buffer
    offset: int
    size: int


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One kernel: the number of its shader, what it is bound to, its workgroups, its template and
    name, the operations that it computes, and about how long it takes on the slowest device.

    *divides*: the shader has a uniform in a second group, of four words, that says at which thread
    and row of workgroups a dispatch begins, so that several can share the work. A workgroup has so
    many *threads*.
    """

    shader: int
    bindings: tuple[Binding, ...]
    groups: tuple[int, int, int]
    template: str
    name: str
    origin: tuple[int, ...]
    estimate_ns: int
    divides: bool = False
    threads: int = GROUP


class Layout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The bytes of the device's memory, where in it inputs and outputs begin, and the range that
    has all outputs.
    """

    memory: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    results: tuple[int, int]
