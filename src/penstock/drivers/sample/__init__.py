"""The sample driver: a small driver with a cache and device memory, written to be read from top to
bottom (docs/writing-a-driver.md).

It accepts pools only, as NNAPI's drivers do, and maps them by name in every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, TypeAlias

import numpy as np

from penstock import errors, hal
from penstock.driverkit.request_arrays import HostBuffers, input_arrays, mapped_pools, write_results
from penstock.drivers.sample.program import decode, encode
from penstock.hal.request import NO_TIMING
from penstock.ir import Attributes, DType, Model, NDArray, Operation, Subgraph
from penstock.sealed import Seal

__all__ = ["SampleDevice", "create"]

Kernel: TypeAlias = Callable[[Attributes, Sequence[NDArray]], NDArray]
"""Computes the only output from the attributes and the inputs, without omitted ones."""

ACTIVATIONS: Final = {
    "NONE": (-np.inf, np.inf),
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
"""The fused activations that only clamp: least and greatest value."""


def add(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    a, b = inputs
    return activate(attributes, np.add(a, b))


def multiply(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    a, b = inputs
    return activate(attributes, np.multiply(a, b))


def relu(_: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    return np.maximum(inputs[0], np.float32(0))


def fully_connected(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    """Rows of the input times the transposed weights [units, depth], plus the bias [units]."""
    x, weights, *bias = inputs
    rows = x if attributes.flag("keep_num_dims") else x.reshape(-1, weights.shape[1])
    product = rows @ weights.T
    return activate(attributes, product + bias[0] if bias else product)


def activate(attributes: Attributes, x: NDArray) -> NDArray:
    low, high = ACTIVATIONS[attributes.text("fused_activation_function")]
    return np.clip(x, np.float32(low), np.float32(high))


KERNELS: Final[dict[str, Kernel]] = {
    "ADD": add,
    "MUL": multiply,
    "RELU": relu,
    "FULLY_CONNECTED": fully_connected,
}


def support(subgraph: Subgraph, operation: Operation) -> hal.Support:
    """SUPPORTED, or the reason why *operation* is not supported."""
    if operation.type not in KERNELS:
        return hal.Support(False, f"the sample driver has no {operation.type}")
    for index in (*operation.inputs, *operation.outputs):
        operand = subgraph.operands[index]
        if operand.has_value and operand.dtype is not DType.FLOAT32:
            return hal.Support(
                False, f"{operand.name or f'operand {index}'} is {operand.dtype.value}, not float32"
            )
    if len(operation.outputs) != 1:
        return hal.Support(False, f"{len(operation.outputs)} outputs; one is possible")
    activation = operation.attributes.get("fused_activation_function", "NONE")
    if activation not in ACTIVATIONS:
        return hal.Support(False, f"no fused activation {activation!r}")
    if operation.attributes.get("weights_format", "DEFAULT") != "DEFAULT":
        return hal.Support(False, "shuffled weights are not read")
    return hal.SUPPORTED


class SampleDevice(HostBuffers, hal.DeviceBase):
    """A device for ADD, MUL, RELU and FULLY_CONNECTED in float32. Used only when the caller names
    it.

    A prepared model is saved in a model file and a data file, sealed by *seal*. Its buffers have
    known sizes.
    """

    name = "sample"
    version = f"1 (numpy {np.__version__})"
    type = hal.DeviceType.CPU
    capabilities = hal.Capabilities(
        performance={"float32": hal.PerformanceInfo(execution_time=1.5, power_usage=1.5)},
        default_performance=None,
        accepts_host_memory=False,
        only_when_named=True,
    )

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal or Seal(self.name, self.version, files=self.cache_files_needed())

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = [support(model.entry, operation) for operation in model.operations]
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def cache_files_needed(self) -> tuple[int, int]:
        return 1, 1

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> SamplePreparedModel:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        hal.validate_support(model, self.supported_operations(model))
        prepared = SamplePreparedModel(self, model)
        if config.model_cache or config.data_cache:
            prepared.cache_report = self._save(model, config)
        return prepared

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> SamplePreparedModel:
        hal.validate_prepare_config(config)
        try:
            loaded = self._seal.load(
                config.model_cache, config.data_cache, config.token, config.binding
            )
        except errors.CacheError as error:
            raise errors.GeneralFailure(str(error)) from error
        model = decode(*loaded.model, *loaded.data)
        hal.validate_support(model, self.supported_operations(model))
        return SamplePreparedModel(self, model)

    def _save(self, model: Model, config: hal.PrepareConfig) -> hal.CacheReport:
        """Saves the model. If that fails, the report says so and preparing goes on."""
        program, constants = encode(model)
        report = self._seal.save(
            config.model_cache,
            config.data_cache,
            config.token,
            config.binding,
            model=[program],
            data=[constants],
        )
        return hal.CacheReport("saved" if report.saved else "failed", report.reason or "")


class SamplePreparedModel(hal.PreparedModelBase):
    """The constants of a model as arrays, and its operations. Immutable."""

    def __init__(self, device: SampleDevice, model: Model) -> None:
        self.device, self.model = device, model
        self._constants = {
            index: model.constant(operand)
            for index, operand in enumerate(model.operands)
            if operand.is_constant
        }

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        for argument in (*request.inputs, *request.outputs):
            if isinstance(argument, hal.HostMemory):
                raise errors.InvalidArgument("the sample driver takes pools only, not HostMemory")
        begun = time.perf_counter_ns()
        entry = self.model.entry
        given, wanted = ([entry.operands[i] for i in ids] for ids in (entry.inputs, entry.outputs))
        with ExitStack() as held:
            claim = held.enter_context(self.device.claimed(self, request))
            pools = held.enter_context(mapped_pools(request))
            inputs = input_arrays(request, given, pools, claim)
            values = self._constants | dict(zip(entry.inputs, inputs, strict=True))
            self._run(values, config)
            results = [values[i] for i in entry.outputs]
            shapes = write_results(request, wanted, results, pools, claim, inputs)
        spent = time.perf_counter_ns() - begun
        timing = hal.Timing(on_device_ns=spent, in_driver_ns=spent) if config.measure else NO_TIMING
        return hal.ExecutionResult(shapes, timing)

    def _run(self, values: dict[int, NDArray], config: hal.ExecutionConfig) -> None:
        """Runs the operations in order. Checks the deadline and the cancel token between them."""
        for index, operation in enumerate(self.model.operations):
            if config.cancel is not None:
                config.cancel.check()
            if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
                raise errors.MissedDeadlineTransient(
                    f"the deadline passed before operation {index}"
                )
            inputs = [values[i] for i in operation.inputs if i in values]
            try:
                result = KERNELS[operation.type](operation.attributes, inputs)
            except (ValueError, IndexError) as error:
                raise errors.GeneralFailure(
                    f"operation {index} ({operation.type}): {error}"
                ) from error
            values[operation.outputs[0]] = result


def create() -> SampleDevice:
    """The entry point of `penstock.drivers`."""
    return SampleDevice()
