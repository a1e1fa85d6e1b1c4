"""Puts the inputs of several requests into one run, and takes their outputs apart."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from penstock.hal import CancelToken
from penstock.ir import NDArray, Operand


def is_open(operands: Sequence[Operand]) -> bool:
    """Whether the first dimension of every operand is unknown: the batch."""
    return bool(operands) and all(o.shape and o.shape[0] is None for o in operands)


def rows_of(arrays: Mapping[str, NDArray]) -> int | None:
    """The batch that all *arrays* have in common; None if there is none."""
    found = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    return found.pop() if len(found) == 1 and 0 not in found else None


def key_of(arrays: Mapping[str, NDArray]) -> Hashable:
    """Equal for inputs whose dimensions behind the batch are equal."""
    return tuple((name, array.shape[1:]) for name, array in sorted(arrays.items()))


def joined(requests: Sequence[Mapping[str, NDArray]]) -> dict[str, NDArray]:
    """The inputs of all *requests* behind each other."""
    first = requests[0]
    if len(requests) == 1:
        return dict(first)
    return {name: np.concatenate([each[name] for each in requests]) for name in first}


def divided(outputs: Mapping[str, NDArray], rows: Sequence[int]) -> list[dict[str, NDArray]] | None:
    """The outputs of each request, with as many *rows* as its inputs; None if an output has no
    row for each row of the inputs.
    """
    total = sum(rows)
    if any(not array.ndim or array.shape[0] != total for array in outputs.values()):
        return None
    parts, begin = [], 0
    for count in rows:
        parts.append({name: array[begin : begin + count] for name, array in outputs.items()})
        begin += count
    return parts


class AllTokens(CancelToken):
    """A token that is set once all *tokens* are: a batch ends if none of its requests is left."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: Sequence[CancelToken]) -> None:
        super().__init__()
        self._tokens = tuple(tokens)

    def is_set(self) -> bool:
        return super().is_set() or all(token.is_set() for token in self._tokens)

    def check(self) -> None:
        if self.is_set():
            self.set()
        super().check()
