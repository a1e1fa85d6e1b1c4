"""Running operation vectors on one device, through the HAL: lower, ask, prepare, execute, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from penstock.errors import (
    DriverError,
    InputError,
    MissedDeadline,
    ModelError,
    NotLowerable,
    PenstockError,
)
from penstock.hal import (
    AccuracyClass,
    Device,
    ExecutionConfig,
    HostMemory,
    PoolArgument,
    PrepareConfig,
    PreparedModel,
    Request,
)
from penstock.ir import DataLocation, Model, NDArray, infer_shapes
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool
from penstock.nnapi.lowering import lower
from penstock.testing.vectors.comparison import difference
from penstock.testing.vectors.derive import Run, runs_of
from penstock.testing.vectors.format import Case
from penstock.testing.vectors.report import Outcome, Report, RunResult

LOOP_TIMEOUT_NS: Final = 200_000_000
"""For cases whose loops never end."""

SPARE_BYTES: Final = 1024
"""Given to outputs of unknown shape beyond what the answer takes."""

ALIGNMENT: Final = 64


class NotCovered(PenstockError):
    """The run asks for something that the device, or the IR, does not have."""


def run_vectors(
    cases: Iterable[Case],
    device: Device,
    progress: Callable[[RunResult], None] | None = None,
    *,
    pools: bool | None = None,
) -> Report:
    """Every run of every case on *device*, and on nothing else.

    *pools* True puts every argument into shared memory, False into memory of the caller; None goes by what
    the device accepts.
    """
    results: list[RunResult] = []
    for case in cases:
        for result in run_case(case, device, pools=pools):
            results.append(result)
            if progress is not None:
                progress(result)
    return Report.of(results)


def run_case(case: Case, device: Device, *, pools: bool | None = None) -> Iterator[RunResult]:
    """The results of the case's runs; nothing is raised for what a device does wrong."""
    in_pools = not device.capabilities.accepts_host_memory if pools is None else pools
    for run in runs_of(case):
        yield run_one(run, device, pools=in_pools)


def run_one(run: Run, device: Device, *, pools: bool = False) -> RunResult:
    """One run, its outcome as a value."""
    outcome: Outcome = "passed"
    message = ""
    try:
        message = _attempt(run, device, pools=pools) or ""
        outcome = "failed" if message else "passed"
    except NotCovered as reason:
        outcome, message = "not_covered", str(reason)
    except Exception as error:  # noqa: BLE001  # whatever a driver does is its result
        outcome, message = "failed", f"{type(error).__name__}: {error}"
    case = run.case
    return RunResult(case.specification.name, case.name, run.kind, outcome, message)


def _attempt(run: Run, device: Device, *, pools: bool) -> str | None:
    """What is wrong, None where nothing is; raises `NotCovered`."""
    if not run.case.entry.expect_failure:
        return difference(run, execute(run, device, pools=pools))
    try:
        execute(run, device, pools=pools)
    except (ModelError, DriverError, InputError) as error:
        if run.case.is_infinite_loop and not isinstance(error, MissedDeadline):
            return f"a loop without end failed otherwise than by its timeout: {error}"
        return None
    return "a failure was expected, and there was none"


def execute(run: Run, device: Device, *, pools: bool = False) -> list[NDArray]:
    """The outputs of one run. Raises `NotCovered` with the device's reasons where it does not take the model."""
    try:
        model = lower(run.model, run.feature_level, run.omitted)
    except NotLowerable as reason:
        raise NotCovered(str(reason)) from reason
    fed = run.fed
    model = infer_shapes(model, {p: a.shape for p, a in enumerate(fed)})
    refused = [
        f"{operation.key}: {support.reason}"
        for operation, support in zip(
            model.operations, device.supported_operations(model), strict=True
        )
        if not support.supported
    ]
    if refused:
        raise NotCovered("; ".join(dict.fromkeys(refused)))
    accuracy: AccuracyClass = "relaxed" if run.model.relaxed else "faithful"
    prepared = device.prepare_model(model, PrepareConfig(accuracy=accuracy))
    try:
        return _execute(run, model, prepared, fed, device.capabilities.alignment if pools else None)
    finally:
        prepared.close()


def _execute(
    run: Run, model: Model, prepared: PreparedModel, fed: Sequence[NDArray], alignment: int | None
) -> list[NDArray]:
    """*alignment* None: the arguments lie in memory of the caller, else in one pool, so many bytes aligned."""
    operands = [model.entry.operands[i] for i in model.entry.outputs]
    shapes = [static_shape(o.shape) for o in operands]
    sizes = [
        _expected_bytes(run, place) + SPARE_BYTES
        if shape is None
        else int(np.prod(shape, dtype=np.int64)) * operand.dtype.numpy.itemsize
        for place, (operand, shape) in enumerate(zip(operands, shapes, strict=True))
    ]
    given = [np.ascontiguousarray(a) for a in fed]
    lengths = [a.nbytes for a in given] + sizes
    step = max(ALIGNMENT, alignment or 0)
    offsets = np.cumsum([0, *(-(-n // step) * step for n in lengths)]).tolist()
    pool = MemoryPool.anonymous(max(offsets[-1], ALIGNMENT)) if alignment is not None else None
    memory = np.zeros(offsets[-1], np.uint8) if pool is None else pool.view(np.uint8, offsets[-1])
    places = [memory[o : o + n] for o, n in zip(offsets, lengths, strict=False)]
    for place, array in zip(places, given, strict=False):
        place[:] = array.reshape(-1).view(np.uint8)
    arguments: list[HostMemory | PoolArgument] = []
    for at, place in enumerate(places):
        output = at - len(given)
        shape = given[at].shape if output < 0 else shapes[output]
        dtype = given[at].dtype if output < 0 else operands[output].dtype.numpy
        if pool is not None:
            location = DataLocation(0, offsets[at], lengths[at])
            arguments.append(PoolArgument(location, shape if output < 0 and shape else ()))
        elif shape is None:
            arguments.append(HostMemory(place))
        else:
            arguments.append(HostMemory(place.view(dtype).reshape(shape)))
    inputs, outputs = arguments[: len(given)], arguments[len(given) :]
    request = Request(tuple(inputs), tuple(outputs), () if pool is None else (pool.memory,))
    config = (
        ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
        if run.case.is_infinite_loop
        else ExecutionConfig()
    )
    try:
        result = prepared.execute(request, config)
        found: list[NDArray] = []
        for at, operand in enumerate(operands):
            final = result.output_shapes[at].dimensions if result.output_shapes else shapes[at]
            if final is None:
                raise PenstockError(f"the shape of output {at} was unknown and is not reported")
            nbytes = int(np.prod(final, dtype=np.int64)) * operand.dtype.numpy.itemsize
            data = places[len(given) + at][:nbytes].copy()
            found.append(data.view(operand.dtype.numpy).reshape(final))
        return found
    finally:
        if pool is not None:
            pool.close()


def _expected_bytes(run: Run, place: int) -> int:
    values = run.outputs[place].values
    return 4 * SPARE_BYTES if values is None else values.nbytes
