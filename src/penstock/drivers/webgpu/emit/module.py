"""A planned program as shaders, the kernels that run them, and their memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from penstock.compiler import memory
from penstock.compiler.memory import nbytes
from penstock.compiler.program import Kernel, Program
from penstock.drivers.webgpu.emit.nest import Printed, Slot, nest
from penstock.drivers.webgpu.emit.tile import Form, form_of, tile
from penstock.interrupts import polled

ALIGNMENT: Final = 256
"""Bytes at whose multiples every device lets a binding begin."""

MOST_BINDINGS: Final = 8
"""Storage buffers that every device lets a shader bind."""

POINTS_A_NS: Final = {"nest": 0.1, "tile": 0.5, "tile of words": 1.0}
"""Points of a nest in a nanosecond, of the slowest device: Mesa's software on one core."""

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


class Module(msgspec.Struct, frozen=True, eq=False):
    """What `generate` makes of a program. *constants* are bytes for the constants' buffer."""

    shaders: tuple[str, ...]
    calls: tuple[Call, ...]
    layout: Layout
    constants: np.ndarray


def generate(program: Program) -> Module:
    """Shaders for *program*, in which every output has memory of its own."""
    planned = memory.plan(program, ALIGNMENT)
    places: dict[int, tuple[Buffer, int]] = {
        tensor: ("memory", offset) for tensor, offset in planned.offsets.items()
    }
    end = planned.size
    for tensor in (*program.inputs, *program.outputs):
        root = program.root(tensor)
        places[root] = "memory", end
        end += _aligned(nbytes(program, root))
    first = places[program.root(program.outputs[0])][1] if program.outputs else end
    constants = _Constants(program)
    for kernel in program.kernels:
        for tensor in kernel.tensors_read:
            root = program.root(tensor)
            if root in program.constants:
                places[root] = "constants", constants.place(root)
    whole = max(end, 4), max(constants.size, 4)
    shaders: dict[str, int] = {}
    calls = []
    for kernel in polled(program.kernels):
        if 0 in kernel.loops:
            continue
        bindings, slots = _bound(program, kernel, places, whole)
        form = form_of(program, kernel)
        template = template_of(form)
        printed = tile(program, kernel, slots, form) if form else nest(program, kernel, slots)
        text = _declared(bindings, printed) + printed.text
        number = shaders.setdefault(text, len(shaders))
        estimate = round(math.prod(kernel.sizes) / POINTS_A_NS[template])
        calls.append(
            Call(number, bindings, printed.groups, template, kernel.name, kernel.origin, estimate)
        )
    layout = Layout(
        end,
        tuple(places[program.root(t)][1] for t in program.inputs),
        tuple(places[program.root(t)][1] for t in program.outputs),
        (first, end - first),
    )
    return Module(tuple(shaders), tuple(calls), layout, constants.packed())


def template_of(form: Form | None) -> str:
    """The name of the template of a kernel of that form."""
    if form is None:
        return "nest"
    return "tile of words" if form.words else "tile"


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bound(
    program: Program,
    kernel: Kernel,
    places: Mapping[int, tuple[Buffer, int]],
    whole: tuple[int, int],
) -> tuple[tuple[Binding, ...], dict[int, Slot]]:
    """The bindings of *kernel*, and the slot of each tensor's root: a range for each tensor, or the
    whole buffers where these are too many.
    """
    roots = dict.fromkeys(program.root(t) for t in (kernel.write.tensor, *kernel.tensors_read))
    ranges: dict[tuple[Buffer, int], tuple[str, int]] = {}
    slots = {}
    for root in roots:
        place = places[root]
        array, size = ranges.get(place, (f"b{len(ranges)}", 0))
        ranges[place] = array, max(size, _words(nbytes(program, root)))
        slots[root] = Slot(array)
    if len(ranges) <= MOST_BINDINGS:
        bindings = tuple(Binding(*place, size) for place, (_, size) in ranges.items())
        return bindings, slots
    sizes: dict[Buffer, int] = {"memory": whole[0], "constants": whole[1]}
    used = sorted({places[root][0] for root in roots}, reverse=True)
    both = tuple(Binding(name, 0, _words(sizes[name])) for name in used)
    return both, {r: Slot(f"b{used.index(places[r][0])}", places[r][1] // 4) for r in roots}


def _words(size: int) -> int:
    return max(4, -(-size // 4) * 4)


def _declared(bindings: tuple[Binding, ...], printed: Printed) -> str:
    lines = []
    for number, binding in enumerate(bindings):
        access = "read" if binding.buffer == "constants" else "read_write"
        word = "atomic<u32>" if f"b{number}" in printed.atomic else "u32"
        lines.append(
            f"@group(0) @binding({number}) var<storage, {access}> b{number}: array<{word}>;\n"
        )
    return "".join(lines)


class _Constants:
    """The constants that kernels read, each at a multiple of `ALIGNMENT`."""

    def __init__(self, program: Program) -> None:
        self._program, self.size = program, 0
        self._places: dict[int, int] = {}

    def place(self, tensor: int) -> int:
        if tensor not in self._places:
            self._places[tensor] = self.size
            self.size += _aligned(nbytes(self._program, tensor))
        return self._places[tensor]

    def packed(self) -> np.ndarray:
        packed = np.zeros(max(self.size, ALIGNMENT), np.uint8)
        for tensor, offset in self._places.items():
            array = np.ascontiguousarray(self._program.constants[tensor])
            packed[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return packed
