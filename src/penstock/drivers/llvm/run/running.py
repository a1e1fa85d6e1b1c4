"""Runs of loaded code: a frame, an arena and the addresses of the arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.driverkit.engine_model import Inputs, Outputs, RunPool
from penstock.drivers.llvm.frame import WHOLE, WORDS, Word
from penstock.drivers.llvm.run import stop
from penstock.drivers.llvm.run.addresses import address_of, aligned, pointer_at
from penstock.drivers.llvm.run.code import Code
from penstock.errors import DeadObject, GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir import DType, NDArray


class Run:
    """One frame with its arena, used by one caller at a time. Its *flag* stops it.

    *timed*: `times` has, after a run, the time stamps of its kernels.
    """

    def __init__(self, code: Code, *, timed: bool = False) -> None:
        ports = code.manifest.ports
        computed = [
            p for p, source in zip(ports.outputs, ports.forwards, strict=True) if source < 0
        ]
        self._code, self._entry = code, code.entry
        self._given = len(ports.inputs)
        self._computed = computed
        self._unwanted: dict[int, NDArray] = {}
        self._failures = code.manifest.failures
        self._flags = np.zeros(len(self._failures), np.bool_)
        places = self._given + len(computed)
        self._ports: Any = (ctypes.c_uint64 * (places + len(self._flags)))()
        for at in range(len(self._flags)):
            self._ports[places + at] = address_of(self._flags) + at
        self._arena = aligned(code.manifest.arena)
        self.flag = np.zeros(1, np.int32)
        self._is_brief = code.manifest.estimate_ns < stop.BRIEF_NS
        stamps = (len(code.manifest.kernels) + 1) * code.manifest.images
        self.times = np.zeros(stamps if timed else 0, np.int64)
        self.frame = frame = aligned(8 * WORDS).view(np.uint64)
        frame[...] = 0
        frame[Word.PORTS] = ctypes.addressof(self._ports)
        frame[Word.ARENA] = address_of(self._arena)
        frame[Word.CONSTANTS] = address_of(code.constants)
        frame[Word.STOP] = address_of(self.flag)
        frame[Word.TIMES] = address_of(self.times) if timed else 0
        frame[Word.TEAM] = code.team
        frame[Word.HIGH] = WHOLE
        frame[Word.THREADS] = code.threads
        frame[Word.IMAGES] = code.manifest.images
        self._at = address_of(frame)
        if code.faults is not None:
            code.faults.watch(self, frame, (Word.KERNEL, Word.ELSEWHERE))

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """Runs once. Raises `Cancelled` or `MissedDeadlineTransient` if it is stopped, and
        `GeneralFailure` if the inputs have no result; the next run is not affected.
        """
        wanted = [self._room(at) if array is None else array for at, array in enumerate(outputs)]
        if self._is_brief or (config.deadline_ns is None and config.cancel is None):
            self.compute(inputs, wanted)
            return
        self._bind(inputs, wanted)
        stop.enter(self.flag, config)
        try:
            status = self._entry(self._at)
        finally:
            stop.leave(self.flag)
            self.flag[0] = 0
        if status:
            stop.raise_reason(config)
        self._check_flags()

    def compute(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        """Runs once, without limits: writes all *outputs*."""
        # As `_bind`, which would be another call.
        ports, at = self._ports, 0
        for array in inputs:
            ports[at] = pointer_at(id(array)).value
            at += 1
        for array in outputs:
            ports[at] = pointer_at(id(array)).value
            at += 1
        if status := self._entry(self._at):
            raise GeneralFailure(f"the code ended with status {status}")
        if self._failures:
            self._check_flags()

    def _bind(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        for at, array in enumerate((*inputs, *outputs)):
            self._ports[at] = pointer_at(id(array)).value

    def _check_flags(self) -> None:
        if self._failures and self._flags.any():
            raise GeneralFailure(self._failures[int(self._flags.argmax())])

    def _room(self, at: int) -> NDArray:
        """Memory for output *at*, which the caller does not want."""
        if at not in self._unwanted:
            port = self._computed[at]
            self._unwanted[at] = np.empty(port.shape, DType(port.dtype).numpy)
        return self._unwanted[at]


class Executable(RunPool[Run]):
    """The runs of *code*."""

    def __init__(self, code: Code) -> None:
        super().__init__(lambda: Run(code), code.unusable)
        self.code = code

    def compute(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        """As `Run.compute`, of a free run. Raises `DeadObject` in a forked child."""
        if (reason := self.code.unusable()) is not None:
            raise DeadObject(reason)
        try:
            run = self._free.pop()
        except IndexError:
            run = self._make()
        run.compute(inputs, outputs)
        self._free.append(run)
