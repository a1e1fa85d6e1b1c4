"""A delegated subgraph, ready to run: compiled parts between the delegates' kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np

from penstock import errors
from penstock.delegates.api import call, name_of
from penstock.delegates.graph import DelegatedGraph, Kernel, Subgraphs
from penstock.delegates.nodes import Node
from penstock.delegates.tensors import blank
from penstock.execution import CompiledModel, State
from penstock.execution.bound_run import BoundRun
from penstock.ir import DType, Model, NDArray
from penstock.ir.types import static_shape
from penstock.memory.limits import check_bytes
from penstock.partitioning.split import Cut

Compile: TypeAlias = "Callable[[Model], CompiledModel]"
"""Compiles a part. The result may have additional outputs for tensors of the file."""


class DelegatedModel:
    """A delegated subgraph: models compiled for the nodes between kernels, and the kernels."""

    def __init__(self, graph: DelegatedGraph, compile_part: Compile) -> None:
        self.graph = graph
        self.model = graph.model
        self.steps: list[HostStep | KernelStep | EnterStep] = []
        waiting: list[int] = []
        try:
            for index in graph.plan:
                item, others = graph.item(index), graph.subgraphs
                step: KernelStep | EnterStep
                if isinstance(item, Kernel):
                    step = KernelStep(graph, item)
                elif others is not None and any(map(others.has_kernels, item.targets)):
                    step = EnterStep(graph, item, others)
                else:
                    waiting += item.operations
                    continue
                self._host(waiting, compile_part)
                self.steps.append(step)
                waiting = []
            self._host(waiting, compile_part)
        except BaseException:
            self.close()
            raise

    @property
    def host_steps(self) -> list[HostStep]:
        """The steps that the runtime compiled. The graph owns the kernels."""
        return [step for step in self.steps if isinstance(step, HostStep)]

    def bind(self, given: Sequence[NDArray], out: Sequence[NDArray | None] | None) -> DelegatedRun:
        """Binds runs to these arrays, in order; None for an output without fixed memory."""
        return DelegatedRun(self, given, out)

    def close(self) -> None:
        for step in self.host_steps:
            step.compiled.close()

    def _host(self, operations: Sequence[int], compile_part: Compile) -> None:
        if not operations or not (cut := self.graph.cut(operations)).outputs:
            return
        try:
            compiled = compile_part(cut.model)
        except (errors.ModelError, errors.PlacementError) as error:
            raise _of_the_whole(error, cut, self.graph.model.main) from error
        self.steps.append(HostStep(self.graph, cut, compiled))


def _of_the_whole(
    error: errors.ModelError | errors.PlacementError, cut: Cut, subgraph: int
) -> errors.ModelError | errors.PlacementError:
    """An error about an operation of a part, with the operation's number in the whole model."""
    where = error.where
    if where is not None and where.subgraph == 0 and where.operation is not None:
        at = where.operation
        known = cut.operations[at] if at < len(cut.operations) else at
        where = where._replace(subgraph=subgraph, operation=known)
    if isinstance(error, errors.ModelError):
        return type(error)(error.fault or error.message, where=where, offset=error.offset)
    return errors.PlacementError(error.message, error.refusals, where)


def _value(model: Model, operand: int, values: dict[int, NDArray]) -> NDArray:
    held = model.operands[operand]
    return model.constant(held) if held.is_constant else values[operand]


class DelegatedRun:
    """Repeated runs of one `DelegatedModel` on the same memory."""

    def __init__(
        self,
        delegated: DelegatedModel,
        given: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
    ) -> None:
        self._delegated = delegated
        entry = delegated.model.entry
        self._fixed: dict[int, NDArray] = dict(zip(entry.ordinary_inputs, given, strict=True))
        outputs = entry.ordinary_outputs
        for operand, array in zip(outputs, out or [None] * len(outputs), strict=True):
            if array is not None:
                self._fixed.setdefault(operand, array)
        operands = delegated.model.operands
        missing = {}  # every value of known shape between two steps
        for computed in chain.from_iterable(step.outputs for step in delegated.steps):
            shape = static_shape(operands[computed].shape)
            plain = operands[computed].dtype is not DType.STRING and computed not in self._fixed
            if shape is not None and plain:
                missing[computed] = shape
        needed = (math.prod(s) * operands[o].dtype.numpy.itemsize for o, s in missing.items())
        check_bytes(sum(needed), "the memory between delegates")
        self._fixed |= {o: blank(operands[o].dtype, shape) for o, shape in missing.items()}
        for step in delegated.host_steps:
            step.bind(self._fixed)
        self._read = {i for o in entry.operations for i in o.inputs} | set(outputs)
        delegated.graph.tensors.publish(dict(self._fixed))

    def run(self, state: State | None) -> list[NDArray]:
        """The outputs, in order. Raises `DelegateError`, or as `CompiledModel.run`."""
        if state is None:
            return self._run(None)
        with state.lock:
            return self._run(state)

    def _run(self, state: State | None) -> list[NDArray]:
        model = self._delegated.model
        entry = model.entry
        values = dict(self._fixed)
        if state is not None:
            for port in entry.states:
                if port.input is None:
                    continue
                if port.input in self._read and not state.is_assigned(port.variable):
                    name = model.variables[port.variable].name
                    raise errors.StateError(
                        f"variable {name!r} is read before any value was assigned to it"
                    )
                values[port.input] = state.get(port.variable)
        self._delegated.graph.tensors.publish(values)
        for step in self._delegated.steps:
            step.run(values)
        if state is not None:
            changed = {p.variable: p.output for p in entry.states if p.output is not None}
            state.replace({v: self._owned(output, values) for v, output in changed.items()})
        return [_value(model, i, values) for i in entry.ordinary_outputs]

    def _owned(self, operand: int, values: dict[int, NDArray]) -> NDArray:
        """A state value, copied if its memory is shared."""
        self._delegated.graph.tensors.make_readable(operand)
        value = _value(self._delegated.model, operand, values)
        entry = self._delegated.model.entry
        shared = (
            operand in self._fixed or operand in entry.inputs or operand in entry.ordinary_outputs
        )
        return np.array(value) if shared else value


class HostStep:
    """Nodes between two kernels, compiled by the runtime."""

    def __init__(self, graph: DelegatedGraph, cut: Cut, compiled: CompiledModel) -> None:
        self._tensors, self.compiled = graph.tensors, compiled
        self._inputs = cut.inputs
        extra = compiled.model.outputs[len(cut.outputs) :]
        self.outputs = (*cut.outputs, *(o.origin.index for o in extra if o.origin is not None))
        self._places: list[NDArray | None] = []
        self._bound: BoundRun | None = None

    def bind(self, fixed: dict[int, NDArray]) -> None:
        """Writes to the memory in *fixed* from now on."""
        self._places = [fixed.get(o) for o in self.outputs]
        self._bound = None
        if all(i in fixed for i in self._inputs) and all(
            static_shape(o.shape) is not None for o in self.compiled.model.inputs
        ):
            out = self._places if any(p is not None for p in self._places) else None
            self._bound = BoundRun(self.compiled.executable, [fixed[i] for i in self._inputs], out)

    def run(self, values: dict[int, NDArray]) -> None:
        """Adds its outputs to *values*."""
        for operand in self._inputs:
            self._tensors.make_readable(operand)
        if self._bound is not None:
            results: Iterable[NDArray] = self._bound.run(None)
        else:
            results = self.compiled.run([values[i] for i in self._inputs], out=self._places)
        values.update(zip(self.outputs, results, strict=True))
        for operand in self.outputs:
            self._tensors.overwritten(operand)


class KernelStep:
    """One delegate node."""

    def __init__(self, graph: DelegatedGraph, kernel: Kernel) -> None:
        self._graph, self._kernel = graph, kernel
        tensors = graph.tensors
        self._written = {t: tensors.operand(t) for t in kernel.node.outputs}
        self._changed = {t: (kernel.operands[t], o) for t, o in kernel.updates.items()}
        self.outputs = (*self._written.values(), *kernel.updates.values())
        self._inputs = tuple(t for t in kernel.node.inputs if t >= 0)
        operands = graph.model.operands
        self._strings = tuple(
            o
            for o in self._written.values()
            if operands[o].dtype is DType.STRING and static_shape(operands[o].shape) is not None
        )

    def run(self, values: dict[int, NDArray]) -> None:
        """Calls `invoke`. Raises `DelegateError` for an exception and for a missing output."""
        kernel, tensors = self._kernel, self._graph.tensors
        delegate, node = kernel.delegate, kernel.node
        changing = {t: np.array(values[before]) for t, (before, _) in self._changed.items()}
        writable = (*self._written, *changing, *node.temporaries)
        # Strings are new objects in each run, so that a caller's array does not change.
        for operand in self._strings:
            held = self._graph.model.operands[operand]
            values[operand] = blank(held.dtype, static_shape(held.shape) or ())
        tensors.before_kernel(self._inputs, self._written, delegate)
        tensors.changing = changing
        try:
            with tensors.acting(delegate), tensors.writing(writable):
                call(delegate, "invoke", kernel.invoke, self._graph.context, node)
        finally:
            tensors.changing = {}
        for tensor, (_, after) in self._changed.items():
            values[after] = changing[tensor]
        for tensor, operand in self._written.items():
            if operand not in values:
                reason = (
                    f"its kernel gave tensor {tensor} ({tensors.name(tensor)}), whose shape is "
                    "known only at run time, no shape; DelegateContext.resize_tensor does"
                )
                raise errors.DelegateError(name_of(delegate), "invoke", reason)
        for tensor in self._written:
            tensors.written(tensor)


class EnterStep:
    """A branch or loop into subgraphs with kernels, which run as separate graphs."""

    def __init__(self, graph: DelegatedGraph, item: Node, subgraphs: Subgraphs) -> None:
        (at,) = item.operations
        operation = graph.model.operations[at]
        self._graph, self._subgraphs, self._targets = graph, subgraphs, item.targets
        self._inputs, self.outputs = operation.inputs, operation.outputs
        self._is_loop = operation.type == "WHILE"

    def run(self, values: dict[int, NDArray]) -> None:
        """Adds the subgraphs' outputs to *values*."""
        for operand in self._inputs:
            self._graph.tensors.make_readable(operand)
        results = [_value(self._graph.model, i, values) for i in self._inputs]
        first, second = self._targets
        if self._is_loop:
            while np.all(self._subgraphs.run(first, results)[0]):
                results = self._subgraphs.run(second, results)
        else:
            results = self._subgraphs.run(first if np.all(results[0]) else second, results[1:])
        for operand, value in zip(self.outputs, results, strict=True):
            place = values.get(operand)
            if place is not None and place.shape == value.shape:
                np.copyto(place, value, casting="unsafe")
            else:
                values[operand] = value
            self._graph.tensors.overwritten(operand)
