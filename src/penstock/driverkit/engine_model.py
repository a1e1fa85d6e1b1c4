"""`EngineModel`: a model that an engine has compiled, as a prepared model of `penstock.hal`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from penstock import hal
from penstock.driverkit.artefact import Ports, interface_of
from penstock.driverkit.host_buffers import HostBuffers, lent_arrays
from penstock.errors import DeadObject, DriverError, GeneralFailure
from penstock.ir import Model, NDArray
from penstock.logs import Log

log = Log(__name__)

Inputs: TypeAlias = Sequence[NDArray]
Outputs: TypeAlias = Sequence[NDArray | None]
Copies: TypeAlias = Sequence[hal.ArgumentCopy] | None
"""The copies between the host's memory and the device's that an engine made, if it made any. Their
arguments are numbers of the inputs and outputs that it was given.
"""


class Runnable(Protocol):
    """An object of the engine that runs a model, from any thread.

    *outputs* has an array for each output that the engine computes, or None if the caller does not
    want that output.
    """

    def run(self, inputs: Inputs, outputs: Outputs, config: hal.ExecutionConfig) -> Copies:
        """Runs once. If it raises, the engine does not write to *outputs* any more, and the error's
        `copies` are those made before.
        """


class MeasuredRun(Runnable, Protocol):
    """The executable of one measured run, with the times of the engine's kernels."""

    duration_ns: int
    timings: tuple[hal.OperationTiming, ...]


M = TypeVar("M")


class Profiler(Generic[M]):
    """Measures at most *most* executions of one executable. Thread-safe.

    *prepare* makes, before the first of them, what all of them need. *begin* gets it, the time when
    the execution began, and whether it is the first. After an error of either no further execution
    is measured.
    """

    def __init__(
        self,
        prepare: Callable[[], M],
        begin: Callable[[M, int, bool], MeasuredRun],
        most: float = math.inf,
    ) -> None:
        self._prepare, self._begin, self._left = prepare, begin, most
        self._lock = threading.Lock()
        self._prepared: M | None = None

    def start(self, began_ns: int) -> MeasuredRun | None:
        """The executable of the execution that began at *began_ns*; None: it is not measured."""
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
            try:
                if is_first := self._prepared is None:
                    self._prepared = self._prepare()
                return self._begin(self._prepared, began_ns, is_first)
            except (DriverError, OSError) as error:
                log.debug("no kernels are measured: %s", error)
                self._left = 0
                return None


R = TypeVar("R", bound=Runnable)
T = TypeVar("T")


class RunPool(Generic[R]):
    """A `Runnable` that keeps a free list of runs of one compiled model, each with its memory
    bindings and for one caller at a time. *make* creates a run. Thread-safe.

    A run that failed is not used again. *unusable* returns the reason why the process can no longer
    use the engine.
    """

    def __init__(self, make: Callable[[], R], unusable: Callable[[], str | None]) -> None:
        self._make, self._unusable = make, unusable
        self._free: list[R] = []

    def run(
        self,
        inputs: Inputs,
        outputs: Outputs,
        config: hal.ExecutionConfig,
        after: Callable[[R], None] | None = None,
    ) -> Copies:
        """Runs once, then calls *after* with the run. Raises `DeadObject` in a forked child."""
        run = self._taken()
        copies = run.run(inputs, outputs, config)
        if after is not None:
            after(run)
        self._free.append(run)
        return copies

    def call(self, function: Callable[[R], T]) -> T:
        """The result of *function* for a run. Raises `DeadObject` in a forked child."""
        run = self._taken()
        result = function(run)
        self._free.append(run)
        return result

    def _taken(self) -> R:
        if (reason := self._unusable()) is not None:
            raise DeadObject(reason)
        # `pop` and `append` of a list are atomic.
        try:
            return self._free.pop()
        except IndexError:
            return self._make()


E = TypeVar("E", bound=Runnable)


class EngineModel(hal.PreparedModelBase, Generic[E]):
    """The prepared model of *executable*, with the inputs and outputs of *ports*.

    The model copies outputs that are also inputs, because an engine would give both the same
    memory. *profilers* makes the profilers of an executable. A subclass that compiles later
    overrides `current` and `after_run`.
    """

    loops = False
    device: HostBuffers

    def __init__(
        self,
        device: HostBuffers,
        ports: Ports,
        report: hal.CacheReport,
        executable: E | None,
        profilers: Callable[[E], Profiler[Any]] | None = None,
    ) -> None:
        # Requests are checked against the ports alone: a model from the cache has no graph.
        self.model = cast("Model", interface_of(ports))
        self.device = device
        self.report, self.executable, self.closed = report, executable, False
        self._forwards = [(k, i) for k, i in enumerate(ports.forwards) if i >= 0]
        self._computed = [k for k, i in enumerate(ports.forwards) if i < 0]
        self._profilers = profilers
        self._profiler: tuple[E, Profiler[Any]] | None = None

    @property
    def cache_report(self) -> hal.CacheReport:  # type: ignore[override]  # a late write changes it
        return self.report

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        began = time.perf_counter_ns()
        hal.validate_request(self.model, request, config)
        if config.cancel is not None:
            config.cancel.check()
        executable = self.current(config)
        measured = self._measured(executable, began) if config.measure else None
        copies = self.run_request(measured or executable, request, config)
        if not config.measure:
            self.after_run(config)
            return hal.ExecutionResult(copies=tuple(copies)) if copies else hal.DONE
        spent = time.perf_counter_ns() - began
        self.after_run(config)
        timing = hal.Timing(None, spent)
        if measured is not None:
            timing = hal.Timing(None, measured.duration_ns, measured.timings)
        return hal.ExecutionResult((), timing, tuple(copies or ()))

    def run_request(
        self, executable: Runnable, request: hal.Request, config: hal.ExecutionConfig
    ) -> Copies:
        """Runs *executable* on the arguments of *request*, which was validated."""
        given, wanted = lent_arrays(request.inputs), lent_arrays(request.outputs)
        if given is not None and wanted is not None:
            return self._run(executable, given, wanted, config)
        from penstock.driverkit.request_arrays import bound_arrays

        with ExitStack() as held:
            claim = held.enter_context(self.device.claimed(self, request))
            inputs, outputs = held.enter_context(bound_arrays(request, self.model.entry, claim))
            return self._run(executable, inputs, outputs, config)

    def current(self, config: hal.ExecutionConfig) -> E:
        """The executable of the next run. Raises `GeneralFailure` once the model is closed."""
        if self.closed or self.executable is None:
            raise GeneralFailure("the prepared model is closed")
        return self.executable

    def after_run(self, config: hal.ExecutionConfig) -> None:
        """Called after the outputs of an execution are written."""

    def forward(self, source: NDArray, target: NDArray) -> bool | None:
        """Copies an input to an output that forwards it. Returns whether the value left the
        device's memory; None if it stayed in the device's or in the host's. A device whose
        `make_domain` makes other memory overrides this: either may be a value of a device buffer.
        """
        target[...] = source
        return None

    def close(self) -> None:
        self.closed, self.executable, self._profiler = True, None, None

    def _run(
        self, executable: Runnable, inputs: Inputs, outputs: Outputs, config: hal.ExecutionConfig
    ) -> Copies:
        if not self._forwards:
            return executable.run(inputs, outputs, config) if outputs else None
        copies: list[hal.ArgumentCopy] = []
        for output, source in self._forwards:
            target = outputs[output]
            if target is None:
                continue
            began = time.perf_counter_ns()
            if (out := self.forward(inputs[source], target)) is not None:
                copies.append(copied(output if out else source, target.nbytes, began, out=out))
        if wanted := [outputs[k] for k in self._computed]:
            try:
                copies += self._renumbered(executable.run(inputs, wanted, config))
            except DriverError as error:
                error.copies = (*copies, *self._renumbered(error.copies))
                raise
        return copies

    def _renumbered(self, copies: Copies) -> list[hal.ArgumentCopy]:
        """*copies* of an executable, by the numbers of the model's inputs and outputs."""
        return [
            replace(c, argument=self._computed[c.argument]) if c.out else c for c in copies or ()
        ]

    def _measured(self, executable: E, began_ns: int) -> MeasuredRun | None:
        if self._profilers is None or not self._computed:
            return None
        if self._profiler is None or self._profiler[0] is not executable:
            self._profiler = executable, self._profilers(executable)
        return self._profiler[1].start(began_ns)


def copied(argument: int, nbytes: int, began_ns: int, *, out: bool) -> hal.ArgumentCopy:
    """A copy by a driver that began at *began_ns* and has just ended."""
    spent = time.perf_counter_ns() - began_ns
    return hal.ArgumentCopy(argument, out, nbytes, began_ns, spent, by_driver=True)
