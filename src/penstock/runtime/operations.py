"""Extracts single operations of a model, each with the values that it receives in a real run.

One pass of the reference device computes the operations one by one, in order. A value is freed
after its last reader, so a pass needs no more memory than a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import knobs
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import PlacementError
from penstock.execution.inputs import arrange, as_array
from penstock.execution.state import State
from penstock.export.tflite.state import named, positions_in_file, with_state
from penstock.hal import AccuracyClass
from penstock.ir import Lifetime, Model, NDArray, Subgraph, infer_shapes
from penstock.partitioning.policy import Policy
from penstock.partitioning.split import Cutter
from penstock.runtime.discovery import AnyDevice
from penstock.runtime.distance import Distance, distance_of
from penstock.runtime.session import compile_alone


class OperationCase(Struct, frozen=True, eq=False):
    """One operation of a network on its own, with its real inputs and the reference's results.

    *index* is its index in the network's entry subgraph. *type* is its row of the operation table
    (`CUSTOM:<code>` for custom operators), *name* its `Subgraph.operation_name`. *model* has only
    this operation, with the input shapes of this run. *inputs* has one array for each input of
    *model*, including state; *expected* one for each output, including new state.

    A value that the operation reads twice is one input. Constants stay constants. An operation with
    subgraphs (IF, WHILE) is one case that includes them. Outputs are in the operation's order.
    """

    index: int
    type: str
    name: str
    model: Model
    inputs: tuple[NDArray, ...]
    expected: tuple[NDArray, ...]

    def tflite(self) -> bytes:
        """The case as a `.tflite` file, whose inputs are `tflite_inputs`.

        In TFLite a recurrent operation keeps its state internally and starts from zeros. Such state
        is no input or output of the file. Raises `NotExportable` if the case has other state, or if
        the operation has no TFLite form. Tensors without a unique name are given one.
        """
        from penstock.export.tflite import write

        return write(named(with_state(self.model, self.inputs)))

    @property
    def tflite_inputs(self) -> tuple[NDArray, ...]:
        """The input arrays of the file of `tflite`, in its order."""
        return tuple(self.inputs[k] for k in self.positions()[0])

    @property
    def tflite_expected(self) -> tuple[NDArray, ...]:
        """The output arrays of the file of `tflite`, in its order."""
        return tuple(self.expected[k] for k in self.positions()[1])

    def positions(self, *, as_file: bool = True) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of *inputs* and *expected* in the file of `tflite`, or all of them."""
        if as_file:
            return positions_in_file(self.model)
        entry = self.model.entry
        return tuple(range(len(entry.inputs))), tuple(range(len(entry.outputs)))


def arrays_of(model: Model, inputs: Mapping[str, Any] | Sequence[Any]) -> list[NDArray]:
    """The *inputs* of `CompiledModel.run` as arrays in the model's order. Raises `InputError`."""
    given = arrange(inputs, [o.name for o in model.inputs])
    return [
        as_array(value, operand, at, [])
        for at, (value, operand) in enumerate(zip(given, model.inputs, strict=True))
    ]


def cases_of(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    *,
    state: State | None = None,
    only: frozenset[int] | None = None,
    device: AnyDevice = FALLBACK_DEVICE,
) -> Iterator[OperationCase]:
    """Yields every operation of *model*'s entry subgraph, in execution order, with its real inputs.

    *inputs* are those of `CompiledModel.run`. *state* has the values of the network's variables,
    and receives the new values after the last case, so that a second pass continues from there.
    None means the initial values, for this pass only. *only* selects the operations to yield; the
    others are still computed. *device* computes what it supports instead of the reference. Cases
    share arrays, which must not be changed.

    Raises `InputError` for inputs that do not fit, and the reference device's error when an
    operation that it cannot run is reached.
    """
    entry = model.entry
    arrays = arrays_of(model, inputs)
    values: dict[int, NDArray] = dict(zip(entry.ordinary_inputs, arrays, strict=True))
    memory = State(model) if state is None else state
    values |= {p.input: memory.get(p.variable) for p in entry.states if p.input is not None}
    cutter, frees = Cutter(exposed(model)), _frees(entry)
    for index, operation in enumerate(entry.operations):
        cut = cutter.cut([index])
        given = tuple(values[i] for i in cut.inputs)
        shapes = {at: array.shape for at, array in enumerate(given)}
        alone = infer_shapes(cut.model, shapes)
        results = _results(alone, given, device)
        values |= dict(zip(cut.outputs, results, strict=True))
        if only is None or index in only:
            yield OperationCase(
                index, operation.key, entry.operation_name(index), alone, given, results
            )
        for operand in frees[index]:
            values.pop(operand, None)
    if state is not None:
        constants = {i: model.constant(o) for i, o in enumerate(entry.operands) if o.is_constant}
        state.replace(
            {
                p.variable: np.array((constants if p.output in constants else values)[p.output])
                for p in entry.states
                if p.output is not None
            }
        )  # fmt: skip


def _results(model: Model, inputs: Sequence[NDArray], device: AnyDevice) -> tuple[NDArray, ...]:
    if device != FALLBACK_DEVICE:
        try:
            return tuple(run_alone(model, inputs, device, accuracy="relaxed"))
        except PlacementError:
            pass
    return tuple(run_alone(model, inputs, FALLBACK_DEVICE, accuracy="exact"))


def distance(
    case: OperationCase, outputs: Sequence[NDArray], accuracy: AccuracyClass = "faithful"
) -> Distance:
    """The distance of *outputs*, a device's results for *case*, from the reference's."""
    return distance_of(case.model, case.inputs, outputs, case.expected, accuracy)


def run_case(
    case: OperationCase,
    device: AnyDevice,
    accuracy: AccuracyClass = "faithful",
    *,
    timeout: float | None = None,
) -> list[NDArray]:
    """The results of *case* on *device* alone, without fallback.

    Raises `PlacementError`, with the reason, if the device does not support the operation in the
    class *accuracy*. Raises `DriverError` if the device fails.
    """
    return run_alone(case.model, case.inputs, device, accuracy=accuracy, timeout=timeout)


def run_alone(
    model: Model,
    inputs: Sequence[NDArray],
    device: AnyDevice,
    *,
    accuracy: AccuracyClass,
    timeout: float | None = None,
) -> list[NDArray]:
    """One run of a stateless *model* on *device* alone, without cache, fallback or blocklist."""
    policy = Policy(accuracy=accuracy, allow_fallback=False)
    with (
        knobs.override(driver_verdicts=False, keep_failures=False),
        compile_alone(model, device, policy, timeout) as compiled,
    ):
        return list(compiled.run(list(inputs), timeout=timeout))


def exposed(model: Model) -> Model:
    """*model* with every result of the entry as an output, and its state as ordinary inputs."""
    entry = model.entry
    written = [o for operation in entry.operations for o in operation.outputs]
    operands = list(entry.operands)
    for index in written:
        if operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
            operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)
    subgraphs = [replace(s, states=()) if s.states else s for s in model.subgraphs]
    exposing = {"operands": tuple(operands), "outputs": tuple(written)}
    subgraphs[model.main] = replace(subgraphs[model.main], **exposing)
    return Model(tuple(subgraphs), model.pools, main=model.main)


def _frees(entry: Subgraph) -> list[list[int]]:
    """For each operation, the operands without a later reader. Outputs are read at the end."""
    last: dict[int, int] = {}
    for at, operation in enumerate(entry.operations):
        last.update(dict.fromkeys((*operation.inputs, *operation.outputs), at))
    frees: list[list[int]] = [[] for _ in entry.operations]
    for operand, at in last.items():
        if operand not in entry.outputs:
            frees[at].append(operand)
    return frees
