"""How values of each element type are kept in memory and in variables of WGSL.

Memory is an array of words of 32 bits; elements of 8 and 16 bits share words. A variable has an
integer of up to 32 bits as one, wrapped to its width; a float16 as the float32 of its value; an
integer or float of 64 bits as two words, the lower one first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compiler.expression import Number
from penstock.ir import DType

HALF: Final = DType.FLOAT16
WIDE: Final = DType.INT64
DOUBLE: Final = DType.FLOAT64
TWO_WORDS: Final = frozenset({WIDE, DOUBLE})

SIGNED: Final = frozenset({DType.INT8, DType.INT16, DType.INT32})
UNSIGNED: Final = frozenset({DType.UINT8, DType.UINT16, DType.UINT32})
FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
KNOWN: Final = SIGNED | UNSIGNED | FLOATS | TWO_WORDS | {DType.BOOL}
"""The element types that shaders compute with."""


def variable(dtype: DType) -> str:
    """The type of a variable in WGSL."""
    if dtype in TWO_WORDS:
        return "vec2<u32>"
    if dtype is DType.BOOL:
        return "bool"
    if dtype in FLOATS:
        return "f32"
    return "i32" if dtype in SIGNED else "u32"


def size_of(dtype: DType) -> int:
    """The bytes of an element in memory."""
    return dtype.numpy.itemsize


def literal(value: Number, dtype: DType) -> str:
    """*value* as *dtype*."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype in FLOATS:
        return _float(np.asarray(value, dtype.numpy).astype(np.float32))
    if dtype in TWO_WORDS:
        whole = np.float64(value).view(np.uint64) if dtype is DOUBLE else value
        bits = int(whole) & 0xFFFFFFFFFFFFFFFF
        return f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32}u)"
    number = int(np.asarray(value).astype(dtype.numpy))
    return f"{number}u" if dtype in UNSIGNED else f"i32({number})"


def _float(value: np.ndarray) -> str:
    number = np.float32(value)
    is_normal = np.isfinite(number) and abs(number) >= np.finfo(np.float32).tiny
    if is_normal or (number == 0 and not np.signbit(number)):
        return f"f32({float(number)!r})"
    return f"bits_of({int(number.view(np.uint32))}u)"


def loaded(array: str, index: str, dtype: DType, *, atomic: bool = False) -> str:
    """Element *index*, an u32, of *array*."""

    def word(place: str) -> str:
        return f"atomicLoad(&{array}[{place}])" if atomic else f"{array}[{place}]"

    size = size_of(dtype)
    if dtype in TWO_WORDS:
        return f"vec2<u32>({word(f'2u * {index}')}, {word(f'2u * {index} + 1u')})"
    if size == 4:
        plain = word(index)
        kind = variable(dtype)
        return plain if kind == "u32" else f"bitcast<{kind}>({plain})"
    if size == 2:
        part = f"{word(f'{index} >> 1u')} >> (({index} & 1u) << 4u)"
    else:
        part = f"{word(f'{index} >> 2u')} >> (({index} & 3u) << 3u)"
    return unpacked(part, dtype)


def unpacked(part: str, dtype: DType) -> str:
    """The value in the lowest bits of the word *part*."""
    if dtype is HALF:
        return f"from_half(({part}) & 0xffffu)"
    if dtype is DType.BOOL:
        return f"((({part}) & 0xffu) != 0u)"
    if dtype in UNSIGNED:
        return f"(({part}) & {'0xffffu' if size_of(dtype) == 2 else '0xffu'})"
    return f"{'wrap16' if size_of(dtype) == 2 else 'wrap8'}(bitcast<i32>({part}))"


def bits(value: str, dtype: DType) -> str:
    """The bits of *value* in the lowest bits of a word, other bits 0."""
    if dtype is DType.BOOL:
        return f"select(0u, 1u, {value})"
    if dtype is HALF:
        return f"half_of({value})"
    word = value if variable(dtype) == "u32" else f"bitcast<u32>({value})"
    size = size_of(dtype)
    return word if size == 4 else f"({word} & {'0xffffu' if size == 2 else '0xffu'})"
