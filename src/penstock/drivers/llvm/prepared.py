"""Compiled models, and their runs: a frame, an arena and the addresses of the arguments."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock.driverkit.engine import check_limits
from penstock.driverkit.engine_model import EngineModel, Inputs, Outputs, RunPool
from penstock.drivers.llvm.artefact import Manifest
from penstock.drivers.llvm.frame import WHOLE, WORDS, Word
from penstock.drivers.llvm.load import Image
from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir import DType, NDArray

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
    """The code of one model, loaded: *image* is the code, *constants* what it reads.

    Runs hold it: the image is unmapped once the model is closed and the last run has ended.
    """

    def __init__(self, manifest: Manifest, image: Image, constants: NDArray) -> None:
        self.manifest = manifest
        self.constants = constants if address_of(constants) % ALIGNMENT == 0 else moved(constants)
        self._image = image
        self.entry = ENTRY(image.address("run"))
        self.process = os.getpid()

    def unusable(self) -> str | None:
        """Why this process cannot run the code: it was forked from the one that loaded it."""
        return None if self.process == os.getpid() else FORKED


class Run:
    """One frame with its arena, used by one caller at a time."""

    def __init__(self, code: Code) -> None:
        ports = code.manifest.ports
        computed = [
            p for p, source in zip(ports.outputs, ports.forwards, strict=True) if source < 0
        ]
        self._code, self._entry = code, code.entry
        self._given = len(ports.inputs)
        self._computed = computed
        self._unwanted: dict[int, NDArray] = {}
        self._ports: Any = (ctypes.c_uint64 * (self._given + len(computed)))()
        self._arena = aligned(code.manifest.arena)
        self._stop = np.zeros(1, np.int32)
        self._frame = frame = np.zeros(WORDS, np.uint64)
        frame[Word.PORTS] = ctypes.addressof(self._ports)
        frame[Word.ARENA] = address_of(self._arena)
        frame[Word.CONSTANTS] = address_of(code.constants)
        frame[Word.STOP] = address_of(self._stop)
        frame[Word.HIGH] = WHOLE
        frame[Word.THREADS] = frame[Word.IMAGES] = 1
        self._at = address_of(frame)

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """Runs once."""
        ports = self._ports
        at = 0
        for array in inputs:
            ports[at] = array.__array_interface__["data"][0]
            at += 1
        for wanted in outputs:
            array = self._room(at) if wanted is None else wanted
            ports[at] = array.__array_interface__["data"][0]
            at += 1
        if status := self._entry(self._at):
            raise GeneralFailure(f"the code ended with status {status}")
        if config.deadline_ns is not None or config.cancel is not None:
            check_limits(config)

    def _room(self, at: int) -> NDArray:
        """Memory for an output that the caller does not want."""
        if at not in self._unwanted:
            port = self._computed[at - self._given]
            self._unwanted[at] = np.empty(port.shape, DType(port.dtype).numpy)
        return self._unwanted[at]


class Executable(RunPool[Run]):
    """The runs of *code*."""

    def __init__(self, code: Code) -> None:
        super().__init__(lambda: Run(code), code.unusable)
        self.code = code


class LlvmPreparedModel(EngineModel[Executable]):
    """A model as code of the processor."""

    @property
    def kernels(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        """The template, the name and the operations of each kernel, in their order."""
        return () if self.executable is None else self.executable.code.manifest.kernels
