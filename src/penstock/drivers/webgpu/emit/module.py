"""A planned program as shaders, the kernels that run them, and their memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.compiler import memory
from penstock.compiler.memory import nbytes
from penstock.compiler.program import Kernel, Program
from penstock.drivers.webgpu.calls import (
    ALIGNMENT,
    MOST_BINDINGS,
    Binding,
    Buffer,
    Call,
    Layout,
)
from penstock.drivers.webgpu.emit.form import Form, form_of, halves_of, packed
from penstock.drivers.webgpu.emit.nest import nest
from penstock.drivers.webgpu.emit.routine import NS_A_TURN, routine
from penstock.drivers.webgpu.emit.shader import Slot
from penstock.drivers.webgpu.emit.sharing import Fixed, array_of, shared
from penstock.drivers.webgpu.emit.sketch import (
    Drawing,
    Printing,
    drawing_of,
    encoded,
    numbered,
    whole_text,
)
from penstock.drivers.webgpu.emit.tile import tile
from penstock.interrupts import polled
from penstock.ir import DType

POINTS_A_NS: Final = {"nest": 0.1, "tile": 0.5, "tile of words": 1.0}
"""Points of a nest in a nanosecond, of the slowest device: Mesa's software on one core."""

DIVIDED_NS: Final = 2_000_000
"""Estimated time from which on a kernel can be dispatched in parts. A submit has up to 25 times
more: the estimate knows neither the arithmetic of a point nor the load of the processor.
"""

FIXED: Final[Mapping[str, Fixed]] = {"nest": "costly", "routine": "all"}
"""Which numbers of shaders of a template are not shared."""


class Module(Printing, frozen=True, eq=False):
    """What `generate` makes of a program. *constants* are bytes for the constants' buffer, *sketch*
    is what shaders can be printed from with threads of other shapes.
    """

    layout: Layout
    constants: np.ndarray
    sketch: bytes


def generate(program: Program, *, is_relaxed: bool = False) -> Module:
    """Shaders for *program*, in which every output has memory of its own. *is_relaxed* permits
    rounding of constant filters to float16.
    """
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
    kernels = [k for k in polled(program.kernels) if 0 not in k.loops]
    chosen = [_chosen(program, kernel, constants, is_relaxed=is_relaxed) for kernel in kernels]
    for kernel, (_, _, read) in zip(kernels, chosen, strict=True):
        for root in {kernel.write.tensor, *read} & set(program.constants):
            places[root] = "constants", constants.place(root)
    whole = max(end, 4), max(constants.size, 4)
    texts = list[tuple[str, Fixed]]()
    drawings = dict[str, Drawing]()
    calls = list[Call]()
    for kernel, (form, more, read) in polled(zip(kernels, chosen, strict=True)):
        bindings, slots = _bound(program, (kernel.write.tensor, *read), places, whole)
        bindings = (*bindings, *more)
        if kernel.routine is not None:
            printed = routine(program, kernel, slots)
        elif form is not None:
            printed = tile(program, kernel, slots, form, len(more))
        else:
            printed = nest(program, kernel, slots)
        template = template_of(kernel, form)
        estimate = _estimate(kernel, template)
        divides = estimate >= DIVIDED_NS and math.prod(printed.groups) > 1
        text = whole_text(bindings, printed, len(more), divides=divides)
        if form is not None and text in drawings:
            same = drawings[text]
            drawings[text] = replace(same, calls=(*same.calls, len(calls)))
        elif form is not None:
            drawings[text] = drawing_of(program, kernel, form, slots, len(more), len(calls))
        texts.append((text, FIXED.get(template, "none")))
        calls.append(
            Call(
                len(calls), bindings, printed.groups, template, kernel.name, kernel.origin,
                estimate, divides,
            )
        )  # fmt: skip
    layout = Layout(
        end,
        tuple(places[program.root(t)][1] for t in program.inputs),
        tuple(places[program.root(t)][1] for t in program.outputs),
        (first, end - first),
    )
    sharing = shared(texts)
    numbers = bytearray()
    for at, (shader, own) in enumerate(sharing.users):
        bindings = (*calls[at].bindings, *numbered(numbers, array_of(own).tobytes()))
        calls[at] = replace(calls[at], shader=shader, bindings=bindings)
    return Module(
        sharing.shaders, tuple(calls), bytes(numbers), layout, constants.packed(),
        encoded([*drawings.values()]),
    )  # fmt: skip


def template_of(kernel: Kernel, form: Form | None) -> str:
    """The name of the template of *kernel*, of that form."""
    if kernel.routine is not None:
        return "routine"
    if form is None:
        return "nest"
    return "tile of words" if form.words or (form.across and form.vectors) else "tile"


def _estimate(kernel: Kernel, template: str) -> int:
    """About how many nanoseconds the kernel takes."""
    if kernel.routine is not None:
        return NS_A_TURN * kernel.routine.turns
    return round(math.prod(kernel.sizes) / POINTS_A_NS[template])


def _chosen(
    program: Program, kernel: Kernel, constants: _Constants, *, is_relaxed: bool
) -> tuple[Form | None, tuple[Binding, ...], tuple[int, ...]]:
    """The form of *kernel*, the packed constants that it is bound to, and the roots that it reads
    besides.
    """
    every = tuple(dict.fromkeys(program.root(t) for t in kernel.tensors_read))
    form = form_of(program, kernel)
    if form is None:
        return None, (), every
    arrays = packed(program, kernel, form) if form.packed else []
    halves = None
    if form.packed and kernel.sums is DType.FLOAT32:
        halves = halves_of(arrays[0], rounded=is_relaxed)
    if halves is not None:
        form, arrays = replace(form, halves=halves[1]), [halves[0]]
    read = every
    if form.packed:
        others = (form.data.tensor, *(a.tensor for a in kernel.extras), *kernel.finish.tables)
        vectors = (p.through for a in kernel.extras for p in a.axes if p.through is not None)
        read = tuple(dict.fromkeys(program.root(t) for t in (*others, *vectors)))
    if len(read) + 1 + len(arrays) > MOST_BINDINGS:
        return None, (), every
    more = (Binding("constants", constants.add(a), _words(a.nbytes)) for a in arrays)
    return form, tuple(more), read


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bound(
    program: Program,
    tensors: Sequence[int],
    places: Mapping[int, tuple[Buffer, int]],
    whole: tuple[int, int],
) -> tuple[tuple[Binding, ...], dict[int, Slot]]:
    """The bindings of a kernel of *tensors*, and the slot of each tensor's root: a range for each,
    or the whole buffers where these are too many.
    """
    roots = dict.fromkeys(program.root(t) for t in tensors)
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


class _Constants:
    """The constants that kernels read, each at a multiple of `ALIGNMENT`."""

    def __init__(self, program: Program) -> None:
        self._program, self.size = program, 0
        self._places: dict[int, int] = {}
        self._arrays: list[tuple[int, np.ndarray]] = []

    def place(self, tensor: int) -> int:
        """Where a constant tensor begins."""
        if tensor not in self._places:
            self._places[tensor] = self.add(self._program.constants[tensor])
        return self._places[tensor]

    def add(self, array: np.ndarray) -> int:
        """Where *array*, which is added, begins."""
        offset = self.size
        self._arrays.append((offset, array))
        self.size += _aligned(array.nbytes)
        return offset

    def packed(self) -> np.ndarray:
        packed = np.zeros(max(self.size, ALIGNMENT), np.uint8)
        for offset, array in self._arrays:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            packed[offset : offset + data.nbytes] = data
        return packed
