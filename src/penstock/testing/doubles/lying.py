"""Devices that break their promises without an error: wrong answers, wrong values, stray writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.errors import GeneralFailure, InputError
from penstock.ir import Model, NDArray
from penstock.memory import map_memory
from penstock.testing.doubles.intercepting import InterceptedModel, InterceptingDevice

T = TypeVar("T")

Where: TypeAlias = Literal["inputs", "behind", "before"]

DAMAGED_BYTES: Final = 8
"""How many bytes of an output `damage_outputs` inverts: at least one whole element of any type."""


class ScribblingDevice(InterceptingDevice):
    """Writes one byte out of bounds after every run: over its *inputs*, or *behind* or *before* its
    outputs.

    Behind and before are possible in pools only, because a caller's array has no memory around it.
    """

    def __init__(self, device: hal.Device, where: Where, name: str | None = None) -> None:
        super().__init__(device, name)
        self.where: Where = where

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if isinstance(result, hal.ExecutionResult):
            scribble(arguments[0], self.where)
        return result


def scribble(request: hal.Request, where: Where) -> None:
    """Inverts one byte over each input of *request*, or behind or before each output."""
    over = request.inputs if where == "inputs" else request.outputs
    for _, memory, start, end in _places(request, over):
        at = {"inputs": start, "before": start - 1, "behind": end}[where]
        if 0 <= at < memory.size:
            memory[at] ^= 0xFF


def damage_outputs(request: hal.Request) -> None:
    """Inverts the first bytes of every output of *request*."""
    for _, memory, start, end in _places(request, request.outputs):
        memory[start : min(end, start + DAMAGED_BYTES)] ^= 0xFF


def _places(
    request: hal.Request, arguments: Sequence[hal.RequestArgument]
) -> Iterator[tuple[int, NDArray, int, int]]:
    """Of each of *arguments* with memory: its position, all bytes of the memory, and where the
    argument starts and ends in it.
    """
    for position, argument in enumerate(arguments):
        if isinstance(argument, hal.HostMemory):
            flat = argument.array.reshape(-1).view(np.uint8)
            yield position, flat, 0, flat.size
        elif isinstance(argument, hal.PoolArgument):
            place = argument.location
            with map_memory(request.pools[place.pool]) as mapping:
                yield position, mapping.array, place.offset, place.offset + place.length


Lie: TypeAlias = Literal[
    "support_length",
    "support_changes",
    "refuses_after_all",
    "output_count",
    "output_shapes",
    "insufficient",
    "values",
    "timing",
    "writes_behind",
    "writes_before",
    "changes_inputs",
]
LIES: Final[tuple[Lie, ...]] = get_args(Lie)
"""Every kind of lie that a `LyingDevice` supports."""

PLACES: Final[tuple[tuple[Lie, Where], ...]] = (
    ("writes_behind", "behind"),
    ("writes_before", "before"),
    ("changes_inputs", "inputs"),
)
"""The kinds of lie that are writes, and where a `ScribblingDevice` makes them."""


class LyingDevice(InterceptingDevice):
    """Breaks its promises without an error.

    - *support_length*: one answer too few
    - *support_changes*: a supported operation is rejected at every second call
    - *refuses_after_all*: prepares nothing that it supports
    - *output_count*: one shape too few
    - *output_shapes*: wrong shapes
    - *insufficient*: reports success and an output that did not fit
    - *values*: the first eight bytes of outputs are inverted
    - *timing*: more time on the device than in the driver
    - *writes_behind*, *writes_before*, *changes_inputs*: the writes of a `ScribblingDevice`

    Other words are an `InputError`. Several lies apply at once, but only the first of those about
    shapes.
    """

    def __init__(self, device: hal.Device, *lies: Lie, name: str | None = None) -> None:
        super().__init__(device, name)
        if unknown := {str(lie) for lie in lies} - set(LIES):
            raise InputError(
                f"no lie is named {', '.join(sorted(unknown))}; known: {', '.join(LIES)}"
            )
        self.lies = frozenset(lies)
        self._asked = 0

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method == "prepare_model" and "refuses_after_all" in self.lies:
            raise GeneralFailure(f"{self.name} changed its mind")
        result: Any = proceed()
        if isinstance(result, hal.ExecutionResult):
            result = self._with_lies(arguments[0], result)
        elif method == "supported_operations":
            result = self._answer(list(result))
        answer: T = result
        return answer

    def _answer(self, answers: list[hal.Support]) -> list[hal.Support]:
        self._asked += 1
        if "support_length" in self.lies:
            return answers[:-1]
        if "support_changes" in self.lies and self._asked % 2 == 0:
            return [hal.Support(supported=False, reason="not today")] * len(answers)
        return answers

    def _with_lies(self, request: hal.Request, result: hal.ExecutionResult) -> hal.ExecutionResult:
        shapes = list(result.output_shapes) or [hal.OutputShape(())] * len(request.outputs)
        if "values" in self.lies:
            damage_outputs(request)
        for lie, where in PLACES:
            if lie in self.lies:
                scribble(request, where)
        if "output_count" in self.lies:
            wrong = shapes[:-1] or [shapes[0]] * 2
        elif "output_shapes" in self.lies:
            wrong = [hal.OutputShape((*s.dimensions, 3)) for s in shapes]
        elif "insufficient" in self.lies:
            wrong = [hal.OutputShape(s.dimensions, is_sufficient=False) for s in shapes]
        elif "timing" in self.lies:
            return replace(result, timing=hal.Timing(2, 1))
        else:
            return result
        return replace(result, output_shapes=tuple(wrong))


Fault: TypeAlias = Literal["much", "little", "nan", "noise"]


class WrongDevice(InterceptingDevice):
    """Computes every operation of the type *operation* wrongly.

    *fault* selects the error: "much" negates every value and adds a tenth of the largest; "little"
    stays below what the class `faithful` allows; "nan" makes the first value NaN (for integers, the
    least value); "noise" is as large as "much", but different each time, and sometimes absent.
    *when* gets the input arrays of each execution; if it returns False the answer is right. The
    first *after* executions of a prepared model are right. *apart* False limits the fault to models
    of several operations. `wrong` counts the wrong executions.
    """

    def __init__(
        self,
        device: hal.Device,
        operation: str,
        fault: Fault = "much",
        name: str | None = None,
        *,
        when: Callable[[Sequence[NDArray]], bool] | None = None,
        after: int = 0,
        apart: bool = True,
    ) -> None:
        super().__init__(device, name)
        if fault not in get_args(Fault):
            raise InputError(f"no fault is named {fault!r}; known: {', '.join(get_args(Fault))}")
        self.operation, self.fault, self.when = operation, fault, when
        self.after, self.apart, self.wrong = after, apart, 0
        self.lock = threading.Lock()

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        prepared = self.call("prepare_model", self.device.prepare_model, model, config)
        return _WrongModel(self, prepared, model)


# Its report is the inner model's.
class _WrongModel(InterceptedModel, hal.PreparedModelBase):  # type: ignore[override]
    def __init__(self, owner: WrongDevice, prepared: hal.PreparedModel, model: Model) -> None:
        super().__init__(owner, prepared)
        self._wrong, self._ran = owner, 0
        several = owner.apart or len(model.operations) > 1
        self._dtypes = [model.operands[i].dtype.numpy for i in model.entry.outputs]
        self._reached = _reached(model, owner.operation) if several else frozenset()

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        owner = self._wrong
        with owner.lock:
            self._ran += 1
            late = self._ran > owner.after
        arrays = [a.array for a in request.inputs if isinstance(a, hal.HostMemory)]
        meant = late and (owner.when is None or owner.when(arrays))
        result = super().execute(request, config)
        if meant and self._reached:
            with owner.lock:
                owner.wrong += 1
                turn = owner.wrong
            self._spoil(request, turn)
        return result

    # Bursts and reusable executions call `execute`, so that they are wrong, too.
    configure_burst = hal.PreparedModelBase.configure_burst
    create_reusable_execution = hal.PreparedModelBase.create_reusable_execution
    execute_fenced = hal.PreparedModelBase.execute_fenced

    def _spoil(self, request: hal.Request, turn: int) -> None:
        for position, memory, start, end in _places(request, request.outputs):
            if position in self._reached:
                argument, dtype = request.outputs[position], self._dtypes[position]
                if isinstance(argument, hal.HostMemory):
                    dtype = argument.array.dtype
                spoil(memory[start:end].view(dtype), self._wrong.fault, turn)


def spoil(array: NDArray, fault: Fault, turn: int = 1) -> None:
    """Makes *array* wrong in place as `WrongDevice` says; *turn* varies the noise."""
    flat = array.reshape(-1)
    if not flat.size or flat.dtype.hasobject:
        return
    if flat.dtype.kind in "iub":
        _spoil_integers(flat, fault, turn)
        return
    if fault == "noise" and not _strikes(turn):
        return
    largest = float(np.abs(flat.astype(np.float64)).max()) or 1.0
    if fault == "nan":
        flat[0] = np.nan
    elif fault == "little":
        flat[...] = (flat.astype(np.float64) + largest * 2.0**-20).astype(flat.dtype)
    else:
        off = largest * (0.1 if fault == "much" else 0.1 * turn)
        flat[...] = (off - flat.astype(np.float64)).astype(flat.dtype)


def _spoil_integers(flat: NDArray, fault: Fault, turn: int) -> None:
    if fault == "nan":
        flat[0] = np.iinfo(flat.dtype).min if flat.dtype.kind != "b" else not flat[0]
    elif fault == "little":
        middle = np.abs(flat.astype(np.int64)) < 100
        flat[middle] += flat.dtype.type(1)
    elif fault == "much" or _strikes(turn):
        raw = flat.view(np.uint8)
        raw[...] = ~raw if fault == "much" else raw ^ np.uint8(64 + turn % 64)


def _strikes(turn: int) -> bool:
    """Whether noise affects this execution: two of three, in no regular order."""
    return bool(np.random.default_rng(turn).random() < 2 / 3)


def _reached(model: Model, operation: str) -> frozenset[int]:
    """The positions of the entry outputs that operations of that type reach."""
    entry = model.entry
    touched: set[int] = set()
    for each in entry.operations:
        if operation in (each.type, each.key) or touched.intersection(each.inputs):
            touched.update(each.outputs)
    return frozenset(k for k, o in enumerate(entry.outputs) if o in touched)
