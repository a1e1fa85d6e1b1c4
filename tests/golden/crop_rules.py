"""Declarations of accuracy judged on drawn inputs (docs/accuracy.md): LiteRT's reference kernels
compute every value of a network; each engine computes each operation from those values, and the
network as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

import penstock
from penstock.closing import Closing
from penstock.export.tflite import write
from penstock.hal import AccuracyClass
from penstock.ir import Lifetime, Model, NDArray, infer_shapes
from penstock.partitioning.split import Cutter
from penstock.runtime.distance import distance_of
from penstock.runtime.operations import OperationCase, cases_of, exposed
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.cases import Entry, load
from tests.golden.comparison import ROUNDING
from tests.golden.crops import inputs_of
from tests.golden.detections import detecting
from tests.golden.engine_grid import ENGINES, arranged
from tests.golden.engine_rules import CHECKED, SPREAD, step_of

SETS: Final[Mapping[str, Sequence[str]]] = {
    **{engine: (engine,) for engine in ENGINES},
    "together": ENGINES,
}
"""The devices of the whole plans: each engine as the first choice, and all of them by the default
placement.
"""


@dataclass
class Found:
    """How many results were compared, and a line for each that is too far off."""

    compared: int = 0
    departures: list[str] = field(default_factory=list)


def check_operations_on_crops(entry: Entry, count: int) -> Found:
    """Every operation of an 8-bit network by itself, on each engine in each class that it declares:
    within a step of LiteRT's reference kernels, in `exact` equal, on *count* drawn inputs.
    """
    model = _shaped(entry)
    found = Found()
    with ExitStack() as stack:
        known: dict[int, list[_Declared]] = {}
        for number, case in _operations(model, inputs_of(entry, count)):
            if not _is_quantized(case.model):
                continue
            if case.index not in known:
                known[case.index] = [*_declared(case.model, stack)]
            for engine, accuracy, compiled in known[case.index]:
                got = [np.asarray(o) for o in compiled.run(list(case.inputs))]
                distance = distance_of(case.model, case.inputs, got, case.expected, accuracy)
                found.compared += 1
                if distance.departs:
                    found.departures.append(
                        f"{entry['id']}, {engine}, {accuracy}, operation {case.index} "
                        f"({case.type}), input {number}: {distance.show()}"
                    )
    return found


_Declared: TypeAlias = "tuple[str, AccuracyClass, penstock.CompiledModel]"


def _declared(model: Model, stack: ExitStack) -> Iterator[_Declared]:
    """An operation compiled on each engine in the class that the engine declares for it; where that
    is `exact` in `faithful` too, in which other kernels may compute it.
    """
    for engine in ENGINES:
        device, _ = arranged("first", [engine]).devices
        (answer,) = device.supported_operations(model)
        for accuracy in CHECKED[answer.accuracy]:
            if answer.supported:
                policy = penstock.Policy(accuracy=accuracy, allow_fallback=False)
                compiled = penstock.compile(
                    model, devices=[device], policy=policy, cache=False, num_threads=1
                )
                yield engine, accuracy, stack.enter_context(compiled)


def _operations(
    model: Model, inputs: Iterable[list[NDArray]]
) -> Iterator[tuple[int, OperationCase]]:
    """Every operation of a network with what it reads and what it is to give, for each of *inputs*,
    numbered: as LiteRT's reference kernels compute them, or the reference driver where operations
    keep state, or those kernels lack one.
    """
    # Where operations keep state, each begins from what it left, which LiteRT does not hand out.
    whole = model if model.entry.states else exposed(model)
    reference = None if model.entry.states else litert_with(write(whole), "BUILTIN_REF")
    if reference is None:
        for number, given in enumerate(inputs):
            for case in cases_of(model, given):
                yield number, case
        return
    entry = whole.entry
    cutter = Cutter(whole)
    cuts = [cutter.cut([index]) for index in range(len(entry.operations))]
    constants = {i: whole.constant(o) for i, o in enumerate(entry.operands) if o.is_constant}
    for number, given in enumerate(inputs):
        values = dict(zip(entry.inputs, given, strict=True))
        values |= dict(zip(entry.outputs, reference.run(given), strict=True)) | constants
        for index, (cut, operation) in enumerate(zip(cuts, entry.operations, strict=True)):
            read, made = (tuple(values[i] for i in places) for places in (cut.inputs, cut.outputs))
            name = entry.operation_name(index)
            yield number, OperationCase(index, operation.key, name, cut.model, read, made)


def check_whole_on_crops(entry: Entry, count: int) -> Found:
    """The `faithful` plans of an 8-bit network on each of `SETS`: no output of *count* drawn inputs
    lies farther from LiteRT's reference kernels than 1.5 times what LiteRT by default does on the
    farthest of them, plus a step.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    model = _shaped(entry)
    path = CORPUS / "models" / entry["file"]
    lists = detecting(model)
    content = path.read_bytes() if lists is None else write(lists.model)
    model = model if lists is None else lists.model
    chosen = (
        range(len(entry["outputs"])) if lists is None else range(lists.count, len(model.outputs))
    )
    found, distances = Found(), {name: list[list[float]]() for name in ("LiteRT", *SETS)}
    steps = [0.0] * len(chosen)
    with ExitStack() as stack:
        plans = {name: stack.enter_context(_faithful(model, name)) for name in SETS}
        fresh = bool(model.entry.states)
        usual = Litert(content, "BUILTIN", fresh=fresh)
        exact = litert_with(content, "BUILTIN_REF", fresh=fresh) or stack.enter_context(
            _Reference(model)
        )
        for given in inputs_of(entry, count):
            wanted = exact.run(given)
            steps = [
                max(step, 1.0 if lists else step_of(entry, k, wanted[k]))
                for step, k in zip(steps, chosen, strict=True)
            ]
            distances["LiteRT"].append(_distances(usual.run(given), wanted, chosen))
            for name, plan in plans.items():
                state = plan.new_state() if model.entry.states else None
                got = [np.asarray(o) for o in plan.run(given, state=state)]
                distances[name].append(_distances(got, wanted, chosen))
                found.compared += 1
    usually = np.max(distances["LiteRT"], axis=0)
    for name in SETS:
        for number, offs in enumerate(distances[name]):
            for k, off in enumerate(offs):
                allowed = SPREAD * usually[k] + steps[k]
                if off > allowed * (1 + ROUNDING):
                    found.departures.append(
                        f"{entry['id']} on {name}, input {number}, output {chosen[k]}: {off:.4g} "
                        f"from the reference kernels, {allowed:.4g} allowed"
                    )
    return found


def _faithful(model: Model, name: str) -> penstock.CompiledModel:
    on = arranged("together" if name == "together" else "first", SETS[name])
    policy = penstock.Policy(placement=on.placement, allow_fallback=False)
    return penstock.compile(model, devices=on.devices, policy=policy, cache=False, num_threads=1)


def _shaped(entry: Entry) -> Model:
    """A network in the shapes of its drawn inputs."""
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    model = load(CORPUS / "models" / entry["file"])
    (first,) = inputs_of(entry, 1)
    return infer_shapes(model, {k: array.shape for k, array in enumerate(first)})


def _is_quantized(model: Model) -> bool:
    """Whether an operation reads or writes 8-bit values in steps, other than constants alone."""
    return any(
        o.quantization is not None and o.lifetime in {Lifetime.SUBGRAPH_INPUT,
            Lifetime.SUBGRAPH_OUTPUT}
        for o in model.operands
    )  # fmt: skip


def _distances(
    got: Sequence[NDArray], wanted: Sequence[NDArray], chosen: Sequence[int]
) -> list[float]:
    pairs = ((got[k].astype(np.float64), wanted[k].astype(np.float64)) for k in chosen)
    return [float(np.abs(a - b).max(initial=0)) for a, b in pairs]


LACKING: Final = "Didn't find op"
"""What LiteRT says of a file for whose operations, or their versions, a set has no kernel."""


class _Reference(Closing):
    """The reference driver, in the place of LiteRT's reference kernels."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._compiled = penstock.compile(model, devices=["reference"], cache=False)

    def close(self) -> None:
        self._compiled.close()

    def run(self, given: Sequence[NDArray]) -> list[NDArray]:
        """The outputs of one run, which begins with the first state."""
        state = self._compiled.new_state() if self._model.entry.states else None
        return [np.asarray(o) for o in self._compiled.run(list(given), state=state)]


class Litert:
    """LiteRT with one set of kernels; *fresh* begins each run with the first state."""

    def __init__(self, content: bytes, kernels: str, *, fresh: bool = False) -> None:
        self._content, self._kernels, self._fresh = content, kernels, fresh
        self._interpreter = self._made()

    def _made(self) -> Any:
        litert = pytest.importorskip(
            "ai_edge_litert.interpreter", reason="LiteRT is needed as judge"
        )
        return litert.Interpreter(
            model_content=self._content,
            num_threads=1,
            experimental_op_resolver_type=litert.OpResolverType[self._kernels],
        )

    def run(self, given: Sequence[NDArray]) -> list[NDArray]:
        """The outputs of one run."""
        interpreter = self._made() if self._fresh else self._interpreter
        details = interpreter.get_input_details()
        for detail, array in zip(details, given, strict=True):
            if tuple(detail["shape"]) != array.shape:
                interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(details, given, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()]


def litert_with(content: bytes, kernels: str, *, fresh: bool = False) -> Litert | None:
    """As `Litert`; None where that set has no kernel for an operation."""
    try:
        return Litert(content, kernels, fresh=fresh)
    except ValueError as error:
        if LACKING not in str(error):
            raise
        return None
