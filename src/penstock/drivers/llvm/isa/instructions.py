"""The instructions that differ between sets: products of bytes, roundings, packs, tables."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from penstock.drivers.llvm.emit.assembler import Function, Reg, lanes_of, splatted, vector
from penstock.drivers.llvm.isa.record import Isa
from penstock.ir import NDArray

AS_IT_IS = "4"
"""The rounding mode of an instruction that rounds as the processor is set to."""

LEAST_LOOKUP: Final = 16
"""Bytes from which on all rows of a table are read at once, of sets that permute 16 bytes."""

GROUP: Final = 4
"""The taps of 8-bit data that are read at once."""


class Instructions:
    """Writes the instructions of one set into a function."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        lanes = isa.lanes
        self.words, self.floats = vector(lanes, "i32"), vector(lanes, "float")
        self.bytes = vector(isa.width, "i8")

    # Products of 8 bits.

    @property
    def parts(self) -> int:
        """The vectors of weights, and of data, for one vector of sums and one group of taps."""
        return {"vpdpbusd": 1, "sdot": 1, "vpmaddwd": 2, "smlal": 4}[self.isa.dot]

    @property
    def weight_type(self) -> np.dtype[np.signedinteger[Any]]:
        """The type of packed weights."""
        return np.dtype(np.int8 if self.parts == 1 else np.int16)

    def packed_weights(self, weights: NDArray) -> NDArray:
        """Weights [groups, columns, lanes, GROUP] in the order in which products read them:
        [groups, columns, parts, lanes, taps of a part].
        """
        groups, columns, lanes, _ = weights.shape
        shaped = weights.reshape(groups, columns, lanes, GROUP // self.parts, self.parts)
        return np.ascontiguousarray(shaped.transpose(0, 1, 4, 2, 3), self.weight_type)

    def _taps(self, part: int) -> range:
        """The taps of a group that are those of *part*. Of two parts, one has the even bytes and
        the other the odd ones: an instruction each takes them out of a group.
        """
        return range(part, GROUP, self.parts)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights of one vector of sums and one group of taps."""
        return self.isa.lanes * GROUP * self.weight_type.itemsize

    def weights(self, f: Function, pointer: str) -> list[Reg]:
        """The vectors of weights of one vector of sums and one group, a part each."""
        size = self.weight_bytes // self.parts
        return [f.load(self._weights, f.at(pointer, size * p), size) for p in range(self.parts)]

    @property
    def _weights(self) -> str:
        return {
            1: self.bytes,
            2: vector(self.isa.lanes * 2, "i16"),
            4: vector(self.isa.lanes, "i16"),
        }[self.parts]

    def broadcast(self, f: Function, group: Reg) -> list[Reg]:
        """One group of taps, an i32, in every lane; a vector each part."""
        lanes = self.isa.lanes
        if self.parts > 1 and self.isa.architecture == "aarch64":
            four = f.value(f"bitcast {group} to <4 x i8>", "<4 x i8>")
            words = f.value(f"sext {four} to <4 x i16>", "<4 x i16>")
            return [f.chosen(words, [*self._taps(part)] * lanes) for part in range(self.parts)]
        wide = f.splat(group, lanes)
        return self.spread(f, f.value(f"bitcast {wide} to {self.bytes}", self.bytes))

    def product(self, f: Function, total: Reg, data: list[Reg], weights: list[Reg]) -> Reg:
        """*total* plus the products of one group of taps."""
        for d, w in zip(data, weights, strict=True):
            total = self._product(f, total, d, w)
        return total

    def _product(self, f: Function, total: Reg, data: Reg, weights: Reg) -> Reg:
        words, bits = self.words, self.isa.width * 8
        if self.isa.dot == "vpdpbusd":
            name = {512: "avx512.vpdpbusd.512", 256: "avx512.vpdpbusd.256"}[bits]
            return f.call(f"llvm.x86.{name}", words, total, data, weights)
        if self.isa.dot == "vpmaddwd":
            name = {512: "avx512.pmaddw.d.512", 256: "avx2.pmadd.wd"}[bits]
            return f.value(
                f"add {total}, {f.call(f'llvm.x86.{name}', words, data, weights).name}", words
            )
        if self.isa.dot == "sdot":
            return f.call("llvm.aarch64.neon.sdot.v4i32.v16i8", words, total, data, weights)
        wide = [f.value(f"sext {v} to {words}", words) for v in (data, weights)]
        product = f.value(f"mul {wide[0]}, {wide[1].name}", words)
        return f.value(f"add {total}, {product.name}", words)

    def repeated(self, taps: list[int]) -> list[Reg]:
        """The weights *taps*, of one group or several, side by side again and again."""
        lanes = self.isa.lanes
        scalar = "i8" if self.parts == 1 else "i16"
        made = []
        for part in range(self.parts):
            numbers = [
                taps[(lane * GROUP + t) % len(taps)]
                for lane in range(lanes)
                for t in self._taps(part)
            ]
            text = ", ".join(f"{scalar} {n}" for n in numbers)
            made.append(Reg(f"<{text}>", vector(len(numbers), scalar)))
        return made

    def spread(self, f: Function, mixed: Reg) -> list[Reg]:
        """A vector of bytes, a group of taps in each lane, as data of a product."""
        if self.parts == 1:
            return [mixed]
        lanes = self.isa.lanes
        if self.isa.architecture == "x86_64":
            type_ = vector(lanes * 2, "i16")
            words = f.value(f"bitcast {mixed} to {type_}", type_)
            low, byte = (splatted(str(n), "i16", lanes * 2).name for n in (0xFF, 8))
            return [
                f.value(f"and {words}, {low}", type_), f.value(f"lshr {words}, {byte}", type_)
            ]  # fmt: skip
        made = []
        for part in range(self.parts):
            places = [GROUP * lane + t for lane in range(lanes) for t in self._taps(part)]
            some = f.chosen(mixed, places)
            type_ = vector(len(places), "i16")
            made.append(f.value(f"sext {some} to {type_}", type_))
        return made

    def interleaved(self, f: Function, rows: list[Reg]) -> list[Reg]:
        """Four vectors with the bytes of four rows side by side, channels as `interleaved_order`
        says; missing rows are repeated.
        """
        rows = [*rows, *[rows[-1]] * (GROUP - len(rows))]
        pairs = [
            [self._unpacked(f, rows[i], rows[i + 1], half, 1) for half in (0, 1)] for i in (0, 2)
        ]
        half = vector(self.isa.width // 2, "i16")
        words = [[f.value(f"bitcast {v} to {half}", half) for v in pair] for pair in pairs]
        mixed = [
            self._unpacked(f, words[0][first], words[1][first], half_, 2)
            for first in (0, 1)
            for half_ in (0, 1)
        ]
        return [f.value(f"bitcast {v} to {self.bytes}", self.bytes) for v in mixed]

    def interleaved_order(self) -> NDArray:
        """The channels of a vector of bytes in the order of the lanes of four vectors of sums."""
        quarters = self.isa.width // 16
        # Vector q has bytes 4 q to 4 q + 3 of each 16.
        return np.arange(self.isa.width).reshape(quarters, 4, 4).transpose(1, 0, 2).reshape(-1)

    def _unpacked(self, f: Function, a: Reg, b: Reg, half: int, size: int) -> Reg:
        """The elements, of *size* bytes, of one half of each 16 bytes of *a* and *b* in turn."""
        return f.mixed(a, b, _alternating(self.isa.width, half, size))

    # Roundings.

    def rounded(self, f: Function, value: Reg, a: Reg, c: Reg) -> Reg:
        """A * value + c, of floats, as whole numbers of 32 bits: rounded down, or to the nearest
        where the set does not round down (`penstock.drivers.llvm.proof`). Vectors may be longer
        or shorter than those of the set.
        """
        lanes = self.isa.lanes
        count = lanes_of(value.type)[0]
        if count == 1:
            wide = [f.splat(v, lanes) for v in (value, a, c)]
            return f.value(f"extractelement {self.rounded(f, *wide)}, i32 0", "i32")
        if count < lanes:
            wide = [f.resized(v, lanes) for v in (value, a, c)]
            return f.resized(self.rounded(f, *wide), count)
        if count > lanes:
            parts = [range(i, i + lanes) for i in range(0, count, lanes)]
            given = ([f.chosen(v, part) for v in (value, a, c)] for part in parts)
            return f.joined([self.rounded(f, *three) for three in given])
        if self.isa.rounds_down:
            down = Reg("9", "i32")
            product = f.call("llvm.x86.avx512.vfmadd.ps.512", self.floats, value, a, c, down)
            nothing, every = Reg("zeroinitializer", self.words), Reg("-1", "i16")
            name = "llvm.x86.avx512.mask.cvtps2dq.512"
            return f.call(name, self.words, product, nothing, every, down)
        product = f.call(f"llvm.fma.v{lanes}f32", self.floats, value, a, c)
        if self.isa.architecture == "x86_64":
            return f.call("llvm.x86.avx.cvt.ps2dq.256", self.words, product)
        return f.call("llvm.aarch64.neon.fcvtns.v4i32.v4f32", self.words, product)

    def scaled(self, f: Function, value: Reg, power: Reg, lanes: int) -> Reg | None:
        """*value* times two to the whole number *power*, rounded once; None without an instruction
        for it.
        """
        if "avx512f" not in self.isa.features or lanes != self.isa.lanes:
            return None
        every, mode = Reg("-1", "i16"), Reg(AS_IT_IS, "i32")
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        zero = Reg("zeroinitializer", self.floats)
        return f.call(name, self.floats, value, power, zero, every, mode)

    # Packs.

    def order(self, vectors: int) -> NDArray:
        """The place, among the bytes that `pack` makes, of each element of *vectors* vectors."""
        lanes, total = self.isa.lanes, self.isa.lanes * vectors
        if self.isa.architecture == "aarch64":
            return np.arange(total)
        # A pack takes four bytes of each of its four vectors in turn, in each 16 bytes.
        quarters = lanes // 4
        return np.arange(total).reshape(quarters, vectors, 4).transpose(1, 0, 2).reshape(-1)

    def part_of(self, row: int, columns: int) -> list[int]:
        """The places, among the bytes that `pack` makes of several rows of *columns* vectors each,
        of those of one *row*.
        """
        lanes = self.isa.lanes
        if self.isa.architecture == "aarch64":
            return list(range(row * columns * lanes, (row + 1) * columns * lanes))
        return [
            16 * quarter + 4 * columns * row + k
            for quarter in range(lanes // 4)
            for k in range(4 * columns)
        ]

    def pack(self, f: Function, whole: list[Reg], zero: int, *, signed: bool) -> Reg:
        """Four vectors of 32 bits plus *zero* as bytes, saturated. `order` says which is where."""
        width = self.isa.width
        half, octets = vector(width // 2, "i16"), self.bytes
        if self.isa.architecture == "aarch64":
            return self._narrowed(f, whole, zero, signed=signed)
        prefix = "avx512" if width == 64 else "avx2"
        suffix = ".512" if width == 64 else ""
        halves = []
        for a, b in ((whole[0], whole[1]), (whole[2], whole[3])):
            made = f.call(f"llvm.x86.{prefix}.packssdw{suffix}", half, a, b)
            if zero:
                constant = splatted(str(zero), "i16", width // 2)
                made = f.call(f"llvm.sadd.sat.v{width // 2}i16", half, made, constant)
            halves.append(made)
        name = "packsswb" if signed else "packuswb"
        return f.call(f"llvm.x86.{prefix}.{name}{suffix}", octets, *halves)

    def widened(self, f: Function, bytes_: Reg, *, signed: bool) -> list[Reg]:
        """A vector of bytes as four vectors of 32 bits, in the order of `pack`."""
        if self.isa.architecture == "aarch64":
            count, extend = self.isa.width, "sext" if signed else "zext"
            wide = vector(count, "i32")
            every = f.value(f"{extend} {bytes_} to {wide}", wide)
            lanes = self.isa.lanes
            return [f.chosen(every, range(i, i + lanes)) for i in range(0, count, lanes)]
        # Signed bytes go to the top of each lane first, and are then shifted down.
        zero = Reg("zeroinitializer", self.bytes)
        half = vector(self.isa.width // 2, "i16")
        none = Reg("zeroinitializer", half)
        made = []
        for upper in (0, 1):
            pair = (zero, bytes_) if signed else (bytes_, zero)
            words = f.value(f"bitcast {self._unpacked(f, *pair, upper, 1)} to {half}", half)
            for high in (0, 1):
                given = (none, words) if signed else (words, none)
                mixed = f.value(
                    f"bitcast {self._unpacked(f, *given, high, 2)} to {self.words}", self.words
                )
                if signed:
                    shift = splatted("24", "i32", self.isa.lanes)
                    mixed = f.value(f"ashr {mixed}, {shift.name}", self.words)
                made.append(mixed)
        return made

    def _narrowed(self, f: Function, whole: list[Reg], zero: int, *, signed: bool) -> Reg:
        joined = f.joined(whole)
        count = self.isa.lanes * len(whole)
        if zero:
            joined = f.value(f"add {joined}, {splatted(str(zero), 'i32', count).name}", joined.type)
        low, high = (-128, 127) if signed else (0, 255)
        for name, bound in (("smax", low), ("smin", high)):
            limit = splatted(str(bound), "i32", count)
            joined = f.call(f"llvm.{name}.v{count}i32", joined.type, joined, limit)
        return f.value(f"trunc {joined} to {vector(count, 'i8')}", vector(count, "i8"))

    # Tables.

    def lookup(self, f: Function, table: str, index: Reg, lanes: int) -> Reg | None:
        """Bytes of a table of 256 at *index*, a vector of *lanes* bytes; None without an
        instruction for it.
        """
        if self.isa.bytes_by_table == 16 and lanes >= LEAST_LOOKUP:
            return f.resized(self._lookup_rows(f, table, f.resized(index, 32)), lanes)
        if self.isa.bytes_by_table != 128:
            return None
        parts = [f.load(self.bytes, f.at(table, 64 * i), 1) for i in range(4)]
        wide = f.resized(index, self.isa.width)
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        low = f.call(name, self.bytes, parts[0], wide, parts[1])
        high = f.call(name, self.bytes, parts[2], wide, parts[3])
        upper = f.value(f"icmp slt {wide}, zeroinitializer", "<64 x i1>")
        found = f.value(f"select {upper}, {high}, {low}", self.bytes)
        return f.resized(found, lanes)

    def _lookup_rows(self, f: Function, table: str, index: Reg) -> Reg:
        """Bytes of a table of 256 at *index*: of each of its 16 rows by the low bits of the index;
        the high bits choose among the rows, two by two.
        """
        words = vector(16, "i16")
        low = f.value(f"and {index}, {splatted('15', 'i8', 32).name}", self.bytes)
        pairs = f.value(f"bitcast {index} to {words}", words)
        masks = []
        for bit in range(4, 8):
            # A choice is by the highest bit of each byte.
            moved = f.value(f"shl {pairs}, {splatted(str(7 - bit), 'i16', 16).name}", words)
            masks.append(f.value(f"bitcast {moved} to {self.bytes}", self.bytes))

        def among(first: int, bits: int) -> Reg:
            """The bytes of the rows from *first* on, of which *bits* bits of the index choose."""
            if not bits:
                row = f.load("<16 x i8>", f.at(table, 16 * first), 1)
                both = f.chosen(row, [*range(16), *range(16)])
                return f.call("llvm.x86.avx2.pshuf.b", self.bytes, both, low)
            half = 1 << (bits - 1)
            lower, upper = among(first, bits - 1), among(first + half, bits - 1)
            mask = masks[bits - 1]
            return f.call("llvm.x86.avx2.pblendvb", self.bytes, lower, upper, mask)

        return among(0, 4)


@cache
def _alternating(width: int, half: int, size: int) -> tuple[int, ...]:
    """The elements, of *size* bytes, of one half of each 16 bytes of two vectors in turn."""
    each, count = 16 // size, width // size
    return tuple(
        place
        for lane in range(width // 16)
        for i in range(each // 2)
        for place in (
            each * lane + half * each // 2 + i, count + each * lane + half * each // 2 + i,
        )
    )  # fmt: skip
