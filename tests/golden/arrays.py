"""Recorded arrays of a network, read one by one, with no file left open between. Small ones are
read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from penstock.ir import NDArray

LARGEST_KEPT: Final = 64 << 10
"""Bytes of an array that is read from its file once, for all engines and doors."""

_kept: Final[dict[tuple[Path, str], NDArray]] = {}


class Golden(Mapping[str, NDArray]):
    """The arrays of an .npz file by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with np.load(path, allow_pickle=False) as file:
            self._names = tuple(file.files)

    def __getitem__(self, name: str) -> NDArray:
        key = self._path, name
        if key in _kept:
            return _kept[key].copy()
        with np.load(self._path, allow_pickle=False) as file:
            array: NDArray = file[name]
        if array.nbytes <= LARGEST_KEPT:
            _kept[key] = array.copy()
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def golden(path: Path) -> Golden:
    """The recorded arrays at *path*."""
    return Golden(path)
