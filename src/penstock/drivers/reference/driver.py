"""The reference device computes every operation in NumPy; correctness comes before speed. Other
drivers are compared with it, and it is the fallback for all of them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock import hal
from penstock.driverkit.installation import files_of
from penstock.driverkit.request_arrays import input_arrays, mapped_pools, write_results
from penstock.drivers.reference.blas import SINGLE_THREAD, may_divide
from penstock.drivers.reference.kernel import EXECUTION, LATE, Kernel, Unsupported
from penstock.drivers.reference.program import (
    Entered,
    Program,
    compile_entered,
    compile_subgraph,
    examine,
)
from penstock.errors import GeneralFailure, MissedDeadlineTransient
from penstock.interrupts import interruptible, polled
from penstock.ir import Model
from penstock.ir.rounding import sums_of_options

if TYPE_CHECKING:
    from penstock.hal import Buffer, BufferDesc, BufferRole
    from penstock.memory.domain import Claim, MemoryDomain

RULES: Final = (
    "driverkit", "drivers/reference", "drivers/reference/detection", "drivers/reference/elements",
    "drivers/reference/layers", "drivers/reference/numerics", "drivers/reference/recurrent",
    "drivers/reference/stablehlo", "drivers/reference/structure", "ir",
)  # fmt: skip
"""The folders whose code decides which operations are supported."""

NOTHING: Final = nullcontext()
NO_POOLS: Final = nullcontext[list[np.ndarray]]([])


class ReferenceDevice(hal.DeviceBase):
    """One thread of a CPU, through NumPy, whatever `num_threads` is. Every result is of the class
    `exact`. Its buffers may have unknown size and rank.
    """

    name = "reference"
    version = f"1 (numpy {np.__version__})"
    type = hal.DeviceType.CPU

    # `supported_operations` caches its kernels for the `prepare_model` that usually follows.
    _examined: tuple[weakref.ref[Model], list[Kernel | str], Entered] | None = None

    def __init__(self) -> None:
        if type(self) is ReferenceDevice:  # a derived class may answer otherwise
            self.capabilities = hal.Capabilities(support_basis=files_of(RULES))
        self.domain: MemoryDomain | None = None
        self._lock = threading.Lock()

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        entered = compile_entered(model, model.main)
        kernels = examine(model, model.main, entered)
        self._examined = weakref.ref(model, self._forget), kernels, entered
        answers = [
            hal.Support(supported=False, reason=kernel, accuracy="exact")
            if isinstance(kernel, str)
            else hal.Support(supported=True, accuracy="exact")
            for kernel in kernels
        ]
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> PreparedReference:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        if config.cancel is not None:
            config.cancel.check()
        examined, self._examined = self._examined, None
        outputs = model.entry.outputs
        later = {
            outputs[at]: s for at, s in sums_of_options(config.options).items() if at < len(outputs)
        }
        if examined is not None and examined[0]() is model and not later:
            kernels, entered = examined[1:]
        else:
            entered = compile_entered(model, model.main)
            kernels = examine(model, model.main, entered, later)
        try:
            program = compile_subgraph(model, model.main, kernels)
        except Unsupported as refusal:
            raise GeneralFailure(str(refusal)) from refusal
        with np.errstate(all="ignore"):
            for prepare in polled(entered.preparations):
                prepare()
        return PreparedReference(self, model, program)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        with self._lock:
            if self.domain is None:
                from penstock.memory.domain import MemoryDomain

                self.domain = MemoryDomain(self._interface_of)
        return self.domain.allocate(desc, roles)

    def _interface_of(self, prepared: Any) -> Model | None:
        own = isinstance(prepared, PreparedReference) and prepared.device is self
        return prepared.model if own else None

    def _forget(self, reference: weakref.ref[Model]) -> None:
        examined = self._examined
        if examined is not None and examined[0] is reference:
            self._examined = None


class PreparedReference(hal.PreparedModelBase):
    """A program, with its source model."""

    def __init__(self, device: ReferenceDevice, model: Model, program: Program) -> None:
        self.device, self.model, self._program = device, model, program
        entry = model.entry
        self._inputs = [entry.operands[i] for i in entry.inputs]
        self._outputs = [entry.operands[i] for i in entry.outputs]
        self._products: AbstractContextManager[None] = NOTHING
        if may_divide(model):
            SINGLE_THREAD.find()
            self._products = SINGLE_THREAD

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        began = time.perf_counter_ns()
        hal.validate_request(self.model, request, config)
        claims: AbstractContextManager[Claim | None] = NOTHING
        if (domain := self.device.domain) is not None:
            from penstock.memory.domain import has_tokens

            if has_tokens(request):
                claims = domain.claim(self, request)
        pools: AbstractContextManager[list[np.ndarray]] = NO_POOLS
        if request.pools:
            pools = mapped_pools(request)
        with claims as claim, pools as regions:
            inputs = input_arrays(request, self._inputs, regions, claim, copy_integers=True)
            clock: list[int] | None = [] if config.measure else None
            limits: AbstractContextManager[None] = NOTHING
            if config.deadline_ns is not None or config.cancel is not None:
                # Loops inside a kernel check deadline and cancellation too.
                deadline, cancel = config.deadline_ns, config.cancel
                limits = interruptible(deadline, cancel, MissedDeadlineTransient, LATE)
            token = EXECUTION.set(config)
            try:
                with self._products, limits:
                    results = self._program.run(inputs, config, clock)
            finally:
                EXECUTION.reset(token)
            nanoseconds = time.perf_counter_ns() - began
            shapes = write_results(request, self._outputs, results, regions, claim, inputs)
        timing = hal.Timing(None, nanoseconds, self._operations(clock, began))
        return hal.ExecutionResult(shapes, timing)

    def _operations(self, clock: list[int] | None, began: int) -> tuple[hal.OperationTiming, ...]:
        """The time of each operation, from the *clock* of `Program.run`."""
        times = zip(self.model.operations, pairwise(clock or ()), strict=bool(clock))
        return tuple(
            hal.OperationTiming((at,), operation.key, start - began, end - start)
            for at, (operation, (start, end)) in enumerate(times)
        )
