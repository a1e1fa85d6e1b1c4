"""Devices for tests of partitioning: any support table, any costs, one NumPy evaluator behind them
all.

gpu = NumpyDevice("gpu", {"ADD"}, performance={"float32": (0.5, 2.0)})
plan = place(model, [gpu, NumpyDevice("reference")])
outputs = run_plan(plan, [gpu, ...], inputs)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock import hal
from penstock.errors import InvalidArgument, OutputInsufficientSize
from penstock.ir import Model, NDArray, Operand, Operation, Subgraph
from penstock.ir.types import is_static
from penstock.partitioning import ExecutionPlan
from penstock.partitioning.plan import ExecutionStep

Kernel = Callable[[Operation, list[NDArray]], Sequence[NDArray]]
Wish = Collection[str] | Callable[[str, str], bool | str]
"""Operation types, or a function of an operation's type and name to yes, no or a reason for no."""


def _split(operation: Operation, inputs: list[NDArray]) -> Sequence[NDArray]:
    return np.split(inputs[1], operation.attributes.integer("num_splits"), int(inputs[0]))


def _unpack(operation: Operation, inputs: list[NDArray]) -> Sequence[NDArray]:
    return list(np.moveaxis(inputs[0], operation.attributes.integer("axis"), 0))


def _top(operation: Operation, inputs: list[NDArray]) -> Sequence[NDArray]:
    order = np.argsort(-inputs[0], axis=-1, kind="stable")[..., : int(inputs[1])]
    return np.take_along_axis(inputs[0], order, -1), order.astype(np.int32)


def _concatenate(operation: Operation, inputs: list[NDArray]) -> Sequence[NDArray]:
    return [np.concatenate(inputs, operation.attributes.integer("axis"))]


def _plain(function: Callable[..., Any]) -> Kernel:
    return lambda _, inputs: [np.asarray(function(*inputs), inputs[0].dtype)]


KERNELS: Final[dict[str, Kernel]] = {
    "ADD": _plain(np.add),
    "SUB": _plain(np.subtract),
    "MUL": _plain(np.multiply),
    "MAXIMUM": _plain(np.maximum),
    "RELU": _plain(lambda x: np.maximum(x, 0)),
    "NEG": _plain(np.negative),
    "LESS": lambda _, inputs: [np.less(*inputs)],
    "PRELU": _plain(lambda x, alpha: np.where(x < 0, x * alpha, x)),
    "SPLIT": _split,
    "UNPACK": _unpack,
    "TOPK_V2": _top,
    "CONCATENATION": _concatenate,
    "WHERE": lambda _, inputs: [np.argwhere(inputs[0])],
}


def evaluate(model: Model, inputs: Sequence[NDArray], subgraph: int | None = None) -> list[NDArray]:
    """The outputs of a subgraph (None: the entry), state ports included."""
    graph = model.entry if subgraph is None else model.subgraphs[subgraph]
    values = dict(zip(graph.inputs, inputs, strict=True))
    values |= {i: model.constant(o) for i, o in enumerate(graph.operands) if o.is_constant}
    for operation in graph.operations:
        arguments = [values[i] for i in operation.inputs if graph.operands[i].has_value]
        results = _results(model, operation, arguments)
        values |= dict(zip(operation.outputs, results, strict=True))
    return [values[i] for i in graph.outputs]


def _results(model: Model, operation: Operation, arguments: list[NDArray]) -> Sequence[NDArray]:
    if operation.type == "IF":
        branch = "then_subgraph_index" if arguments[0].item() else "else_subgraph_index"
        return evaluate(model, arguments[1:], operation.attributes.integer(branch))
    if operation.type == "WHILE":
        condition, body = map(
            operation.attributes.integer, ("cond_subgraph_index", "body_subgraph_index")
        )
        while evaluate(model, arguments, condition)[0].item():
            arguments = evaluate(model, arguments, body)
        return arguments
    return KERNELS[operation.type](operation, arguments)


class NumpyDevice(hal.DeviceBase):
    """Computes with `KERNELS` what *wish* lets it, and refuses to prepare anything else.

    *performance* maps element types to (execution time, power usage); types it leaves out cost what
    *other* says, None being nothing declared. *level* is the feature level. What it was asked and
    given is kept in *asked* and *prepared*.
    """

    version = "1"

    def __init__(
        self,
        name: str,
        wish: Wish = frozenset({*KERNELS, "IF", "WHILE"}),
        performance: Mapping[str, tuple[float, float]] | None = None,
        *,
        other: tuple[float, float] | None = (1.0, 1.0),
        accuracy: hal.AccuracyClass = "faithful",
        level: int = 8,
        **capabilities: Any,
    ) -> None:
        self.name, self._wish, self._accuracy = name, wish, accuracy
        self.type = hal.DeviceType.CPU if name == "reference" else hal.DeviceType.ACCELERATOR
        self.feature_level = level
        self.capabilities = hal.Capabilities(
            performance={t: hal.PerformanceInfo(*p) for t, p in (performance or {}).items()},
            default_performance=None if other is None else hal.PerformanceInfo(*other),
            **{"dispatch_ns": 0, **capabilities},
        )
        self.asked: list[Model] = []
        self.prepared: list[Model] = []

    def supported_operations(self, model: Model) -> list[hal.Support]:
        self.asked.append(model)
        return [self._support(model.entry, index) for index in range(len(model.operations))]

    def _support(self, entry: Subgraph, index: int) -> hal.Support:
        kind = entry.operations[index].type
        wanted = (
            self._wish(kind, entry.operation_name(index))
            if callable(self._wish)
            else kind in self._wish
        )
        if wanted is True:
            return hal.Support(supported=True, accuracy=self._accuracy)
        reason = wanted if isinstance(wanted, str) else f"{self.name} has no {kind}"
        return hal.Support(supported=False, reason=reason, accuracy=self._accuracy)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        hal.validate_prepare(model, config)
        if not all(answer.supported for answer in self.supported_operations(model)):
            raise InvalidArgument(f"{self.name} is given an operation that it refuses")
        self.prepared.append(model)
        return NumpyPrepared(model)


class NumpyPrepared(hal.PreparedModelBase):
    def __init__(self, model: Model) -> None:
        self.model = model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        entry = self.model.entry
        results = evaluate(self.model, [_array(a) for a in request.inputs])
        targets = [_array(a) for a in request.outputs]
        pairs = list(zip(results, targets, [entry.operands[i] for i in entry.outputs], strict=True))
        fits = [
            is_static(operand.shape) or target.nbytes >= result.nbytes
            for result, target, operand in pairs
        ]
        if not all(fits):
            shapes = [(result.shape, fit) for result, fit in zip(results, fits, strict=True)]
            raise OutputInsufficientSize("an output does not fit", shapes)
        for result, target, operand in pairs:
            if is_static(operand.shape):
                target[...] = result
            else:
                target[: result.nbytes] = np.frombuffer(result.tobytes(), np.uint8)
        return hal.ExecutionResult(tuple(hal.OutputShape(result.shape) for result in results))


def _array(argument: object) -> NDArray:
    if not isinstance(argument, hal.HostMemory):
        raise InvalidArgument(f"{type(argument).__name__} is given to a device of arrays")
    return argument.array


GUARD: Final = 0xA5
CAPACITY: Final = 1 << 16


def run_plan(
    plan: ExecutionPlan,
    devices: Sequence[NumpyDevice],
    inputs: Sequence[NDArray],
    engine: hal.Device | None = None,
) -> list[NDArray]:
    """Every entry output, state outputs included, with the temporaries where the plan puts them.

    Each step is prepared by the device that the plan names, or by *engine* in its place.
    """
    entry = plan.model.entry
    named: dict[str, hal.Device] = {device.name: engine or device for device in devices}
    arena = np.full(plan.temporaries.nbytes, GUARD, np.uint8)
    values = dict(zip(entry.inputs, inputs, strict=True))
    for array in values.values():
        array.flags.writeable = False
    for step in plan.steps:
        outer = [entry.operands[i] for i in step.outputs]
        targets = [
            _target(operand, plan.temporaries.offsets.get(index), arena)
            for index, operand in zip(step.outputs, outer, strict=True)
        ]
        request = hal.Request(
            tuple(hal.HostMemory(values[i]) for i in step.inputs),
            tuple(map(hal.HostMemory, targets)),
        )
        if step.control is not None:
            _run_control(step, devices, request, engine)
            values.update(zip(step.outputs, targets, strict=True))
            continue
        prepared = named[step.device].prepare_model(step.model, hal.PrepareConfig())
        shapes = prepared.execute(request, hal.ExecutionConfig()).output_shapes
        # A driver need not tell the shapes where all are known.
        told = iter(shapes or [hal.OutputShape(target.shape) for target in targets])
        for index, operand, target, shape in zip(step.outputs, outer, targets, told, strict=True):
            values[index] = (
                target if is_static(operand.shape) else _shaped(target, operand, shape.dimensions)
            )
    forwarded = {i for _, i in plan.forwards}
    values |= {i: plan.model.constant(entry.operands[i]) for i in forwarded if i not in values}
    return [np.array(values[i]) for i in entry.outputs]


def _run_control(
    step: ExecutionStep,
    devices: Sequence[NumpyDevice],
    request: hal.Request,
    engine: hal.Device | None,
) -> None:
    """The step's branches by their own plans; *request* holds its boundary."""
    (operation,) = step.model.operations
    entry, control = step.model.entry, step.control
    given = dict(zip(entry.inputs, map(_array, request.inputs), strict=True))
    arguments = [
        given[i] if i in given else step.model.constant(entry.operands[i]) for i in operation.inputs
    ]
    if control is None:
        raise InvalidArgument("the step has no branches")
    if control.kind == "IF":
        branch = control.branches[0 if arguments[0].item() else 1]
        results = run_plan(branch, devices, [np.array(a) for a in arguments[1:]], engine)
    else:
        condition, body = control.branches
        results = [np.array(a) for a in arguments]
        while run_plan(condition, devices, results, engine)[0].item():
            results = run_plan(body, devices, [np.array(a) for a in results], engine)
    targets = dict(zip(entry.outputs, map(_array, request.outputs), strict=True))
    for index, result in zip(operation.outputs, results, strict=True):
        if index in targets:
            targets[index][...] = result


def _target(operand: Operand, place: tuple[int, int] | None, arena: NDArray) -> NDArray:
    if not is_static(operand.shape):
        return np.empty(CAPACITY, np.uint8)
    shape = tuple(d for d in operand.shape or () if d is not None)
    if place is None:
        return np.empty(shape, operand.dtype.numpy)
    return _shaped(arena[place[0] : place[0] + place[1]], operand, shape)


def _shaped(block: NDArray, operand: Operand, shape: tuple[int, ...]) -> NDArray:
    size = math.prod(shape) * operand.dtype.numpy.itemsize
    array: NDArray = block[:size].view(operand.dtype.numpy).reshape(shape)
    return array
