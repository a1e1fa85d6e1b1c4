"""A small NumPy device and models for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from penstock import hal
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand, Shape


def f32(values: object) -> NDArray:
    """A float32 array of *values*."""
    return np.array(values, np.float32)


KERNELS: dict[str, Callable[..., NDArray]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "RELU": lambda x: np.maximum(x, 0),
}


class NumpyDevice(hal.DeviceBase):
    """Runs ADD, MUL and RELU; *only* narrows that, *before* is called at every execution."""

    version = "1"

    def __init__(
        self,
        name: str = "numpy",
        only: Sequence[str] = tuple(KERNELS),
        before: Callable[[hal.Request, hal.ExecutionConfig], None] | None = None,
        capabilities: hal.Capabilities | None = None,
    ) -> None:
        self.name, self.only, self.before = name, tuple(only), before
        self.capabilities = capabilities or hal.Capabilities()
        self.prepared: list[NumpyPrepared] = []

    def supported_operations(self, model: Model) -> list[hal.Support]:
        return [
            hal.Support(o.type in self.only, "" if o.type in self.only else f"no {o.type}", "exact")
            for o in model.operations
        ]

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        hal.validate_prepare(model, config)
        prepared = NumpyPrepared(model, self.before)
        prepared.config = config
        self.prepared.append(prepared)
        return prepared


class NumpyPrepared(hal.PreparedModelBase):
    config: hal.PrepareConfig

    def __init__(
        self, model: Model, before: Callable[[hal.Request, hal.ExecutionConfig], None] | None
    ) -> None:
        self.model, self.before = model, before
        self.closed = 0
        self.runs = 0
        self._lock = threading.Lock()

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        with self._lock:
            self.runs += 1
        if self.before is not None:
            self.before(request, config)
        entry = self.model.entry
        values = {i: self.model.constant(o) for i, o in enumerate(entry.operands) if o.is_constant}
        for index, argument in zip(entry.inputs, request.inputs, strict=True):
            assert isinstance(argument, hal.HostMemory)
            values[index] = argument.array
        for operation in entry.operations:
            arguments = [values[i] for i in operation.inputs]
            values[operation.outputs[0]] = KERNELS[operation.type](*arguments)
        for index, argument in zip(entry.outputs, request.outputs, strict=True):
            assert isinstance(argument, hal.HostMemory)
            np.copyto(argument.array, values[index])
        return hal.DONE

    def close(self) -> None:
        self.closed += 1


def add_relu(shape: Shape = (2, 3)) -> Model:
    """relu(x + y) and x + y."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    y = builder.input(DType.FLOAT32, shape, "y")
    (total,) = builder.operation("ADD", [x, y], [Operand(DType.FLOAT32, shape, name="sum")])
    (positive,) = builder.operation("RELU", [total], [Operand(DType.FLOAT32, shape, name="relu")])
    return builder.build([positive, total])


def accumulator() -> Model:
    """One variable that adds up what it is given: total' = total + x; the output is total'."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    variable = builder.variable("total", DType.FLOAT32, (2,), initial=f32([10, 20]))
    before = builder.operand(Operand(DType.FLOAT32, (2,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = builder.operation("ADD", [before, x], [Operand(DType.FLOAT32, (2,), name="after")])
    (out,) = builder.operation("RELU", [after], [Operand(DType.FLOAT32, (2,), name="out")])
    builder.state(variable, before, after)
    return builder.build([out])
