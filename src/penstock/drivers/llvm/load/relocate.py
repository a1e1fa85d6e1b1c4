"""Places the sections of an object in memory, and relocates them.

Formulas and ranges are those of the ELF supplements: "System V ABI, AMD64 Architecture Processor
Supplement", table 4.9, and "ELF for the Arm 64-bit Architecture", section 5.7. S is the address of
the symbol, A the addend, P the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.drivers.llvm.load.elf import Object, broken
from penstock.ir import NDArray

PAGE: Final = 4096


class Placed(Struct, frozen=True, eq=False):
    """An object and the offset of each of its sections in an image of *size* bytes.

    Code is in the first *code* bytes, which end with a page, constants are behind them.
    """

    object: Object
    starts: tuple[int, ...]
    code: int
    size: int


def place(object_: Object, page: int = PAGE) -> Placed:
    """Lays out the sections: code first, then constants from the next page of *page* bytes on."""
    starts = [0] * len(object_.sections)
    end = code = 0
    for executable in (True, False):
        for number, section in enumerate(object_.sections):
            if section.executable is executable:
                starts[number] = -(-end // section.align) * section.align
                end = starts[number] + len(section.content)
        end = -(-end // page) * page
        code = end if executable else code
    return Placed(object_, tuple(starts), code, end)


def relocated(placed: Placed, address: int) -> NDArray:
    """The bytes of the image for *address*, which is a multiple of a page. Raises `GeneralFailure`
    for a relocation that is unknown, out of range, or out of its section.
    """
    image = np.zeros(placed.size, np.uint8)
    object_ = placed.object
    for start, section in zip(placed.starts, object_.sections, strict=True):
        image[start : start + len(section.content)] = section.content
    known = RELOCATIONS[object_.architecture]
    starts = np.array(placed.starts, np.int64)
    ends = np.array([len(s.content) for s in object_.sections], np.int64)
    # NumPy's `unique` imports its masked arrays, which takes longer than all of this.
    for type_ in sorted(set(object_.types.tolist())):
        chosen = object_.types == type_
        if int(type_) not in known:
            raise broken(f"its relocation of type {type_} is unknown")
        kind = known[int(type_)]
        section, offset = object_.places[chosen], object_.offsets[chosen]
        if np.any(offset + kind.width > ends[section]):
            raise broken(f"its relocation {kind.name} ends outside its section")
        places = starts[section] + offset
        targets = address + starts[object_.targets[chosen]] + object_.values[chosen]
        kind.write(image, places, targets, address)
    return image


class Kind(Struct, frozen=True):
    """A type of relocation: *value* of (S + A, P) is written into *width* bytes.

    The value has to lie in *least* to *most* and to be a multiple of *scale*. Its bits from *scale*
    on are put into the word by *insert*.
    """

    name: str
    width: int
    value: Callable[[NDArray, NDArray], NDArray]
    least: int
    most: int
    scale: int = 1
    insert: Callable[[NDArray, NDArray], NDArray] | None = None

    def write(self, image: NDArray, places: NDArray, targets: NDArray, address: int) -> None:
        """Relocates the fields at *places* of *image*, which is for *address*."""
        value = self.value(targets, address + places)
        if np.any(value < self.least) or np.any(value > self.most) or np.any(value % self.scale):
            raise broken(f"the target of its relocation {self.name} is out of reach")
        bytes_ = places[:, None] + np.arange(self.width)
        if self.insert is not None:
            words = np.ascontiguousarray(image[bytes_]).view("<u4")[:, 0].astype(np.int64)
            value = self.insert(words, value // self.scale)
        stored = np.ascontiguousarray(value, "<i8").view(np.uint8).reshape(-1, 8)
        image[bytes_] = stored[:, : self.width]


def _absolute(target: NDArray, _: NDArray) -> NDArray:
    return target


def _relative(target: NDArray, place: NDArray) -> NDArray:
    return target - place


def _pages(target: NDArray, place: NDArray) -> NDArray:
    """From page to page, in pages."""
    pages: NDArray = (target >> 12) - (place >> 12)
    return pages


def _in_page(target: NDArray, _: NDArray) -> NDArray:
    offset: NDArray = target & 0xFFF
    return offset


def _adr(word: NDArray, value: NDArray) -> NDArray:
    """The two low bits in bits 29 and 30, the others in bits 5 to 23."""
    clear = word & ~((3 << 29) | (0x7FFFF << 5))
    made: NDArray = clear | ((value & 3) << 29) | (((value >> 2) & 0x7FFFF) << 5)
    return made


def _twelve(word: NDArray, value: NDArray) -> NDArray:
    made: NDArray = (word & ~(0xFFF << 10)) | ((value & 0xFFF) << 10)
    return made


def _branch(word: NDArray, value: NDArray) -> NDArray:
    made: NDArray = (word & ~0x3FFFFFF) | (value & 0x3FFFFFF)
    return made


S32: Final = (-(1 << 31), (1 << 31) - 1)
S64: Final = (-(1 << 63), (1 << 63) - 1)

RELOCATIONS: Final[Mapping[str, Mapping[int, Kind]]] = {
    "x86_64": {
        1: Kind("R_X86_64_64", 8, _absolute, *S64),
        2: Kind("R_X86_64_PC32", 4, _relative, *S32),
        4: Kind("R_X86_64_PLT32", 4, _relative, *S32),
        24: Kind("R_X86_64_PC64", 8, _relative, *S64),
    },
    "aarch64": {
        257: Kind("R_AARCH64_ABS64", 8, _absolute, *S64),
        260: Kind("R_AARCH64_PREL64", 8, _relative, *S64),
        261: Kind("R_AARCH64_PREL32", 4, _relative, *S32),
        275: Kind("R_AARCH64_ADR_PREL_PG_HI21", 4, _pages, -(1 << 20), (1 << 20) - 1, 1, _adr),
        277: Kind("R_AARCH64_ADD_ABS_LO12_NC", 4, _in_page, 0, 4095, 1, _twelve),
        278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", 4, _in_page, 0, 4095, 1, _twelve),
        282: Kind("R_AARCH64_JUMP26", 4, _relative, -(1 << 27), (1 << 27) - 4, 4, _branch),
        283: Kind("R_AARCH64_CALL26", 4, _relative, -(1 << 27), (1 << 27) - 4, 4, _branch),
        284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", 4, _in_page, 0, 4095, 2, _twelve),
        285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", 4, _in_page, 0, 4095, 4, _twelve),
        286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", 4, _in_page, 0, 4095, 8, _twelve),
        299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", 4, _in_page, 0, 4095, 16, _twelve),
    },
}
"""What LLVM emits for generated code, and what else small position-independent code has."""
