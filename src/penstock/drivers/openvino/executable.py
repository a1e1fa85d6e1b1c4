"""A compiled model of OpenVINO with its infer requests, safe from any thread."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from penstock.drivers.openvino.engine import CompiledModel, openvino, told, unusable
from penstock.errors import DeadObject, GeneralFailure, MissedDeadlineTransient
from penstock.hal import ExecutionConfig
from penstock.ir import NDArray

POLL_MS: Final = 2
"""How often a run looks at its deadline and its cancel token."""


class Executable:
    """*compiled*, and what it reads as long as it lives: *keep*. *exported* are the bytes that it
    was imported from: OpenVINO does not read what it exports of such a model.
    """

    def __init__(
        self, compiled: CompiledModel, keep: object = None, exported: NDArray | None = None
    ) -> None:
        self.compiled, self.exported = compiled, exported
        self._keep = keep
        self._lock = threading.Lock()
        self._free: list[_Run] = []

    def run(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
        profile: Callable[[Iterable[Any]], None] | None = None,
    ) -> None:
        """Runs once, in place where the arrays are aligned. After an error nothing is written any
        more. *profile* is told what OpenVINO has counted.
        """
        if (reason := unusable()) is not None:
            raise DeadObject(reason)
        with self._lock:
            run = self._free.pop() if self._free else None
        if run is None:
            run = _Run(self.compiled)
        run.execute(inputs, outputs, config)
        if profile is not None:
            profile(run.profile())
        # One that failed is not used again.
        with self._lock:
            self._free.append(run)


class _Run:
    """One infer request and the memory it has of its own."""

    def __init__(self, compiled: CompiledModel) -> None:
        try:
            self._request: Any = compiled.create_infer_request()
            self._inputs = [_Port(p, self._request.set_input_tensor) for p in compiled.inputs]
            self._outputs = [_Port(p, self._request.set_output_tensor) for p in compiled.outputs]
        except Exception as error:
            raise GeneralFailure(f"OpenVINO made no infer request: {told(error)}") from error

    def execute(
        self,
        inputs: Sequence[NDArray],
        outputs: Sequence[NDArray | None],
        config: ExecutionConfig,
    ) -> None:
        given = [array if array.flags.aligned else array.copy() for array in inputs]
        results = [
            wanted if wanted is not None and wanted.flags.aligned else port.own()
            for port, wanted in zip(self._outputs, outputs, strict=True)
        ]
        try:
            for index, (port, array) in enumerate(zip(self._inputs, given, strict=True)):
                port.bind(index, array)
            for index, (port, array) in enumerate(zip(self._outputs, results, strict=True)):
                port.bind(index, array)
            self._run(config)
        except RuntimeError as error:
            raise GeneralFailure(f"OpenVINO did not execute the model: {told(error)}") from error
        for wanted, result in zip(outputs, results, strict=True):
            if wanted is not None and wanted is not result:
                wanted[...] = result

    def profile(self) -> list[Any]:
        """What OpenVINO has counted of the kernels, in the order they run."""
        return list(self._request.get_profiling_info())

    def _run(self, config: ExecutionConfig) -> None:
        if config.deadline_ns is None and config.cancel is None:
            self._request.infer(share_outputs=True)
            return
        self._request.start_async()
        while not self._request.wait_for(POLL_MS):
            late = config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns
            if late or (config.cancel is not None and config.cancel.is_set()):
                self._stop()
                if config.cancel is not None:
                    config.cancel.check()
                raise MissedDeadlineTransient("the deadline passed while OpenVINO computed")

    def _stop(self) -> None:
        """Ends the run: when this returns, OpenVINO writes nothing any more."""
        self._request.cancel()
        try:
            self._request.wait()
        except RuntimeError:
            return


class _Port:
    """One input or output of an infer request, and the address that it is bound to.

    What a tensor is made of lives as long as the request is bound to it, so tensors are made of
    addresses: the caller's memory is his own again when a run is over, and each run binds every
    port anew.
    """

    def __init__(self, port: Any, bind: Any) -> None:
        package = openvino()
        self._tensor, self._bind = package.Tensor, bind
        self._type, self._shape = port.element_type, package.Shape(list(port.shape))
        self._dtype = np.dtype(port.element_type.to_dtype())
        self._memory = ctypes.c_char * (math.prod(port.shape) * self._dtype.itemsize)
        self._bound: int | None = None
        self._own: NDArray | None = None

    def bind(self, index: int, array: NDArray) -> None:
        """Lets the request read or write *array*'s memory, which the caller holds during the run."""
        address = array.ctypes.data
        if address != self._bound:
            memory = np.frombuffer(self._memory.from_address(address), np.uint8)
            self._bind(index, self._tensor(memory, self._shape, self._type))
            self._bound = address

    def own(self) -> NDArray:
        """Memory for a value that cannot go where it is wanted."""
        if self._own is None:
            self._own = np.empty(list(self._shape), self._dtype)
        return self._own
