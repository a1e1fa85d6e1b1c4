"""Runs of loaded code: a frame, an arena and the addresses of the arguments."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakSet

import numpy as np

from penstock.driverkit.artefact import Ports
from penstock.driverkit.engine_model import Inputs, Outputs, RunPool
from penstock.drivers.llvm.frame import SLOT_BYTES, WHOLE, WORDS, Word
from penstock.drivers.llvm.run.addresses import OBJECT_HEAD, address_of, aligned, port_of
from penstock.drivers.llvm.run.code import FORKED, Code, forks_so_far
from penstock.errors import DeadObject, GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir import DType, NDArray

BRIEF_NS: Final = 250_000
"""Runs that are estimated to be shorter are not stopped: they end within the period of the thread
that stops others.
"""


class Run:
    """One frame with its arena, used by one caller at a time. Its *flag* stops it.

    *timed*: `times` has, after a run, the time stamps of its kernels.
    """

    def __init__(self, code: Code, *, timed: bool = False) -> None:
        ports = code.manifest.ports
        computed = [
            p for p, source in zip(ports.outputs, ports.forwards, strict=True) if source < 0
        ]
        self._code, self.entry = code, code.entry
        self._given = len(ports.inputs)
        self._computed = computed
        self._unwanted: dict[int, NDArray] = {}
        self.failures = code.manifest.failures
        # To look for a true one takes a twentieth of the time that `any` of an array takes.
        self._flags = bytearray(len(self.failures))
        flags = np.frombuffer(self._flags, np.bool_)
        places = self._given + len(computed)
        self.ports: Any = (ctypes.c_uint64 * (places + len(flags)))()
        self._flag_arrays = [flags[at : at + 1] for at in range(len(flags))]
        for at, array in enumerate(self._flag_arrays):
            self.ports[places + at] = port_of(array)
        self._arena = aligned(code.manifest.arena)
        self.flag = np.zeros(1, np.int32)
        self._is_brief = code.manifest.estimate_ns < BRIEF_NS
        stamps = (len(code.manifest.kernels) + 1) * code.manifest.images
        self.times = np.zeros(stamps if timed else 0, np.int64)
        self.frame = frame = aligned(8 * WORDS).view(np.uint64)
        frame[...] = 0
        frame[Word.PORTS] = ctypes.addressof(self.ports)
        frame[Word.ARENA] = address_of(self._arena)
        frame[Word.CONSTANTS] = address_of(code.constants)
        frame[Word.STOP] = address_of(self.flag)
        frame[Word.TIMES] = address_of(self.times) if timed else 0
        frame[Word.TEAM] = code.team
        room = SLOT_BYTES * len(code.manifest.kernels) * code.manifest.images
        self._slots = aligned(room if code.team else 0)
        frame[Word.SLOTS] = address_of(self._slots)
        frame[Word.HIGH] = WHOLE
        frame[Word.THREADS] = code.threads
        frame[Word.IMAGES] = code.manifest.images
        frame[Word.HEAD] = OBJECT_HEAD
        self.at = address_of(frame)
        if code.faults is not None:
            code.faults.watch(self, frame, (Word.KERNEL, Word.ELSEWHERE))

    def run(self, inputs: Inputs, outputs: Outputs, config: ExecutionConfig) -> None:
        """Runs once. Raises `Cancelled` or `MissedDeadlineTransient` if it is stopped, and
        `GeneralFailure` if the inputs have no result; the next run is not affected.
        """
        wanted = [self._room(at) if array is None else array for at, array in enumerate(outputs)]
        self._bind(inputs, wanted)
        if self._is_brief or (config.deadline_ns is None and config.cancel is None):
            self.execute()
            return
        # Not imported for models that run without limits: they start sooner.
        from penstock.drivers.llvm.run import stop

        stop.enter(self.flag, config)
        try:
            status = self.entry(self.at)
        finally:
            stop.leave(self.flag)
            self.flag[0] = 0
        if status:
            stop.raise_reason(config)
        self._check_flags()

    def execute(self) -> None:
        """Executes the code, without limits, for the arrays that `ports` points to."""
        self.check(self.entry(self.at))

    def check(self, status: int) -> None:
        """Raises `GeneralFailure` for another *status* than 0, and for a flag that is true."""
        if status:
            raise GeneralFailure(f"the code ended with status {status}")
        self._check_flags()

    def _bind(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        for at, array in enumerate((*inputs, *outputs)):
            self.ports[at] = port_of(array)

    def _check_flags(self) -> None:
        if (at := self._flags.find(1)) >= 0:
            raise GeneralFailure(self.failures[at])

    def _room(self, at: int) -> NDArray:
        """Memory for output *at*, which the caller does not want."""
        if at not in self._unwanted:
            port = self._computed[at]
            self._unwanted[at] = np.empty(port.shape, DType(port.dtype).numpy)
        return self._unwanted[at]


Compute: TypeAlias = Callable[[Sequence[NDArray], Sequence[NDArray]], None]


class Executable(RunPool[Run]):
    """The runs of *code*."""

    def __init__(self, code: Code) -> None:
        super().__init__(lambda: Run(code), code.unusable)
        self.code = code
        self._makers = [self._make]
        self.compute = _compute_of(self._free, self._makers, code.manifest.ports)
        """Runs once, without limits: `compute(inputs, outputs)`. Raises `DeadObject` in a forked
        child, `GeneralFailure` once `let_go` was called.
        """
        _live.add(self)

    def let_go(self) -> None:
        """Makes `compute` let go of the code, at the end of its last run."""
        self._makers.clear()
        self._free.clear()


_live: Final[WeakSet[Executable]] = WeakSet()


def _let_go_of_all() -> None:
    """Ends every `compute` in a forked child, so that none has to look at each run."""
    for executable in list(_live):
        executable.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_all)


def _compute_of(free: list[Run], makers: list[Callable[[], Run]], shown: Ports) -> Compute:
    """A function and not methods: a small network takes less time than three calls. Whoever keeps
    it does not keep the code.
    """
    port, forks = port_of, forks_so_far()

    def another() -> Run:
        if forks_so_far() != forks:
            raise DeadObject(FORKED)
        if not makers:
            raise GeneralFailure("the prepared model is closed")
        return makers[0]()

    def compute(inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        # `pop` and `append` of a list are atomic.
        try:
            run = free.pop()
        except IndexError:
            run = another()
        ports, at = run.ports, 0
        for array in inputs:
            ports[at] = port(array)
            at += 1
        for array in outputs:
            ports[at] = port(array)
            at += 1
        # `execute` in place, which saves a call.
        if (status := run.entry(run.at)) or run.failures:
            run.check(status)
        free.append(run)
        if not makers:
            free.clear()

    def compute_one(inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        """As `compute`, of one input and one output: without loops."""
        try:
            run = free.pop()
        except IndexError:
            run = another()
        ports = run.ports
        ports[0] = port(inputs[0])
        ports[1] = port(outputs[0])
        if (status := run.entry(run.at)) or run.failures:
            run.check(status)
        free.append(run)
        if not makers:
            free.clear()

    return compute_one if len(shown.inputs) == len(shown.outputs) == 1 else compute
