"""One version of a model: a compiled form and a queue for each signature, warmed before use."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import penstock
from penstock.arguments import there_are
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import PenstockError
from penstock.execution import CompiledModel, Outputs
from penstock.hal import Device, Priority
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import is_static, static_shape
from penstock.runtime.discovery import DeviceInfo
from penstock.serve import batching
from penstock.serve.datatypes import NAMES
from penstock.serve.errors import InvalidRequest, UnknownModel
from penstock.serve.memory import Lease
from penstock.serve.scheduling import Job, RequestQueue
from penstock.serve.settings import Settings
from penstock.serve.shared_memory import OutputPlaces
from penstock.serve.statistics import Statistics
from penstock.serve.values import InferAnswer, InferInput, InferRequest

DEFAULT_SIGNATURE: Final = "serving_default"


class Unservable(PenstockError):
    """The model has an input or output that the protocol cannot carry."""


class Given(Struct, frozen=True):
    """The inputs of one job by name, and the arrays for its outputs if it runs alone."""

    arrays: Mapping[str, NDArray]
    out: Sequence[NDArray | None] | None


class Result(Struct, frozen=True):
    """The outputs of one job, and the run that they came from."""

    outputs: Mapping[str, NDArray]
    run: Outputs


class ServedSignature:
    """A signature of a model, compiled. *signature* None is a model without signatures."""

    def __init__(
        self,
        model: Model,
        signature: str | None,
        settings: Settings,
        statistics: Statistics,
        cancel: penstock.CancelToken,
    ) -> None:
        self._statistics = statistics
        chosen = settings.compile
        self.compiled: CompiledModel = penstock.compile(
            model,
            devices=_devices(model, chosen.devices),
            signature=signature,
            num_threads=chosen.threads,
            shapes=_known_shapes(model, signature, chosen.shapes),
            policy=chosen.policy,
            cache=chosen.cache,
            cancel=cancel,
        )
        self.inputs = _named(self.compiled.inputs, "input")
        self.outputs = _named(self.compiled.outputs, "output")
        for operand in (*self.inputs, *self.outputs):
            if operand.dtype not in NAMES:
                self.compiled.close()
                kind = operand.dtype.value
                raise Unservable(f"{operand.name!r} is {kind}, which the protocol cannot carry")
        self._has_state = bool(self.compiled.model.entry.states)
        rows = settings.batching.rows
        self._is_open = batching.is_open(self.inputs) and batching.is_open(self.outputs)
        self.is_batched = rows > 1 and not self._has_state and self._is_open
        self.unbatched = ""
        """Why requests do not share runs although the settings let them; "" if they do."""
        if rows > 1 and not self.is_batched:
            self.unbatched = (
                "it has state"
                if self._has_state
                else "the file fixes the first dimension of an input or output"
            )
        self._sizes = settings.batching.sizes if self.is_batched else (1,)
        self.queue = RequestQueue(
            self._execute,
            settings.limits.queue,
            running=chosen.running,
            rows=rows if self.is_batched else 1,
            sizes=self._sizes,
            delay=settings.batching.delay,
        )

    def warm(self, cancel: penstock.CancelToken) -> None:
        """Runs once on zeros, with each batch that may run, so that no request waits for a compile.

        A model with an unknown dimension besides the batch is compiled when its shapes are known.
        """
        for rows in self._sizes:
            zeros = {}
            for operand in self.inputs:
                shape = operand.shape
                if shape and shape[0] is None and batching.is_open(self.inputs):
                    shape = (rows, *shape[1:])
                known = static_shape(shape)
                if known is None:
                    return
                blank: object = b"" if operand.dtype is DType.STRING else 0
                zeros[operand.name] = np.full(known, blank, operand.dtype.numpy)
            self._run(zeros, None, cancel)

    def infer(self, request: InferRequest, version: str) -> InferAnswer:
        """Runs *request* in its turn. Raises the errors of `RequestQueue.run` and of the run."""
        began_ns = time.monotonic_ns()
        try:
            answer, rows = self._infer(request, version)
        except BaseException:
            self._statistics.failed(time.monotonic_ns() - began_ns)
            raise
        whole_ns = time.monotonic_ns() - began_ns
        self._statistics.succeeded(rows, whole_ns, answer.queue_ns, answer.receipt.wall_ns)
        return answer

    def _infer(self, request: InferRequest, version: str) -> tuple[InferAnswer, int]:
        """The answer, and the rows of the request."""
        arrays = self._arrays(request.inputs)
        names = self._output_names(request.outputs)
        rows = batching.rows_of(arrays) if self.is_batched else None
        job = Job(
            Given(arrays, self._targets(arrays, request.places)),
            rows=rows or 1,
            key=None if rows is None else batching.key_of(arrays),
            priority=request.priority,
            deadline_ns=request.deadline_ns,
            cancel=request.cancel,
        )
        self.queue.run(job)
        result: Result = job.result
        answer = InferAnswer(
            request.model,
            version,
            request.id,
            {name: result.outputs[name] for name in names},
            result.run.receipt,
            job.began_ns - job.arrived_ns,
            job.batch,
            request.full_receipt,
            request.region_copied,
        )
        return answer, job.rows

    def close(self) -> None:
        self.queue.close()
        self.compiled.close()

    def _execute(self, jobs: Sequence[Job]) -> None:
        if len(jobs) == 1:
            (job,) = jobs
            given: Given = job.inputs
            run = self._run(given.arrays, job.deadline_ns, job.cancel, job.priority, given.out)
            self._statistics.ran(job.rows, run.receipt.wall_ns)
            job.result = Result(_by_name(self.outputs, run), run)
            return
        deadlines = [job.deadline_ns for job in jobs]
        latest = None if None in deadlines else max(d for d in deadlines if d is not None)
        try:
            run = self._run(
                batching.joined([job.inputs.arrays for job in jobs]),
                latest,
                batching.AllTokens([job.cancel for job in jobs]),
                jobs[0].priority,
            )
        except PenstockError:
            # Each request gets its own answer, or its own error.
            self._execute_apart(jobs)
            return
        parts = batching.divided(_by_name(self.outputs, run), [job.rows for job in jobs])
        if parts is None:
            self._execute_apart(jobs)
            return
        self._statistics.ran(sum(job.rows for job in jobs), run.receipt.wall_ns)
        for job, part in zip(jobs, parts, strict=True):
            job.result = Result(part, run)

    def _execute_apart(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.batch = 1
            job.error = job.refusal(time.monotonic_ns())
            if job.error is None:
                try:
                    self._execute([job])
                except PenstockError as error:
                    job.error = error

    def _run(
        self,
        arrays: Mapping[str, NDArray],
        deadline_ns: int | None,
        cancel: penstock.CancelToken,
        priority: Priority = "medium",
        out: Sequence[NDArray | None] | None = None,
    ) -> Outputs:
        timeout = None
        if deadline_ns is not None:
            timeout = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        return self.compiled.run(
            [arrays[operand.name] for operand in self.inputs],
            out=out,
            state=self.compiled.new_state() if self._has_state else None,
            timeout=timeout,
            cancel=cancel,
            priority=None if priority == "medium" else priority,
        )

    def _targets(
        self, arrays: Mapping[str, NDArray], places: OutputPlaces | None
    ) -> Sequence[NDArray | None] | None:
        """Arrays in shared memory for outputs whose shape is known; None if there are none."""
        if places is None:
            return None
        rows = batching.rows_of(arrays) if self._is_open else None
        found = []
        for operand in self.outputs:
            shape = operand.shape
            if shape and rows is not None:
                shape = (rows, *shape[1:])
            found.append(places.target(operand.name, operand.dtype, static_shape(shape)))
        return found if any(array is not None for array in found) else None

    def _arrays(self, given: Sequence[InferInput]) -> dict[str, NDArray]:
        known = {operand.name: operand for operand in self.inputs}
        arrays: dict[str, NDArray] = {}
        for tensor in given:
            operand = known.get(tensor.name)
            if operand is None:
                raise InvalidRequest(f"no input is named {tensor.name!r}; {there_are([*known])}")
            if tensor.name in arrays:
                raise InvalidRequest(f"input {tensor.name!r} is given twice")
            if tensor.datatype != NAMES[operand.dtype]:
                raise InvalidRequest(
                    f"input {tensor.name!r} is {NAMES[operand.dtype]}, {tensor.datatype} was given"
                )
            arrays[tensor.name] = tensor.array
        if missing := [name for name in known if name not in arrays]:
            raise InvalidRequest(f"input {missing[0]!r} is missing; {there_are([*known])}")
        return arrays

    def _output_names(self, wanted: Sequence[str]) -> Sequence[str]:
        known = [operand.name for operand in self.outputs]
        for name in wanted:
            if name not in known:
                raise InvalidRequest(f"no output is named {name!r}; {there_are(known)}")
        return wanted or known


class ServedVersion:
    """The signatures of one version, with the *lease* of their memory and the *statistics* of their
    requests, from when they are warm.

    It closes once it is retired and its last user has gone. Raises `Cancelled` once *cancel* is
    set.
    """

    def __init__(
        self,
        model: Model,
        version: str,
        settings: Settings,
        lease: Lease,
        statistics: Statistics,
        cancel: penstock.CancelToken,
    ) -> None:
        self.version, self.lease = version, lease
        self.signatures: dict[str, ServedSignature] = {}
        names: list[str | None] = [*model.signatures] or [None]
        self.default = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0] or ""
        self._lock = threading.Lock()
        self._users = 0
        self._is_retired = False
        try:
            for name in names:
                served = ServedSignature(model, name, settings, statistics, cancel)
                self.signatures[name or ""] = served
                served.warm(cancel)
        except BaseException:
            self._close()
            raise

    def signature(self, name: str | None) -> ServedSignature:
        """The signature *name*, None for the default one. Raises `UnknownModel`."""
        found = self.signatures.get(self.default if name is None else name)
        if found is None:
            known = there_are([*self.signatures])
            raise UnknownModel(f"the model has no signature {name!r}; {known}")
        return found

    @property
    def unbatched(self) -> dict[str, str]:
        """Why requests do not share runs, for each signature where the settings let them; the
        default signature is "".
        """
        found = {name: served.unbatched for name, served in self.signatures.items()}
        return {"" if name == self.default else name: why for name, why in found.items() if why}

    def take(self) -> bool:
        """Keeps the version open until `give_back`; False if it is retired."""
        with self._lock:
            if not self._is_retired:
                self._users += 1
            return not self._is_retired

    def give_back(self) -> None:
        """Ends one use of the version."""
        with self._lock:
            self._users -= 1
            last = self._is_retired and not self._users
        if last:
            self._close()

    def retire(self) -> None:
        """Refuses new users. Those inside get their answers; the last of them closes the model."""
        with self._lock:
            if self._is_retired:
                return
            self._is_retired = True
            self.lease.become("leaving")
            idle = not self._users
        if idle:
            self._close()

    def _close(self) -> None:
        for served in self.signatures.values():
            served.close()
        self.lease.become("ended")


def _named(operands: Sequence[Operand], kind: str) -> tuple[Operand, ...]:
    """*operands* with a name each that no other has; files may leave names out, or repeat them."""
    names: list[str] = []
    for place, operand in enumerate(operands):
        name = operand.name or f"{kind}_{place}"
        names.append(f"{name}_{place}" if name in names else name)
    return tuple(replace(o, name=n) for o, n in zip(operands, names, strict=True))


def _by_name(operands: Sequence[Operand], run: Outputs) -> dict[str, NDArray]:
    return {operand.name: array for operand, array in zip(operands, run, strict=True)}


def _devices(
    model: Model, given: Sequence[str | Device]
) -> Sequence[str | Device | DeviceInfo] | None:
    """*given* with the fallback device for a model with unknown dimensions.

    Most devices take an operation once its shapes are known, at a run. The form for unknown shapes
    needs one that takes it before.
    """
    if not given:
        return None
    if all(is_static(operand.shape) for operand in model.inputs) or FALLBACK_DEVICE in given:
        return given
    return [*given, FALLBACK_DEVICE]


def _known_shapes(
    model: Model, signature: str | None, given: Mapping[str, tuple[int, ...]] | None
) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes of *given* whose inputs the signature has."""
    if not given:
        return None
    if signature is None:
        names = {operand.name for operand in model.inputs}
    else:
        names = {name for name, _ in model.signatures[signature].inputs}
    return {name: shape for name, shape in given.items() if name in names} or None
