"""Loaded code: what all runs of one model share."""

from __future__ import annotations

import ctypes
import os
from typing import Final

import numpy as np

from penstock.drivers.llvm.artefact import Manifest
from penstock.drivers.llvm.load import Image
from penstock.drivers.llvm.run import team
from penstock.ir import NDArray

ALIGNMENT: Final = 64
FORKED: Final = "the model was prepared before this process was forked; compile it again"

ENTRY: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


def aligned(size: int) -> NDArray:
    """Fresh bytes, aligned for vector instructions."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -address_of(room) % ALIGNMENT
    return room[start : start + size]


def moved(array: NDArray) -> NDArray:
    """A copy of bytes, aligned."""
    copy = aligned(array.nbytes)
    copy[...] = array
    return copy


def address_of(array: NDArray) -> int:
    """The address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


class Code:
    """The code of one model, loaded: *image* is the code, *constants* what it reads. Up to
    *threads* threads execute a run.

    Runs hold it: the image is unmapped once the model is closed and the last run has ended, and
    once no thread of the team is in it.
    """

    def __init__(
        self, manifest: Manifest, image: Image, constants: NDArray, threads: int = 1
    ) -> None:
        self.manifest = manifest
        self.constants = constants if address_of(constants) % ALIGNMENT == 0 else moved(constants)
        self.image = image
        self.entry = ENTRY(image.address("run"))
        self.process = os.getpid()
        self.threads = min(threads, team.MOST_THREADS) if manifest.shared else 1
        self._member = team.join(image, self.threads) if self.threads > 1 else None

    @property
    def team(self) -> int:
        """The address of the team; 0 for none."""
        return 0 if self._member is None else self._member.address

    def unusable(self) -> str | None:
        """Why this process cannot run the code: it was forked from the one that loaded it."""
        return None if self.process == os.getpid() else FORKED

    def __del__(self) -> None:
        if (member := getattr(self, "_member", None)) is not None:
            member.leave()
