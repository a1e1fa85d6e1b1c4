"""The template of sums of products: one thread computes four adjacent elements of the result at
several positions.

Convolutions, fully connected layers and products of matrices have one factor that does not depend
on the channel (*data*) and one that does not depend on the position (*filters*): each value that a
thread reads serves several products. Filters of a depthwise convolution depend on the same channel
as its data. Four factors of 8 bits that lie in one word are multiplied at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.compiler.rewriting import is_whole
from penstock.drivers.webgpu.emit.nest import (
    Memory,
    Printed,
    Slot,
    assembled,
    decoded,
    entry_point,
    sum_of,
)
from penstock.drivers.webgpu.emit.scalars import Scalars
from penstock.drivers.webgpu.emit.types import bits, literal, size_of, variable
from penstock.ir import DType

LANES: Final = 4
"""Adjacent elements of a thread."""

POSITIONS: Final = 4
"""The most positions of a thread."""

BYTES: Final = frozenset({DType.INT8, DType.UINT8})
TYPES: Final = BYTES | {DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT16}


class Form(Struct, frozen=True):
    """How a kernel is divided: the loop of its *positions*, of which a thread has so *many*
    (None: 1), and whether it multiplies *words* of four bytes along the last reduced loop.
    *across*: both factors depend on the channel.
    """

    positions: int | None
    many: int
    words: bool
    across: bool


def form_of(program: Program, kernel: Kernel) -> Form | None:
    """How `tile` divides *kernel*; None if it does not match."""
    found = product_of(kernel)
    target = program.tensors[kernel.write.tensor]
    if found is None or not kernel.reduced or kernel.ordered or not kernel.loops:
        return None
    channel, first = len(kernel.loops) - 1, len(kernel.loops)
    whole = is_whole(kernel.write, kernel.loops, target.shape)
    data, filters = kernel.reads
    dtypes = [program.tensors[a.tensor].dtype for a in (data, filters)]
    plain = all(p.through is None for a in (data, filters) for p in a.axes)
    if not (whole and plain and kernel.loops[channel] % LANES == 0 and TYPES.issuperset(dtypes)):
        return None
    if filters.fill is not None or kernel.sums not in {DType.INT32, DType.FLOAT32}:
        return None
    if channel in data.loops():
        steps = [_steps(program, a) for a in (data, filters)]
        if any(s.get(channel) != 1 for s in steps):
            return None
        return Form(None, 1, _aligned(program, (data, filters), channel), across=True)
    if channel not in filters.loops():
        return None
    free = [
        loop
        for loop in range(channel)
        if loop in data.loops() and loop not in filters.loops() and kernel.loops[loop] > 1
    ]
    many = min(POSITIONS, kernel.loops[free[-1]]) if free else 1
    last = len(kernel.sizes) - 1
    words = (
        dtypes[0] is dtypes[1]
        and dtypes[0] in BYTES
        and kernel.sums is DType.INT32
        and last >= first
        and kernel.sizes[last] % LANES == 0
        and all(_steps(program, a).get(last) == 1 for a in (data, filters))
        and _aligned(program, (data, filters), last)
        and not _leaves(program, data, last, kernel.sizes)
    )
    return Form(free[-1] if free else None, many, words, across=False)


def _steps(program: Program, access: Access) -> dict[int, int]:
    """By how many elements each loop moves *access*."""
    found: dict[int, int] = {}
    stride = 1
    for size, position in zip(
        reversed(program.tensors[access.tensor].shape), reversed(access.axes), strict=True
    ):
        for loop, step in position.steps:
            found[loop] = found.get(loop, 0) + step * stride
        stride *= size
    return found


def _aligned(program: Program, accesses: Sequence[Access], along: int) -> bool:
    """Whether both accesses are of bytes, and move by whole words along all loops but *along*."""
    for access in accesses:
        tensor = program.tensors[access.tensor]
        strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
        offset = sum(p.offset * s for p, s in zip(access.axes, strides, strict=True))
        steps = {loop: s for loop, s in _steps(program, access).items() if loop != along}
        if tensor.dtype not in BYTES or any(n % LANES for n in (offset, *steps.values())):
            return False
    return True


def _leaves(program: Program, access: Access, loop: int, sizes: tuple[int, ...]) -> bool:
    """Whether *loop* is one of those by which *access* leaves its tensor."""
    if access.fill is None:
        return False
    for size, position in zip(program.tensors[access.tensor].shape, access.axes, strict=True):
        low, high = position.span(sizes)
        if (low < 0 or high >= size) and loop in dict(position.steps):
            return True
    return False


def tile(program: Program, kernel: Kernel, slots: Mapping[int, Slot], form: Form) -> Printed:
    """The shader of a kernel that is divided as *form* says."""
    return _Tile(program, kernel, slots, form).printed()


class _Tile:
    def __init__(
        self, program: Program, kernel: Kernel, slots: Mapping[int, Slot], form: Form
    ) -> None:
        self.program, self.kernel, self.form = program, kernel, form
        self.memory = Memory(program, slots)
        self.channel = len(kernel.loops) - 1
        self.target = program.tensors[kernel.write.tensor].dtype
        self.written = slots[program.root(kernel.write.tensor)]
        self.kind = variable(kernel.sums)
        found = product_of(kernel)
        self.zeros = found[2] if found is not None else (0, 0)

    def printed(self) -> Printed:
        kernel, form = self.kernel, self.form
        loops = list(kernel.loops)
        loops[self.channel] //= LANES
        if form.positions is not None:
            loops[form.positions] = -(-loops[form.positions] // form.many)
        lines = decoded(loops, "t")
        names = {f"let i{self.channel} =": f"let c0 = {LANES} *"}
        if form.positions is not None:
            names[f"let i{form.positions} ="] = f"let m0 = {form.many} *"
        for old, new in names.items():
            at = next(k for k, line in enumerate(lines) if line.startswith(old))
            value = lines[at].removeprefix(old).strip(" ;")
            lines[at] = f"{new} ({value});"
        lines.append(f"let i{self.channel} = c0;")
        vector = f"vec4<{self.kind}>"
        lines += [f"var a{p} = {vector}();" for p in range(form.many)]
        if form.words and self.zeros[0] and not form.across:
            lines.append(f"var of_filters = {vector}();")
        if form.words and self.zeros[1] and not form.across:
            lines += [f"var of_data{p} = 0;" for p in range(form.many)]
        lines += self._loops()
        lines += self._corrections()
        lines += self._stored()
        main, groups = entry_point(math.prod(loops), lines)
        return Printed(assembled([*self._finish(), *main]), groups)

    def _loops(self) -> list[str]:
        kernel, first = self.kernel, len(self.kernel.loops)
        lines = []
        for loop, size in enumerate(kernel.reduced, first):
            step = LANES if self.form.words and not self.form.across else 1
            if loop != len(kernel.sizes) - 1:
                step = 1
            move = f"i{loop}++" if step == 1 else f"i{loop} += {step}"
            head = f"for (var i{loop} = 0; i{loop} < {size}; {move}) {{"
            lines.append(head if size != step else f"{{ let i{loop} = 0;")
        lines += self._across() if self.form.across else self._apart()
        return lines + ["}"] * len(kernel.reduced)

    def _position(self, p: int) -> list[str]:
        """The loop of the positions for position *p*; positions behind the last one repeat it."""
        loop = self.form.positions
        if loop is None:
            return []
        return [f"let i{loop} = min(m0 + {p}, {self.kernel.loops[loop] - 1});"]

    def _guarded(self, access: Access, name: str, kind: str, fill: str, value: str) -> list[str]:
        """Statements for *name*, which is *value* where *access* lies inside its tensor."""
        inside = ""
        if access.fill is not None:
            inside = self.memory.outside(access, self.kernel.sizes)
        place = f"let at = u32({self.memory.place(access)});"
        if not inside:
            return ["{", place, f"{name} = {value};", "}"]
        return [f"if ({inside}) {{", place, f"{name} = {value};", f"}} else {{ {name} = {fill}; }}"]

    def _word(self, access: Access) -> str:
        slot = self.memory.slot(access.tensor)
        return f"{slot.array}[(at >> 2u)" + (f" + {slot.base}u]" if slot.base else "]")

    def _filled(self, access: Access) -> str:
        """A word of the fill of *access*."""
        byte = int(access.fill or 0) & 0xFF
        return f"{byte * 0x01010101}u"

    def _apart(self) -> list[str]:
        """Products of data at each position with the filters of four channels."""
        data, filters = self.kernel.reads
        channel, lines = self.channel, list[str]()
        dtypes = [self.program.tensors[a.tensor].dtype for a in (data, filters)]
        kinds = ["u32", "u32"] if self.form.words else [variable(d) for d in dtypes]
        for c in range(LANES):
            lines += [f"var w{c}: {kinds[1]};", "{", f"let i{channel} = c0 + {c};"]
            value = self._word(filters) if self.form.words else self._element(filters)
            lines += [*self._guarded(filters, f"w{c}", kinds[1], "", value), "}"]
        if self.form.words and self.zeros[0]:
            ones = "0x01010101u"
            each = ", ".join(self._dot(dtypes[1], f"w{c}", ones) for c in range(LANES))
            lines.append(f"of_filters += vec4<i32>({each});")
        for p in range(self.form.many):
            lines += [f"var x{p}: {kinds[0]};", "{", *self._position(p)]
            value = self._word(data) if self.form.words else self._element(data)
            fill = self._filled(data) if self.form.words else literal(data.fill or 0, dtypes[0])
            lines += [*self._guarded(data, f"x{p}", kinds[0], fill, value), "}"]
            if self.form.words:
                each = ", ".join(self._dot(dtypes[0], f"x{p}", f"w{c}") for c in range(LANES))
                lines.append(f"a{p} += vec4<i32>({each});")
                if self.zeros[1]:
                    lines.append(f"of_data{p} += {self._dot(dtypes[0], f'x{p}', '0x01010101u')};")
                continue
            scalars = Scalars(self.memory.lookup)
            each = ", ".join(
                scalars.expression(self.kernel.body, [f"x{p}", f"w{c}"]) for c in range(LANES)
            )
            lines += ["{", *scalars.lines, f"a{p} += vec4<{self.kind}>({each});", "}"]
        return lines

    def _dot(self, dtype: DType, a: str, b: str) -> str:
        if dtype is DType.INT8:
            return f"dot4I8Packed({a}, {b})"
        return f"bitcast<i32>(dot4U8Packed({a}, {b}))"

    def _element(self, access: Access) -> str:
        return self.memory.element(access.tensor, "at")

    def _across(self) -> list[str]:
        """Products of four channels of the data with their filters."""
        lines, names = list[str](), list[str]()
        for number, access in enumerate(self.kernel.reads):
            dtype = self.program.tensors[access.tensor].dtype
            kind = variable(dtype)
            name = f"x{number}"
            names.append(name)
            lines.append(f"var {name}: vec4<{kind}>;")
            fill = f"vec4<{kind}>({literal(access.fill or 0, dtype)})"
            if self.form.words:
                unpack = "unpack4xI8" if dtype is DType.INT8 else "unpack4xU8"
                value = f"{unpack}({self._word(access)})"
            else:
                each = (self.memory.element(access.tensor, f"(at + {c}u)") for c in range(LANES))
                value = f"vec4<{kind}>({', '.join(each)})"
            lines += self._guarded(access, name, kind, fill, value)
        scalars = Scalars(self.memory.lookup)
        parts = [
            scalars.expression(self.kernel.body, [f"{n}[{c}]" for n in names]) for c in range(LANES)
        ]
        lines += scalars.lines
        lines.append(f"a0 += vec4<{self.kind}>({', '.join(parts)});")
        return lines

    def _corrections(self) -> list[str]:
        """What zero points take from the sums of products of whole words."""
        if not self.form.words or self.form.across:
            return []
        of_data, of_filters = self.zeros
        lines = []
        for p in range(self.form.many):
            terms = []
            if of_data:
                terms.append(f" - {of_data} * of_filters" if of_data > 0 else
                             f" + {-of_data} * of_filters")  # fmt: skip
            if of_filters:
                taps = math.prod(self.kernel.reduced) * of_data * of_filters
                one = f"{literal(of_filters, DType.INT32)} * of_data{p}"
                terms.append(f" - vec4<i32>({one} - {literal(taps, DType.INT32)})")
            if terms:
                lines.append(f"a{p} = a{p}{''.join(terms)};")
        return lines

    def _loop_names(self) -> list[str]:
        return [f"i{loop}" for loop in range(len(self.kernel.loops))]

    def _finish(self) -> list[str]:
        """The function that makes a result from a sum."""
        kernel = self.kernel
        scalars = Scalars(self.memory.lookup)
        extras = [self.memory.read(scalars, a, kernel.loops) for a in kernel.extras]
        result = scalars.expression(kernel.finish, ["sum", *extras])
        given = ", ".join(f"{name}: i32" for name in self._loop_names())
        head = f"fn finish(sum: {self.kind}, {given}) -> {variable(self.target)} {{"
        return [head, *scalars.lines, f"return {result};", "}"]

    def _stored(self) -> list[str]:
        """Statements that finish the sums, and write the results."""
        kernel, size, many = self.kernel, size_of(self.target), self.form.many
        strides = [math.prod(kernel.loops[k + 1 :]) for k in range(len(kernel.loops))]
        given = ", ".join([*self._loop_names()[:-1], f"i{self.channel} + c"])
        flat = sum_of(0, tuple(enumerate(strides)))
        # A loop, though it has few turns: compilers of shaders take long for each copy of `finish`.
        sums = ", ".join(f"a{p}" for p in range(many))
        lines = [f"var sums = array<vec4<{self.kind}>, {many}>({sums});"]
        lines.append(f"for (var p = 0; p < {many}; p++) {{")
        loop = self.form.positions
        if loop is not None:
            lines.append(f"let i{loop} = m0 + p;")
            if kernel.loops[loop] % many:
                lines.append(f"if (i{loop} >= {kernel.loops[loop]}) {{ break; }}")
        base = f" + {self.written.base}u" if self.written.base else ""
        lines.append(f"let at = u32({flat});")
        array = self.written.array
        if size < 4:
            each = 4 // size
            lines += [
                f"for (var word = 0; word < {LANES // each}; word++) {{",
                "var packed = 0u;",
                f"for (var k = 0; k < {each}; k++) {{",
                f"let c = word * {each} + k;",
                f"let v = {bits(f'finish(sums[p][c], {given})', self.target)};",
                f"packed |= v << (u32(k) * {8 * size}u);",
                "}",
                f"{array}[at / {each}u + u32(word){base}] = packed;",
            ]
        else:
            lines.append(f"for (var c = 0; c < {LANES}; c++) {{")
            lines.append(f"let v = finish(sums[p][c], {given});")
            if size == 4:
                lines.append(f"{array}[at + u32(c){base}] = {bits('v', self.target)};")
            else:
                place = f"2u * (at + u32(c)){base}"
                lines += [f"{array}[{place}] = v.x;", f"{array}[{place} + 1u] = v.y;"]
        return [*lines, "}", "}"]
