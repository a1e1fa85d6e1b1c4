"""Single operations cut out of a model, each with the values that it really gets.

One pass of the reference device over the model computes every operation by itself, in order, from
what those before it gave; what no later operation reads is forgotten at once, so that a pass holds
no more than a run does.
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
from penstock.hal import AccuracyClass, Device
from penstock.ir import Lifetime, Model, NDArray, Subgraph, infer_shapes
from penstock.partitioning.policy import Policy
from penstock.partitioning.split import Cutter
from penstock.runtime.discovery import DeviceInfo
from penstock.runtime.distance import Distance, distance_of
from penstock.runtime.session import compile_model


class OperationCase(Struct, frozen=True, eq=False):
    """One operation of a network, alone, with its real inputs and the reference's results.

    *index* counts the operations of the network's entry subgraph; *type* is its row of the
    operation table (`CUSTOM:<code>` for custom operators), *name* its `Subgraph.operation_name`.
    *model* is the operation as a model of its own, its input shapes those of this run: *inputs* has
    one array for each of its inputs, state that comes in among them, *expected* one for each of its
    outputs, new state among them. Values that the operation reads twice are one input; constants
    stay constants. An operation with subgraphs (IF, WHILE) keeps them: it is one case, with all
    that they do. Outputs come in the operation's order.
    """

    index: int
    type: str
    name: str
    model: Model
    inputs: tuple[NDArray, ...]
    expected: tuple[NDArray, ...]

    def tflite(self) -> bytes:
        """The case as a `.tflite` file; what it takes is `tflite_inputs`.

        A recurrent operation keeps its state to itself in TFLite, from zeros on: such state is no
        input and no output of the file. Raises `NotExportable` where the case's state is anything
        else, or the operation has no form in TFLite. Tensors without a name, or with one that
        another has, are given one.
        """
        from penstock.export.tflite import write

        return write(named(with_state(self.model, self.inputs)))

    @property
    def tflite_inputs(self) -> tuple[NDArray, ...]:
        """The arrays that the file of `tflite` takes, in its order."""
        return tuple(self.inputs[k] for k in self.positions()[0])

    @property
    def tflite_expected(self) -> tuple[NDArray, ...]:
        """What the file of `tflite` gives, in its order."""
        return tuple(self.expected[k] for k in self.positions()[1])

    def positions(self, *, as_file: bool = True) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which of *inputs* and *expected* the file of `tflite` has; all without *as_file*."""
        if as_file:
            return positions_in_file(self.model)
        entry = self.model.entry
        return tuple(range(len(entry.inputs))), tuple(range(len(entry.outputs)))


def arrays_of(model: Model, inputs: Mapping[str, Any] | Sequence[Any]) -> list[NDArray]:
    """*inputs*, those of `CompiledModel.run`, as arrays in the order of `model.inputs`, of their
    dtypes and shapes that fit.

    Raises `InputError` for inputs that do not fit.
    """
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
    device: str | DeviceInfo | Device = FALLBACK_DEVICE,
) -> Iterator[OperationCase]:
    """Every operation of *model*'s entry subgraph, in the order in which they run, with its real
    inputs.

    *inputs* are those of `CompiledModel.run`. *state* holds the values of the network's variables
    and gets the new ones once the last case was taken (None: the initial values, for this pass
    alone), so that a second pass goes on where the first one ended. *only* leaves out the cases of
    other operations; they are computed all the same. *device* computes what it supports in the
    place of the reference. Arrays are shared between cases and must not be changed.

    Raises `InputError` for inputs that do not fit, and whatever the reference device raises for an
    operation that it cannot run, when it is reached.
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


def _results(
    model: Model, inputs: Sequence[NDArray], device: str | DeviceInfo | Device
) -> tuple[NDArray, ...]:
    if device != FALLBACK_DEVICE:
        try:
            return tuple(run_alone(model, inputs, device, accuracy="relaxed"))
        except PlacementError:
            pass
    return tuple(run_alone(model, inputs, FALLBACK_DEVICE, accuracy="exact"))


def distance(
    case: OperationCase, outputs: Sequence[NDArray], accuracy: AccuracyClass = "faithful"
) -> Distance:
    """How far *outputs* of a device for *case* lie from the reference's, within *accuracy*."""
    return distance_of(case.model, case.inputs, outputs, case.expected, accuracy)


def run_case(
    case: OperationCase,
    device: str | DeviceInfo | Device,
    accuracy: AccuracyClass = "faithful",
    *,
    timeout: float | None = None,
) -> list[NDArray]:
    """What *device*, alone and without fall-back, makes of *case*.

    Raises `PlacementError`, with the device's reason, where it does not take the operation in the
    class *accuracy*, `DriverError` where it fails.
    """
    return run_alone(case.model, case.inputs, device, accuracy=accuracy, timeout=timeout)


def run_alone(
    model: Model,
    inputs: Sequence[NDArray],
    device: str | DeviceInfo | Device,
    *,
    accuracy: AccuracyClass,
    timeout: float | None = None,
) -> list[NDArray]:
    """One run of a stateless *model* on *device* alone, without cache, fallback or blocklist."""
    policy = Policy(accuracy=accuracy, allow_fallback=False)
    with (
        knobs.override(driver_verdicts=False, keep_failures=False),
        compile_model(
            model, devices=[device], cache=None, policy=policy, timeout=timeout
        ) as compiled,
    ):
        return list(compiled.run(list(inputs), timeout=timeout))


def exposed(model: Model) -> Model:
    """*model* with every result of the entry as an output, and its state as plain inputs."""
    entry = model.entry
    written = [o for operation in entry.operations for o in operation.outputs]
    operands = list(entry.operands)
    for index in written:
        if operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
            operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)
    subgraphs = [_stateless(subgraph) for subgraph in model.subgraphs]
    subgraphs[model.main] = replace(
        entry, operands=tuple(operands), outputs=tuple(written), states=()
    )
    return Model(tuple(subgraphs), model.pools, main=model.main)


def _stateless(subgraph: Subgraph) -> Subgraph:
    return replace(subgraph, states=()) if subgraph.states else subgraph


def _frees(entry: Subgraph) -> list[list[int]]:
    """For each operation the operands that nobody reads after it; outputs are read at the end."""
    last: dict[int, int] = {}
    for at, operation in enumerate(entry.operations):
        last.update(dict.fromkeys((*operation.inputs, *operation.outputs), at))
    frees: list[list[int]] = [[] for _ in entry.operations]
    for operand, at in last.items():
        if operand not in entry.outputs:
            frees[at].append(operand)
    return frees
