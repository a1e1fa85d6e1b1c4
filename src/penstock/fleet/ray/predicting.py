"""One compiled model that answers batches of columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

import penstock
from penstock import knobs
from penstock.cli import answers, files
from penstock.cli.feed import Wishes, parse_normalization, slots_of
from penstock.errors import InputError, PenstockError
from penstock.execution.interface import interface_of
from penstock.fleet.ray import columns
from penstock.fleet.ray.preparing import Preparer
from penstock.ipc.starting import unavailable as isolation_unavailable
from penstock.ir import NDArray, Operand
from penstock.partitioning.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.execution.interface import Outputs
    from penstock.hal import AccuracyClass

Batch: TypeAlias = "Mapping[str, Any] | pa.Table"

ADDED: Final = ("task", "label", "score", "boxes", "answer", "device", "error")
"""Columns of `answers="columns"`, which stand behind those of the batch."""


class Row(Struct, frozen=True):
    """The outputs of one row, one array each, and the devices that computed them; or an *error*."""

    outputs: tuple[NDArray, ...] = ()
    device: str = ""
    error: str | None = None


class Predict:
    """A compiled model as a callable class for `ray.data.Dataset.map_batches`.

    *model* is the name of a model file that every node can read, and *columns* are the columns that
    feed its inputs, in order; by default those with the names of the inputs. An element of a column
    is

    - a `str`: the name of a picture, a sound (`.wav`) or an `.npy` file,
    - `bytes`: the content of such a file,
    - uint8 [height, width, 1, 3 or 4] pixels where the input itself is not uint8 of this shape,
    - otherwise the input's values, of its dtype and of its shape without the batch.

    `penstock run` prepares pictures and sounds in the same way; *normalize*, *rate* and *labels*
    are its options. A model whose inputs and outputs have an open batch runs a batch at once;
    others run row by row.

    With `answers="columns"` the columns `ADDED` are added: the task, the best label with its score
    (label: the number of the class where it has no name), the boxes of a detector, the whole answer
    as `penstock run --json` gives it, the devices of the receipt, and the error of a row that could
    not be read or decides nothing. With `answers="outputs"` each output is a column, with
    `device`; a row that cannot be read raises.

    *devices*, *num_threads*, *portable* and *cache* are arguments of `penstock.compile`; *accuracy*
    is one of `penstock.Policy`. With *isolate* None each driver runs in one process for all actors
    of a machine, which then hold the weights once; where the knob `isolate` is set, or the system
    cannot do that, it is None of `penstock.compile`, whose other values it has. Ray reserves what
    its own options say (`num_cpus`, `num_gpus`, `resources`): give `num_cpus` the number of
    threads. Where the model leaves open how pictures are normalised, rows with pictures have an
    error that asks for *normalize*.
    """

    def __init__(
        self,
        model: str,
        *,
        columns: Sequence[str] | None = None,
        answers: Literal["columns", "outputs"] = "columns",
        labels: str | None = None,
        normalize: str | None = None,
        rate: int | None = None,
        task: str | None = None,
        top: int = 5,
        min_score: float = 0.3,
        devices: Sequence[str] | None = None,
        num_threads: int | None = 1,
        accuracy: AccuracyClass | None = None,
        portable: str | None = None,
        cache: bool | str = True,
        isolate: bool | None = None,
    ) -> None:
        scheme = None if normalize is None else parse_normalization(normalize)
        given_labels = None if labels is None else files.read_labels(labels)
        self.compiled = penstock.compile(
            model,
            devices=devices,
            num_threads=num_threads,
            portable=portable,
            cache=cache,
            isolate=_isolated(isolate),
            policy=None if accuracy is None else Policy(accuracy=accuracy),
        )
        made = self.compiled.model
        interface = interface_of(made, None)
        self.inputs, self.outputs = interface.inputs, interface.outputs
        slots = slots_of(made, interface, interface.inputs)
        self.is_batched = all(_is_open(o) for o in (*self.inputs, *self.outputs))
        self._preparers = [Preparer(slot, Wishes(scheme, rate=rate)) for slot in slots]
        self._columns = tuple(columns or (o.name for o in self.inputs))
        if len(self._columns) != len(self.inputs):
            raise InputError(
                f"{len(self._columns)} columns are named for the {len(self.inputs)} inputs of "
                f"{model}: {', '.join(o.name for o in self.inputs)}"
            )
        self._as_outputs = answers == "outputs"
        self._task = task
        self._names = _unique([o.name or f"output_{i}" for i, o in enumerate(self.outputs)])
        self._results = _results(made, interface, given_labels, top, min_score)

    def __call__(self, batch: Batch) -> Any:
        """*batch* with the added columns, of the same kind."""
        given = [columns.values(batch, name) for name in self._columns]
        if self._as_outputs and (whole := self._whole(given)) is not None:
            return columns.added(batch, whole)
        rows = self.rows(list(zip(*given, strict=True)))
        if self._as_outputs:
            return columns.added(batch, self._stacked(rows))
        return columns.added(batch, columns.of_answers([self.answer(row) for row in rows]))

    def rows(self, given: Sequence[Sequence[object]]) -> list[Row]:
        """A `Row` for each element of *given*, which has an element for each input."""
        prepared = [self._prepared(row) for row in given]
        ready = [row for row in prepared if not isinstance(row, str)]
        ran = iter(self._run(ready))
        return [Row(error=row) if isinstance(row, str) else next(ran) for row in prepared]

    def answer(self, row: Row) -> dict[str, Any]:
        """The columns `ADDED` of one row."""
        found: dict[str, Any] = dict.fromkeys(ADDED)
        found |= {"boxes": [], "device": row.device or None, "error": row.error}
        if row.error is not None:
            return found
        results = self._results(row.outputs)
        answer = answers.answer(results, self._task)
        found |= {"task": answer.task, "answer": json.dumps(answer.data)}
        found["error"] = answers.why_undecided(results, answer.task) or None
        if answer.task == "detection":
            found["boxes"] = answer.data["boxes"]
        ranked = answer.data.get("top") or answer.data.get("boxes")
        if ranked and found["error"] is None:
            best = ranked[0]
            found["label"] = str(best["index"]) if best["label"] is None else best["label"]
            found["score"] = best["score"]
        return found

    def prepare(self, row: Sequence[object]) -> list[NDArray]:
        """The arrays of one row, each with the batch of 1 where the input has one.

        Raises `InputError` for an element that is no input of the model.
        """
        return [p.array(value) for p, value in zip(self._preparers, row, strict=True)]

    def _prepared(self, row: Sequence[object]) -> list[NDArray] | str:
        try:
            return self.prepare(row)
        except PenstockError as error:
            if self._as_outputs:
                raise
            return str(error)

    def _run(self, rows: Sequence[list[NDArray]]) -> list[Row]:
        if not self.is_batched or len(rows) < 2 or len({_shapes(row) for row in rows}) > 1:
            return [self._row(self.compiled.run(row)) for row in rows]
        arrays = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        run = self.compiled.run(arrays)
        device = _devices(run)
        outputs = [run[i] for i in range(len(self.outputs))]
        if any(len(array) != len(rows) for array in outputs):
            return [self._row(self.compiled.run(row)) for row in rows]
        return [Row(tuple(a[i : i + 1] for a in outputs), device) for i in range(len(rows))]

    def _row(self, run: Outputs) -> Row:
        return Row(tuple(run), _devices(run))

    def _whole(self, given: Sequence[columns.Values]) -> dict[str, Any] | None:
        """The columns of outputs of values that are a batch of the model as they are."""
        if not self.is_batched:
            return None
        for operand, values in zip(self.inputs, given, strict=True):
            if not isinstance(values, np.ndarray) or not _fits(values, operand):
                return None
        run = self.compiled.run(given)
        rows = len(given[0])
        if any(len(array) != rows for array in run):
            return None
        return {**dict(zip(self._names, run, strict=True)), "device": [_devices(run)] * rows}

    def _stacked(self, rows: Sequence[Row]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place, name in enumerate(self._names):
            arrays = [row.outputs[place] for row in rows]
            batched = all(array.ndim and array.shape[0] == 1 for array in arrays)
            found[name] = columns.stacked([a[0] for a in arrays] if batched else arrays)
        return {**found, "device": [row.device for row in rows]}


def _isolated(isolate: bool | None) -> bool | None:
    """The argument of `penstock.compile` for that of `Predict`."""
    if isolate is None and not knobs.isolate() and isolation_unavailable() is None:
        return True
    return isolate


def _results(
    model: Any, interface: Any, labels: tuple[str, ...] | None, top: int, minimum: float
) -> Any:
    known = files.model_labels(model.metadata) if labels is None else labels
    indexes = tuple(model.entry.ordinary_outputs[i] for i in interface.output_positions)

    def of(arrays: tuple[NDArray, ...]) -> answers.Results:
        return answers.Results(model, interface.outputs, indexes, arrays, known, top, minimum)

    return of


def _is_open(operand: Operand) -> bool:
    return bool(operand.shape) and operand.shape[0] is None  # type: ignore[index]


def _fits(values: NDArray, operand: Operand) -> bool:
    from penstock.execution.interface import fits

    return values.dtype == operand.dtype.numpy and fits(values.shape, operand.shape)


def _shapes(arrays: Sequence[NDArray]) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays)


def _devices(run: Outputs) -> str:
    return ", ".join(dict.fromkeys(step.device for step in run.receipt.steps))


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{n}_{i}" if n in names[:i] else n for i, n in enumerate(names))
