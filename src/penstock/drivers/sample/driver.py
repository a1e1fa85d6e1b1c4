"""A small driver, to be read from top to bottom: a device, what it supports, and a prepared model.

It sees pools only, as the drivers of NNAPI do, and maps them by name on every run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.drivers.sample.kernels import KERNELS, support
from penstock.drivers.sample.program import decode, encode
from penstock.errors import (
    CacheError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
    OutputInsufficientSize,
)
from penstock.hal import (
    NO_TIMING,
    CacheReport,
    Capabilities,
    DeviceBase,
    DeviceType,
    ExecutionConfig,
    ExecutionResult,
    NoValue,
    OutputShape,
    PerformanceInfo,
    PoolArgument,
    PrepareConfig,
    PreparedModelBase,
    Request,
    RequestArgument,
    Support,
    Timing,
    TokenArgument,
    refuse_unmapped,
    validate_prepare,
    validate_prepare_config,
    validate_request,
    validate_support,
)
from penstock.ir import Model, NDArray
from penstock.memory import map_memory
from penstock.sealed import Seal

if TYPE_CHECKING:
    from penstock.hal import Buffer, BufferDesc, BufferRole
    from penstock.memory.domain import Claim, MemoryDomain


class SampleDevice(DeviceBase):
    """ADD, MUL, RELU and FULLY_CONNECTED in float32. Used only when it is named.

    What it prepares it keeps in a model file and a data file, sealed by *seal*. Its buffers are of
    known size.
    """

    name = "sample"
    version = f"1 (numpy {np.__version__})"
    type = DeviceType.CPU
    capabilities = Capabilities(
        performance={"float32": PerformanceInfo(execution_time=1.5, power_usage=1.5)},
        default_performance=None,
        accepts_host_memory=False,
        only_when_named=True,
    )

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal or Seal(self.name, self.version, files=self.cache_files_needed())
        self.domain: MemoryDomain | None = None
        self._lock = threading.Lock()

    def supported_operations(self, model: Model) -> Sequence[Support]:
        answers = [support(model.entry, operation) for operation in model.operations]
        return refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def cache_files_needed(self) -> tuple[int, int]:
        return 1, 1

    def prepare_model(self, model: Model, config: PrepareConfig) -> SamplePreparedModel:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        validate_support(model, self.supported_operations(model))
        prepared = SamplePreparedModel(self, model)
        if config.model_cache or config.data_cache:
            prepared.cache_report = self._save(model, config)
        return prepared

    def prepare_model_from_cache(self, config: PrepareConfig) -> SamplePreparedModel:
        validate_prepare_config(config)
        try:
            loaded = self._seal.load(
                config.model_cache, config.data_cache, config.token, config.binding
            )
        except CacheError as error:
            raise GeneralFailure(str(error)) from error
        model = decode(*loaded.model, *loaded.data)
        validate_support(model, self.supported_operations(model))
        return SamplePreparedModel(self, model)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        from penstock.memory.domain import MemoryDomain

        with self._lock:
            if self.domain is None:
                self.domain = MemoryDomain(self._interface_of, dynamic=False)
        return self.domain.allocate(desc, roles)

    def _interface_of(self, prepared: Any) -> Model | None:
        own = isinstance(prepared, SamplePreparedModel) and prepared.device is self
        return prepared.model if own else None

    def _save(self, model: Model, config: PrepareConfig) -> CacheReport:
        """Whatever becomes of it, the model is prepared."""
        program, constants = encode(model)
        report = self._seal.save(
            config.model_cache,
            config.data_cache,
            config.token,
            config.binding,
            model=[program],
            data=[constants],
        )
        return CacheReport("saved" if report.saved else "failed", report.reason or "")


class SamplePreparedModel(PreparedModelBase):
    """The constants of a model as arrays, and its operations; nothing in it changes after that."""

    def __init__(self, device: SampleDevice, model: Model) -> None:
        self.device, self.model = device, model
        self._constants = {
            index: model.constant(operand)
            for index, operand in enumerate(model.operands)
            if operand.is_constant
        }

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        validate_request(self.model, request, config)
        begun = time.perf_counter_ns()
        with ExitStack() as mapped:
            claim = self._claimed(request, mapped)
            pools = [mapped.enter_context(map_memory(memory)).array for memory in request.pools]
            values = dict(self._constants)
            for position, argument in enumerate(request.inputs):
                index = self.model.entry.inputs[position]
                if claim is not None and position in claim.inputs:
                    values[index] = claim.inputs[position].content
                else:
                    values[index] = self._input(index, argument, pools)
            self._run(values, config)
            shapes = self._deliver(request, values, pools, claim)
        spent = time.perf_counter_ns() - begun
        timing = Timing(on_device_ns=spent, in_driver_ns=spent) if config.measure else NO_TIMING
        return ExecutionResult(shapes, timing)

    def _claimed(self, request: Request, held: ExitStack) -> Claim | None:
        """The buffers that the request names, held as long as *held*; None while there are no
        buffers at all.
        """
        domain = self.device.domain
        return None if domain is None else held.enter_context(domain.claim(self, request))

    def _run(self, values: dict[int, NDArray], config: ExecutionConfig) -> None:
        """Every operation in the model's order, looking between them whether to stop."""
        for index, operation in enumerate(self.model.operations):
            if config.cancel is not None:
                config.cancel.check()
            if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
                raise MissedDeadlineTransient(f"the deadline passed before operation {index}")
            inputs = [values[i] for i in operation.inputs if i in values]
            try:
                result = KERNELS[operation.type](operation.attributes, inputs)
            except (ValueError, IndexError) as error:
                raise GeneralFailure(f"operation {index} ({operation.type}): {error}") from error
            values[operation.outputs[0]] = result

    def _input(self, index: int, argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray:
        operand = self.model.operands[index]
        region = _region(argument, pools)
        if region is None or not isinstance(argument, PoolArgument):
            raise InvalidArgument(f"input {operand.name!r} must lie in a pool of the request")
        shape = argument.dimensions or operand.shape or ()
        array: NDArray = region.view(operand.dtype.numpy).reshape([d or 0 for d in shape])
        return array

    def _deliver(
        self,
        request: Request,
        values: Mapping[int, NDArray],
        pools: Sequence[NDArray],
        claim: Claim | None,
    ) -> tuple[OutputShape, ...]:
        """Writes the results, or nothing at all when one of them does not fit."""
        results = [np.asarray(values[i], order="C") for i in self.model.entry.outputs]
        regions = [_region(argument, pools) for argument in request.outputs]
        pairs = list(zip(results, regions, strict=True))
        fits = [region is None or result.nbytes <= region.nbytes for result, region in pairs]
        if not all(fits):
            shapes = [(r.shape, fit) for r, fit in zip(results, fits, strict=True)]
            raise OutputInsufficientSize("an output does not fit into its place", shapes)
        if not all(region is None or region.flags.writeable for region in regions):
            raise GeneralFailure("an output lies in a pool that cannot be written")
        for position, argument in enumerate(request.outputs):
            if isinstance(argument, TokenArgument):
                if claim is None:
                    raise InvalidArgument(f"no buffer of this device has token {argument.token}")
                result = results[position]
                claim.put(position, np.array(result), result.shape)
        for result, region in pairs:
            if region is not None:
                region[: result.nbytes] = result.reshape(-1).view(np.uint8)
        return tuple(OutputShape(result.shape) for result in results)


def _region(argument: RequestArgument, pools: Sequence[NDArray]) -> NDArray | None:
    """The bytes an argument names; None for an output that nobody wants, or that a buffer takes."""
    match argument:
        case PoolArgument(location=place):
            return pools[place.pool][place.offset : place.offset + place.length]
        case NoValue() | TokenArgument():
            return None
    raise InvalidArgument(f"the sample driver takes pools only, not {type(argument).__name__}")


def create() -> SampleDevice:
    """The entry point of `penstock.drivers`."""
    return SampleDevice()
