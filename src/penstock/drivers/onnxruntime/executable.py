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
        self._free: list[_Run] = []

    def run(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        """Runs once, in place where the arrays are aligned. After an error nothing is written any
        more.
        """
        if (reason := unusable()) is not None:
            raise DeadObject(reason)
        # Popping from and appending to a list are each one step to other threads.
        try:
            run = self._free.pop()
        except IndexError:
            run = _Run(self.session)
        run.execute(inputs, outputs, config)
        # One that failed is not used again.
        self._free.append(run)


class _Run:
    """One binding, and the memory it has of its own."""

    def __init__(self, session: Session) -> None:
        package = onnxruntime()
        self._run = session._sess.run_with_iobinding  # noqa: SLF001  # the public method sets up what is set up here
        self._binding = package.capi.onnxruntime_pybind11_state.SessionIOBinding(session._sess)  # noqa: SLF001
        place = package.capi.onnxruntime_pybind11_state.OrtDevice(0, 0, 0)
        self._inputs = [_Port(a, self._binding.bind_input, place) for a in session.get_inputs()]
        self._outputs = [_Port(a, self._binding.bind_output, place) for a in session.get_outputs()]
        self._options: Any = package.RunOptions

    def execute(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        copies: list[NDArray] = []
        late: list[tuple[NDArray, NDArray]] = []
        try:
            for port, array in zip(self._inputs, inputs, strict=True):
                address = array.__array_interface__["data"][0]
                if address != port.bound:
                    if address % port.alignment:
                        copies.append(array.copy())
                        address = address_of(copies[-1])
                    port.bind(address)
            for port, wanted in zip(self._outputs, outputs, strict=True):
                address = 0 if wanted is None else wanted.__array_interface__["data"][0]
                if address != port.bound or wanted is None:
                    if wanted is None or address % port.alignment:
                        own = port.own()
                        address = address_of(own)
                        if wanted is not None:
                            late.append((wanted, own))
                    port.bind(address)
            if config.deadline_ns is None and config.cancel is None:
                self._run(self._binding, None)
            else:
                self._run_watched(config)
        except (RuntimeError, ValueError, TypeError) as error:
            raise GeneralFailure(
                f"ONNX Runtime did not execute the model: {told(error)}"
            ) from error
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
    """One input or output of a session, and the address *bound* to it: memory that the caller holds
    during a run.
    """

    __slots__ = ("_call", "_dtype", "_name", "_own", "_place", "_shape", "alignment", "bound")

    def __init__(self, port: Any, bind: Any, place: Any) -> None:
        self._name, self._shape, self._place, self._call = port.name, list(port.shape), place, bind
        self._dtype = np.dtype(TYPES[port.type])
        self.alignment = self._dtype.alignment
        self.bound = -1
        self._own: NDArray | None = None

    def bind(self, address: int) -> None:
        """Lets the run read or write the memory at *address*."""
        self._call(self._name, self._place, self._dtype, self._shape, address)
        self.bound = address

    def own(self) -> NDArray:
        """Memory for a value that cannot go where it is wanted."""
        if self._own is None:
            self._own = np.empty(self._shape, self._dtype)
        return self._own


def address_of(array: NDArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
