"""Whether Penstock showed what LiteRT showed.

Values, types and warnings are equal; floats within float32 rounding. An exception is of LiteRT's
type or derived from it, and says LiteRT's words, alone or with Penstock's after them; where
LiteRT's words are about its own insides (a source file, a C++ signature, a kernel library),
Penstock says the same in its own. LiteRT keeps the texts of earlier failures and puts them before
the next one: its last words are compared.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

INSIDES: Final = re.compile(
    r"\w+\.(cc|h)\b|incompatible function arguments|XNNPack|pywrap|mmap|Mmap"
    r"|has invalid quantization parameters|opcode_index|builtin_code out of range|out of range "
    r"buffer"
    r"|Unsupported data type|shared object|ELF header|file too short"
)
"""Texts that no program can match on: they name LiteRT's files, functions and libraries, a defect
that the loaders describe, or the words of the system's linker.
"""

TOLERANCE: Final = 2e-6


def difference(wanted: Any, got: Any, place: str = "result") -> str | None:
    """Where and how two observations differ, or None."""
    if isinstance(wanted, dict) and isinstance(got, dict) and wanted.keys() == got.keys():
        if "raised" in wanted:
            return _errors_differ(wanted, got, place)
        if wanted.get("array", wanted.get("scalar")) == got.get("array", got.get("scalar")) and (
            "array" in wanted or "scalar" in wanted
        ):
            return _arrays_differ(wanted, got, place)
        differences = (difference(wanted[k], got[k], place) for k in wanted)
        return next((d for d in differences if d), None)
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        differences = (
            difference(w, g, f"{place}[{k}]")
            for k, (w, g) in enumerate(zip(wanted, got, strict=True))
        )
        return next((d for d in differences if d), None)
    return None if wanted == got else f"{place}: LiteRT {wanted!r}, Penstock {got!r}"


def _errors_differ(wanted: dict[str, Any], got: dict[str, Any], place: str) -> str | None:
    kind, said, ours = wanted["raised"][0], wanted["message"].strip(), got["message"].strip()
    if kind not in got["raised"]:
        return f"{place}: LiteRT raised {kind} ({said}), Penstock {got['raised'][0]} ({ours})"
    if not ours:
        return f"{place}: Penstock's {got['raised'][0]} says nothing"
    if INSIDES.search(said) or _says(ours, said):
        return None
    return f"{place}: {kind} says {said!r}, Penstock's {got['raised'][0]} {ours!r}"


def _says(ours: str, said: str) -> bool:
    """Whether Penstock says what LiteRT said last, and perhaps more after it."""
    lines = ours.splitlines()
    heads = ("\n".join(lines[: k + 1]) for k in range(len(lines)))
    return ours.startswith(said) or any(said.endswith(head) for head in heads)


def _arrays_differ(wanted: dict[str, Any], got: dict[str, Any], place: str) -> str | None:
    if wanted == got:
        return None
    kind = np.dtype(wanted.get("array", wanted.get("scalar"))).kind
    if kind in "fc" and wanted.get("shape") == got.get("shape"):
        a, b = (
            np.array([complex(v) for v in side["values" if "values" in side else "value"]])
            for side in (wanted, got)
        )
        if np.allclose(a, b, rtol=TOLERANCE, atol=0, equal_nan=True):
            return None
    return f"{place}: LiteRT {wanted!r}, Penstock {got!r}"
