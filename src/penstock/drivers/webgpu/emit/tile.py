"""The template of sums of products: one thread computes several vectors of four channels at several
positions.

Convolutions, fully connected layers and products of matrices have one factor that does not depend
on the channel (*data*) and one that does not depend on the position (*filters*): each value that a
thread reads serves several products. Filters of a depthwise convolution depend on the same channel
as its data. Four factors of 8 bits that lie in one word are multiplied at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.compiler.program import Access, Kernel, Program
from penstock.drivers.webgpu.emit.address import Flat, Walk
from penstock.drivers.webgpu.emit.form import BYTES, LANES, Form
from penstock.drivers.webgpu.emit.scalars import Scalars, cast
from penstock.drivers.webgpu.emit.shader import (
    Memory,
    Printed,
    Slot,
    assembled,
    decoded,
    entry_point,
    guarded,
    stored_small,
)
from penstock.drivers.webgpu.emit.types import bits, literal, size_of, unpacked, variable
from penstock.ir import DType

FILTERS: Final = "packed0"
BEGIN: Final = "packed1"
"""The arrays of packed constants, in the order of `form.packed`."""

ONES: Final = "0x01010101u"
PARTS: Final = "xyzw"


def tile(
    program: Program, kernel: Kernel, slots: Mapping[int, Slot], form: Form, constants: int
) -> Printed:
    """The shader of a kernel that is divided as *form* says, with so many packed *constants*."""
    return _Tile(program, kernel, slots, form, constants).printed()


class _Tile:
    def __init__(
        self, program: Program, kernel: Kernel, slots: Mapping[int, Slot], form: Form,
        constants: int,
    ) -> None:  # fmt: skip
        self.program, self.kernel, self.form = program, kernel, form
        self.target = program.tensors[kernel.write.tensor].dtype
        self.written = slots[program.root(kernel.write.tensor)]
        align = LANES // size_of(self.target) if size_of(self.target) < 4 else 1
        whole = form.flats["y"].is_multiple(align, but=form.channel)
        is_small = size_of(self.target) < 4
        self.partial = form.loops[form.channel] % LANES != 0
        self.atomic = self.written.array if is_small and (self.partial or not whole) else ""
        self.memory = Memory(program, slots, self.atomic)
        self.begins = constants > 1
        self.sums = variable(kernel.sums)
        self.vector = f"vec4<{self.sums}>"
        self.data = program.tensors[form.data.tensor].dtype
        self.filters = program.tensors[form.filters.tensor].dtype
        self.walk = Walk(self._factors(), form.positions, form.many)

    def _factors(self) -> dict[str, Flat]:
        """The addresses of what is read for each product: in words or vectors where these are
        read.
        """
        form = self.form
        last, x, w = form.last, form.flats["x"], form.flats["w"]
        flats = {"x": x, "w": w}
        if self.begins:
            outer = Flat(0, tuple(s for s in w.steps if s[0] < len(form.loops)))
            flats["b"] = outer.divided(math.prod(form.reduced)).stepping(form.vector, 1)
        if form.across:
            if form.vectors:
                flats["x"] = _fours(x, form.channel).stepping(form.vector, 1)
            return flats
        if form.words or form.vectors:
            flats["x"] = _fours(x, last).stepping(last, 1)
        if form.words and form.packed:
            flats["w"] = Flat(
                0,
                tuple((k, s if k in {last, form.vector} else s // LANES) for k, s in w.steps),
            )
        elif form.words:
            flats["w"] = _fours(w, last).stepping(last, 1)
        elif form.vectors:
            flats["w"] = w.stepping(last, LANES * w.step(last))
        return flats

    def printed(self) -> Printed:
        form, kernel = self.form, self.kernel
        outer = len(form.loops)
        lines = self._threads()
        lines += self.walk.enter([*range(outer), form.vector])
        lines += self._accumulators()
        for loop, size in enumerate(form.reduced, outer):
            count = size // self._stride(loop)
            if count != 1:
                lines.append(f"for (var i{loop} = 0; i{loop} < {count}; i{loop}++) {{")
                lines += self.walk.enter([loop])
        lines += self._across() if form.across else self._apart()
        lines += ["}"] * sum(
            size // self._stride(loop) != 1 for loop, size in enumerate(form.reduced, outer)
        )
        lines += self._corrections()
        lines += self._stored()
        if form.in_rows:
            given = (
                "@builtin(global_invocation_id) g: vec3<u32>, @builtin(workgroup_id) w: vec3<u32>"
            )
            head = [
                f"@compute @workgroup_size({form.threads})",
                f"fn main({given}) {{",
                "let t = i32(g.x);",
                f"if (t >= {form.tiles}) {{ return; }}",
            ]
            main = [*head, *lines, "}"]
            groups = -(-form.tiles // form.threads), form.blocks, 1
        else:
            main, groups = entry_point(form.tiles * form.blocks, lines, form.threads)
        vectors = {FILTERS, BEGIN} if form.packed and not form.halves else set[str]()
        pairs = {FILTERS} if form.halves else set[str]()
        if form.vectors and not form.across:
            vectors.add(self.memory.slot(form.data.tensor).array)
        text = assembled([*self._finish(kernel), *main])
        return Printed(
            text, groups, frozenset({self.atomic} - {""}), frozenset(vectors), frozenset(pairs)
        )

    def _stride(self, loop: int) -> int:
        """Elements of an iteration of a reduced loop."""
        by_fours = self.form.words or (self.form.vectors and not self.form.across)
        return LANES if by_fours and loop == self.form.last else 1

    def _threads(self) -> list[str]:
        """Statements that say which channels and positions the thread has."""
        form = self.form
        sizes = list(form.loops[:-1])
        if form.positions is not None:
            sizes[form.positions] = -(-sizes[form.positions] // form.many)
        if form.in_rows:
            lines = ["let block = i32(w.y);", *decoded(sizes, "t")]
        else:
            lines = [f"let block = t % {form.blocks};", f"let rest = t / {form.blocks};"]
            lines += decoded(sizes, "rest")
        moving = f"let i{form.positions} ="
        lines = [
            f"{moving} {form.many} * ({line.removeprefix(moving).strip(' ;')});"
            if line.startswith(moving)
            else line
            for line in lines
        ]
        if form.positions is not None and sizes[form.positions] == 1:
            lines.append(f"{moving} 0;")
        channels = f"let i{form.channel} = i{form.vector} * {LANES};"
        return [*lines, f"let i{form.vector} = block * {form.groups};", channels]

    def _accumulators(self) -> list[str]:
        form, lines = self.form, list[str]()
        for g in range(form.groups):
            start = f"{self.vector}()"
            if self.begins:
                place = self.walk.at("b", 0, g)
                lines.append(f"let begin{g} = bitcast<vec4<i32>>({BEGIN}[{place}]);")
                start = f"begin{g}"
            lines += [f"var a{p}_{g} = {start};" for p in range(form.many)]
        if form.words and not form.packed and form.zeros[0]:
            lines += [f"var of_filters{g} = {self.vector}();" for g in range(form.groups)]
        if form.words and form.zeros[1]:
            lines += [f"var of_data{p} = 0;" for p in range(form.many)]
        return lines

    def _apart(self) -> list[str]:
        """Products of data at each position with the filters of each channel."""
        form, lines = self.form, list[str]()
        if form.words:
            return self._words()
        by_fours = form.vectors
        for k in range(LANES if by_fours else 1):
            for g in range(form.groups):
                lines.append(f"let w{g}_{k} = {self._filter(g, k)};")
        for p in range(form.many):
            if by_fours:
                place = self.walk.at("x", p)
                array = self.memory.slot(form.data.tensor)
                value = f"bitcast<vec4<f32>>({array.array}[u32({place})])"
                fill = f"vec4<f32>({literal(form.data.fill or 0, self.data)})"
                lines.append(f"let x{p} = {guarded(value, fill, self.walk.inside('x', p))};")
                for k, g in ((k, g) for k in range(LANES) for g in range(form.groups)):
                    lines.append(f"a{p}_{g} += x{p}.{PARTS[k]} * w{g}_{k};")
                continue
            lines.append(f"let x{p} = {self._datum(p)};")
            lines += [f"a{p}_{g} += x{p} * w{g}_0;" for g in range(form.groups)]
        return lines

    def _filter(self, g: int, k: int) -> str:
        """The filters of four channels, as a vector of the type of the sums. *k*: of the element
        that comes so many after the first of the loop `last`.
        """
        form = self.form
        if form.packed:
            place = self.walk.at("w", 0, g + k * self._vectors_of_last())
            if form.halves:
                four = f"four_halves({FILTERS}[{place}])"
                return four if form.halves == 1 else f"{four} * f32({1 / form.halves!r})"
            return f"bitcast<{self.vector}>({FILTERS}[{place}])"
        step = form.flats["w"].step(form.channel)
        parts = []
        for c in range(LANES):
            place = self.walk.at("w", 0, (LANES * g + c) * step)
            value = self.memory.element(form.filters.tensor, f"u32({place})")
            parts.append(self._centred(value, self.filters, form.zeros[1]))
        return f"{self.vector}({', '.join(parts)})"

    def _vectors_of_last(self) -> int:
        """By how many vectors packed filters of the next element of the loop `last` come later."""
        return self.form.flats["w"].step(self.form.last)

    def _datum(self, p: int, more: int = 0) -> str:
        """The data at position *p*, as the type of the sums."""
        form = self.form
        place = self.walk.at("x", p, more)
        value = self.memory.element(form.data.tensor, f"u32({place})")
        fill = literal(form.data.fill or 0, self.data)
        inside = guarded(value, fill, self.walk.inside("x", p))
        return self._centred(inside, self.data, form.zeros[0])

    def _centred(self, value: str, dtype: DType, zero: int) -> str:
        """*value* as the type of the sums, less *zero*."""
        real = cast(value, dtype, self.kernel.sums)
        return f"({real} - {literal(zero, self.kernel.sums)})" if zero else real

    def _words(self) -> list[str]:
        """Products of four values at once."""
        form, lines = self.form, list[str]()
        step = form.flats["w"].step(form.channel) // LANES
        for g in range(form.groups):
            if form.packed:
                lines.append(f"let w{g} = {FILTERS}[{self.walk.at('w', 0, g)}];")
            else:
                words = (
                    self._word(form.filters, self.walk.at("w", 0, (LANES * g + c) * step))
                    for c in range(LANES)
                )
                lines.append(f"let w{g} = vec4<u32>({', '.join(words)});")
                if form.zeros[0]:
                    ones = ", ".join(_dot(self.filters, f"w{g}.{part}", ONES) for part in PARTS)
                    lines.append(f"of_filters{g} += vec4<i32>({ones});")
        fill = f"{(int(form.data.fill or 0) & 0xFF) * 0x01010101}u"
        for p in range(form.many):
            value = self._word(form.data, self.walk.at("x", p))
            lines.append(f"let x{p} = {guarded(value, fill, self.walk.inside('x', p))};")
            for g in range(form.groups):
                each = ", ".join(_dot(self.data, f"x{p}", f"w{g}.{part}") for part in PARTS)
                lines.append(f"a{p}_{g} += vec4<i32>({each});")
            if form.zeros[1]:
                lines.append(f"of_data{p} += {_dot(self.data, f'x{p}', ONES)};")
        return lines

    def _word(self, access: Access, place: str) -> str:
        return self.memory.word(access.tensor, f"u32({place})")

    def _across(self) -> list[str]:
        """Products of four channels of the data with their filters."""
        form, lines = self.form, [f"let w0 = {self._filter(0, 0)};"]
        for p in range(form.many):
            if form.vectors:
                word = self._word(form.data, self.walk.at("x", p))
                fill = f"{(int(form.data.fill or 0) & 0xFF) * 0x01010101}u"
                whole = guarded(word, fill, self.walk.inside("x", p))
                kind = "I8" if self.data is DType.INT8 else "U8"
                value = f"{self.vector}(unpack4x{kind}({whole}))"
                if form.zeros[0]:
                    value += f" - {literal(form.zeros[0], self.kernel.sums)}"
            else:
                value = f"{self.vector}({', '.join(self._datum(p, c) for c in range(LANES))})"
            lines.append(f"a{p}_0 += ({value}) * w0;")
        return lines

    def _corrections(self) -> list[str]:
        """What zero points that only a run can sum take from the sums."""
        form, lines = self.form, list[str]()
        if not form.words:
            return lines
        of_data, of_filters = form.zeros
        for p in range(form.many):
            terms = ""
            if of_filters:
                terms += f" - {literal(of_filters, DType.INT32)} * of_data{p}"
            for g in range(form.groups):
                more = terms
                if of_data and not form.packed:
                    taps = math.prod(form.reduced) * of_filters
                    data = literal(of_data, DType.INT32)
                    more += f" - {data} * (of_filters{g} - {literal(taps, DType.INT32)})"
                if more:
                    lines.append(f"a{p}_{g} = a{p}_{g}{more};")
        return lines

    def _finish(self, kernel: Kernel) -> list[str]:
        """The function that makes a result from a sum and from what else is read."""
        scalars = Scalars(self.memory.lookup)
        dtypes = [self.program.tensors[a.tensor].dtype for a in kernel.extras]
        names = [f"e{k}" for k in range(len(dtypes))]
        result = scalars.expression(kernel.finish, ["sum", *names])
        given = "".join(f", {n}: {variable(d)}" for n, d in zip(names, dtypes, strict=True))
        head = f"fn finish(sum: {self.sums}{given}) -> {variable(self.target)} {{"
        return [head, *scalars.lines, f"return {result};", "}"]

    def _stored(self) -> list[str]:
        """Statements that finish the sums, and write the results."""
        form = self.form
        positions = form.positions
        flats = {k: v for k, v in form.flats.items() if k not in {"x", "w"}}
        for name in [name for name in flats if self._apart_by_channel(flats[name])]:
            for c in range(LANES * form.groups):
                flats[f"{name}_{c}"] = flats[name].shifted(form.channel, c)
        walk = Walk(flats, variable="o")
        extras = range(len(self.kernel.extras))
        fixed = [
            k for k in extras if positions is None or not _depends(flats[f"e{k}"], positions)
        ]  # fmt: skip
        if positions is None:
            lines = walk.enter(range(len(form.loops)))
        else:
            lines = walk.enter(k for k in range(len(form.loops)) if k != positions)
        for k in fixed:
            for g in range(form.groups):
                lines += self._extra(walk, k, g, flats[f"e{k}"])
        if form.many > 1:
            sums = ", ".join(
                f"a{p}_{g}" for p in range(form.many) for g in range(form.groups)
            )  # fmt: skip
            count = form.many * form.groups
            lines.append(f"var sums = array<{self.vector}, {count}>({sums});")
            lines.append(f"for (var p = 0; p < {form.many}; p++) {{")
        if positions is not None:
            if form.many > 1:
                lines.append(f"let m = i{positions} + p;")
                if form.loops[positions] % form.many:
                    lines.append(f"if (m >= {form.loops[positions]}) {{ break; }}")
                lines += ["{", f"let i{positions} = m;"]
            lines += walk.enter([positions])
        for g in range(form.groups):
            total = f"sums[p * {form.groups} + {g}]" if form.many > 1 else f"a0_{g}"
            own = [
                line
                for k in extras
                if k not in fixed
                for line in self._extra(walk, k, g, flats[f"e{k}"])
            ]
            lines += self._group(walk, g, total, own)
        return [*lines, *["}", "}"] * (form.many > 1)]

    def _apart_by_channel(self, flat: Flat) -> bool:
        """Whether channels of a thread differ in whether they lie inside, or in what they read
        through a vector.
        """
        channel = self.form.channel
        chosen = any(channel == loop for t in flat.through for loop, _ in t.steps)
        return chosen or flat.is_bounded_by(channel)

    def _extra(self, walk: Walk, k: int, g: int, flat: Flat) -> list[str]:
        """Reads extra *k* for four channels: variables `e{k}_{channel}`."""
        access, step = self.kernel.extras[k], flat.step(self.form.channel)
        dtype = self.program.tensors[access.tensor].dtype
        names = [f"e{k}_{LANES * g + c}" for c in range(LANES)]
        inside, fill = walk.inside(f"e{k}"), literal(access.fill or 0, dtype)
        if self._apart_by_channel(flat):
            lines = []
            for c, name in enumerate(names, LANES * g):
                own = flat.shifted(self.form.channel, c)
                place = self.memory.place(walk, f"e{k}_{c}", own)
                value = self.memory.element(access.tensor, f"u32({place})")
                lines.append(f"let {name} = {guarded(value, fill, walk.inside(f'e{k}_{c}'))};")
            return lines
        if dtype in BYTES and step == 1 and flat.is_multiple(LANES, but=self.form.channel):
            word = self.memory.word(access.tensor, f"u32({walk.at(f'e{k}', 0, LANES * g)}) / 4u")
            lines = [f"let word{k}_{g} = {word};"]
            for c, name in enumerate(names):
                value = unpacked(f"word{k}_{g} >> {8 * c}u", dtype)
                lines.append(f"let {name} = {guarded(value, fill, inside)};")
            return lines
        lines = []
        for c, name in enumerate(names):
            if c and not step:
                lines.append(f"let {name} = {names[0]};")
                continue
            place = self.memory.place(walk, f"e{k}", flat, (LANES * g + c) * step)
            value = self.memory.element(access.tensor, f"u32({place})")
            lines.append(f"let {name} = {guarded(value, fill, inside)};")
        return lines

    def _group(self, walk: Walk, g: int, total: str, own: Sequence[str]) -> list[str]:
        """Statements that write four channels."""
        form, size = self.form, size_of(self.target)
        channels, first = form.loops[form.channel], LANES * g
        lines = ["{", *own, f"let total = {total};"]
        count = form.blocks * form.groups * LANES
        guards = channels < count and g > 0
        if guards:
            lines[:1] = [f"if (i{form.channel} < {channels - first}) {{"]
        base, array = self.written.base, self.written.array
        more = f" + {base}u" if base else ""
        place = f"u32({walk.at('y', 0, first)})"
        for c in range(LANES):
            given = "".join(f", e{k}_{first + c}" for k in range(len(self.kernel.extras)))
            lines.append(f"let y{c} = finish(total.{PARTS[c]}{given});")
        if size < 4 and not self.atomic:
            each = 4 // size
            lines.append(f"let at = {place} / {each}u;")
            for word in range(LANES // each):
                text = " | ".join(
                    f"({bits(f'y{word * each + k}', self.target)} << {8 * size * k}u)"
                    for k in range(each)
                )
                lines.append(f"{array}[at + {word}u{more}] = {text};")
            return [*lines, "}"]
        lines.append(f"let first = {place};")
        for c in range(LANES):
            part = ["{", f"let at = first + {c}u;", *self._element_stored(f"y{c}", more), "}"]
            if self.partial:
                part[0] = f"if (i{form.channel} < {channels - first - c}) {{"
            lines += part
        return [*lines, "}"]

    def _element_stored(self, name: str, more: str) -> list[str]:
        """Statements that write the variable *name* to the element `at`."""
        array = self.written.array
        if self.atomic:
            word = bits(name, self.target)
            return stored_small(array, self.written.base, self.target, word)
        if size_of(self.target) == 8:
            place = f"2u * at{more}"
            return [f"{array}[{place}] = {name}.x;", f"{array}[{place} + 1u] = {name}.y;"]
        return [f"{array}[at{more}] = {bits(name, self.target)};"]


def _dot(dtype: DType, a: str, b: str) -> str:
    if dtype is DType.INT8:
        return f"dot4I8Packed({a}, {b})"
    return f"bitcast<i32>(dot4U8Packed({a}, {b}))"


def _fours(flat: Flat, loop: int) -> Flat:
    """*flat*, but for *loop*, in units of four elements."""
    return flat.stepping(loop, 0).divided(LANES)


def _depends(flat: Flat, loop: int) -> bool:
    steps = [flat.steps, *(b.steps for b in flat.bounds), *(t.steps for t in flat.through)]
    return any(loop == other for part in steps for other, _ in part)
