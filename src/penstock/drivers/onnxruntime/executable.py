"""A session of ONNX Runtime with its bindings, safe from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from penstock.drivers.onnxruntime.engine import Session, onnxruntime, told, unusable
from penstock.errors import DeadObject, GeneralFailure, MissedDeadlineTransient
from penstock.hal import ExecutionConfig
from penstock.ir import NDArray

POLL_SECONDS: Final = 0.002
"""How often a run's watch looks at its deadline and its cancel token."""


class Executable:
    """*session*, for inputs and outputs of these element types and shapes, int8 ones as bytes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._free: list[_Run] = []

    def run(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        """Runs once, in place where the arrays are aligned. After an error nothing is written any more."""
        if (reason := unusable()) is not None:
            raise DeadObject(reason)
        with self._lock:
            run = self._free.pop() if self._free else None
        if run is None:
            run = _Run(self.session)
        run.execute(inputs, outputs, config)
        # One that failed is not used again.
        with self._lock:
            self._free.append(run)


class _Run:
    """One binding, and the memory it has of its own."""

    def __init__(self, session: Session) -> None:
        package = onnxruntime()
        self._run = session._sess.run_with_iobinding  # noqa: SLF001  # the public method sets up what is set up here
        self._binding = package.capi.onnxruntime_pybind11_state.SessionIOBinding(session._sess)  # noqa: SLF001
        place = package.capi.onnxruntime_pybind11_state.OrtDevice(0, 0, 0)
        self._inputs = [
            _Port(a, self._binding.bind_input, place) for a in session.get_inputs()
        ]
        self._outputs = [
            _Port(a, self._binding.bind_output, place) for a in session.get_outputs()
        ]
        self._options: Any = package.RunOptions

    def execute(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        late: list[tuple[NDArray, NDArray]] = []
        try:
            for port, array in zip(self._inputs, inputs, strict=True):
                port.bind(array if array.flags.aligned else array.copy())
            for port, wanted in zip(self._outputs, outputs, strict=True):
                if wanted is not None and wanted.flags.aligned:
                    port.bind(wanted)
                else:
                    port.bind(port.own())
                    if wanted is not None:
                        late.append((wanted, port.own()))
            if config.deadline_ns is None and config.cancel is None:
                self._run(self._binding, None)
            else:
                self._run_watched(config)
        except (RuntimeError, ValueError, TypeError) as error:
            raise GeneralFailure(f"ONNX Runtime did not execute the model: {told(error)}") from error
        for wanted, result in late:
            wanted[...] = result.view(wanted.dtype).reshape(wanted.shape)

    def _run_watched(self, config: ExecutionConfig) -> None:
        options = self._options()
        with _watched(options, config):
            try:
                self._run(self._binding, options)
            except Exception:
                if not options.terminate:
                    raise
        if options.terminate:
            if config.cancel is not None:
                config.cancel.check()
            raise MissedDeadlineTransient("the deadline passed while ONNX Runtime computed")


@contextmanager
def _watched(options: Any, config: ExecutionConfig) -> Iterator[None]:
    """Tells the run of *options* to end, between two nodes, once it is late or cancelled."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            late = config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns
            if late or (config.cancel is not None and config.cancel.is_set()):
                options.terminate = True
                return

    thread = threading.Thread(target=watch, name="penstock-onnxruntime-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Port:
    """One input or output of a session, and the address that it is bound to."""

    def __init__(self, port: Any, bind: Any, place: Any) -> None:
        self._name, self._shape, self._place, self._call = port.name, list(port.shape), place, bind
        self._dtype = np.dtype(TYPES[port.type])
        self._bound: int | None = None
        self._own: NDArray | None = None

    def bind(self, array: NDArray) -> None:
        """Lets the run read or write *array*'s memory, which the caller holds meanwhile."""
        address = array.ctypes.data
        if address != self._bound:
            self._call(self._name, self._place, self._dtype, self._shape, address)
            self._bound = address

    def own(self) -> NDArray:
        """Memory for a value that cannot go where it is wanted."""
        if self._own is None:
            self._own = np.empty(self._shape, self._dtype)
        return self._own


TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
